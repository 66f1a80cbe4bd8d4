"""The story of one conversation: the request of each policy, message by message, at every call."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from chatstack.values.messages import Message
from chatstack.values.parts import Text
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.values import text_of

TEXT_CHARS = 2_000
"""Maximum characters of the text of a recorded or an edited message; longer texts are cut."""
_ADDED_CHARS = 600
_VALUE_CHARS = 200
_VALUES = 30
"""Maximum number of lost values reported for one call."""

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

    ``states`` has a letter for each message before the call, run-length encoded: ``12k3c``. ``why`` are the edits that
    layers reported in this call; ``broken`` is True if its request does not start with the whole request before it,
    with or without a reported edit. ``changed`` is the new text of the edited messages, by number, if it differs from
    that in the call before. ``lost`` are the first of the values that the recorded answer used and that were missing in
    the request, ``lost_count`` is the number of all.
    """

    tokens: int = 0
    cached: int = 0
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
    told = _cut(message, TEXT_CHARS)
    kinds = {"call" if message.calls else "", "result" if message.results else ""} - {""}
    kinds |= {"text"} if any(isinstance(part, Text) for part in message.parts) else set()
    names = [*(each.name for each in message.calls), *(each.name for each in message.results)]
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    return ToldMessage(message.role, kind, ", ".join(dict.fromkeys(filter(None, names))), told.text, told.chars, tokens)


class Tracing:
    """Follows the requests of one policy in one conversation."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._at = {id(message): at for at, message in enumerate(messages)}
        self._equal: dict[Message, list[int]] = {}
        for at, message in enumerate(messages):
            self._equal.setdefault(message, []).append(at)
        self._messages = messages
        self._texts: dict[int, Cut] = {}
        self._folded: set[int] = set()
        self._summaries: list[Message] = []
        self.calls: list[CallStory] = []

    def add(self, call: CallStory, position: int, sent: ChatRequest | None) -> None:
        """Add the call whose answer is the message at that position; ``sent`` is None if it was refused."""
        self.calls.append(call)
        call.lost_count = len(call.lost)
        call.lost = [value[:_VALUE_CHARS] for value in call.lost[:_VALUES]]
        if sent is None:
            call.states = _runs("d" * position)
            return
        states: list[State] = ["d"] * position
        summaries: list[Message] = []
        waiting: list[Cut] = []
        following = 0
        for message in sent.messages:
            at = self._place(message, position, states)
            if at is None:
                waiting.append(_cut(message, _ADDED_CHARS))
                if message.mark == "summary":
                    summaries.append(message.original)
                continue
            call.added += [Added(at, cut.text, cut.chars) for cut in waiting]
            waiting.clear()
            following = at + 1
            states[at] = "k" if message == self._messages[at] else "c"
            if states[at] == "c":
                self._tell(call, at, _cut(message, TEXT_CHARS))
        call.added += [Added(following, cut.text, cut.chars) for cut in waiting]
        known = {id(each) for each in self._summaries}  # by identity: a stand-in writes the same text each time
        if any(id(each) not in known for each in summaries):
            self._folded.update(at for at, state in enumerate(states) if state == "d")
        self._summaries = summaries
        if not summaries:
            self._folded.clear()
        call.states = _runs("f" if state == "d" and at in self._folded else state for at, state in enumerate(states))

    def _place(self, message: Message, position: int, states: Sequence[State]) -> int | None:
        """Return the number of the recorded message that this one is or was made from; None for an inserted one."""
        at = self._at.get(id(message.original))
        if at is None and not message.mark:
            same = (n for n in self._equal.get(message, ()) if n < position and states[n] == "d")
            at = next(same, None)
        return at if at is not None and at < position else None

    def _tell(self, call: CallStory, at: int, new: Cut) -> None:
        if self._texts.get(at) != new:
            self._texts[at] = new
            call.changed[str(at)] = new


def _cut(message: Message, most: int) -> Cut:
    """Return the beginning of a message's text, of at most ``most`` characters."""
    text = text_of(message).replace("\0", "\n")
    return Cut(text[:most], len(text))


def _runs(states: Iterable[str]) -> str:
    """Run-length encode: ``kkkcd`` becomes ``3k1c1d``."""
    return "".join(f"{len(list(run))}{state}" for state, run in itertools.groupby(states))
