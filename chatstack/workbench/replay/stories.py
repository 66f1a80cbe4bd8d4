"""The story of one conversation: the request of each policy, message by message, at every call."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from chatstack.values.messages import Message
from chatstack.values.parts import Text
from chatstack.workbench.replay.measures.values import text_of

TEXT_CHARS = 2_000
"""Maximum characters of the text of a recorded or an edited message; longer texts are cut."""

State: TypeAlias = Literal["k", "c", "f", "d"]
"""State of a message in one call: kept as it is, cleared or edited otherwise, folded into a summary, dropped."""


class ToldMessage(msgspec.Struct, frozen=True):
    """A recorded message; ``chars`` and ``tokens`` measure the whole text, ``text`` is its beginning."""

    role: str
    kind: str
    name: str
    text: str
    chars: int
    tokens: int


class Cut(msgspec.Struct, frozen=True):
    """The beginning of a text; ``chars`` is the length of the whole."""

    text: str
    chars: int


class Added(msgspec.Struct, frozen=True):
    """A message that a layer inserted before the recorded one of that number.

    ``text`` is its beginning, ``chars`` the length of the whole.
    """

    before: int
    text: str
    chars: int


class CallStory(msgspec.Struct, omit_defaults=True):
    """One call of one policy.

    The first ``same`` messages are in the state that they had in the last call before that was not refused. ``states``
    has a letter for each message behind those and before the call, run-length encoded: ``12k3c``. ``why`` are the edits
    that layers reported in this call; ``broken`` is True if its request does not start with the whole request before
    it, with or without a reported edit. ``changed`` is the new text of the edited messages, by number, if it differs
    from that in the call before. ``lost`` are the first of the values that the recorded answer used and that were
    missing in the request, ``lost_count`` is the number of all.
    """

    tokens: int = 0
    cached: int = 0
    same: int = 0
    states: str = ""
    broken: bool = False
    over: bool = False
    refused: str = ""
    changed: dict[str, Cut] = {}
    added: list[Added] = []
    why: list[str] = []
    lost: list[str] = []
    lost_count: int = 0


class PolicyStory(msgspec.Struct, frozen=True):
    """One policy's calls, in order."""

    name: str
    calls: list[CallStory]


class Story(msgspec.Struct, frozen=True):
    """One conversation; ``calls`` are the numbers of the recorded answers.

    ``number`` is its place among all, and ``weight`` the number of values that policies lost, and of edits.
    """

    id: str
    file: str
    line: int
    model: str
    messages: list[ToldMessage]
    calls: list[int]
    policies: list[PolicyStory]
    number: int
    weight: int

    @property
    def rank(self) -> tuple[int, int]:
        """Sort key: the greatest weight first, then the order of the input."""
        return (-self.weight, self.number)


def told_message(message: Message, tokens: int) -> ToldMessage:
    """Return the part of a recorded message that a story keeps."""
    told = cut(message, TEXT_CHARS)
    kinds = {"call" if message.calls else "", "result" if message.results else ""} - {""}
    kinds |= {"text"} if any(isinstance(part, Text) for part in message.parts) else set()
    names = [*(each.name for each in message.calls), *(each.name for each in message.results)]
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    return ToldMessage(message.role, kind, ", ".join(dict.fromkeys(filter(None, names))), told.text, told.chars, tokens)


def cut(message: Message, most: int) -> Cut:
    """Return the beginning of a message's text, of at most ``most`` characters."""
    text = text_of(message).replace("\0", "\n")
    return Cut(text[:most], len(text))
