"""The story of one conversation: what each policy sent of it, message by message, at every call."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from chatstack.replay.measures.grounding import text_of
from chatstack.values.messages import Message
from chatstack.values.parts import Text
from chatstack.values.requests import ChatRequest

TEXT_CHARS = 2_000
"""Of a message's text; what is longer is cut."""
_ADDED_CHARS = 600
_VALUE_CHARS = 200
_VALUES = 30

State: TypeAlias = Literal["k", "c", "f", "d"]
"""Of a message in one call: kept as it is, cleared or edited otherwise, folded into a summary, dropped."""


class ToldMessage(msgspec.Struct, frozen=True):
    """A recorded message; ``chars`` and ``tokens`` are of all of it, ``text`` is its beginning."""

    role: str
    kind: str
    name: str
    text: str
    chars: int
    tokens: int


class Added(msgspec.Struct, frozen=True):
    """A message that a layer put in before the recorded one of that number."""

    before: int
    text: str


class CallStory(msgspec.Struct, omit_defaults=True):
    """What one policy sent for one call.

    ``states`` has a letter for each message before the call, run by run: ``12k3c``. ``changed`` is the new text of the
    edited messages, by number, where it differs from that in the call before. ``lost`` are the values that the
    recorded answer used and that were not there any more.
    """

    tokens: int = 0
    cached: int = 0
    states: str = ""
    edited: bool = False
    over: bool = False
    refused: str = ""
    changed: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    added: list[Added] = msgspec.field(default_factory=list[Added])
    why: list[str] = msgspec.field(default_factory=list[str])
    lost: list[str] = msgspec.field(default_factory=list[str])


class PolicyStory(msgspec.Struct, frozen=True):
    """One policy's calls, in order."""

    name: str
    calls: list[CallStory]


class Story(msgspec.Struct, frozen=True):
    """One conversation; ``calls`` are the numbers of the recorded answers. ``number`` is its place among all, and
    ``weight`` how much there is to see: values that policies lost, and edits."""

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
        """Those with most to see first, then those that came first."""
        return (-self.weight, self.number)


def told_message(message: Message, tokens: int) -> ToldMessage:
    """What a story keeps of a recorded message."""
    text = text_of(message).replace("\0", "\n")
    kinds = {"call" if message.calls else "", "result" if message.results else ""} - {""}
    kinds |= {"text"} if any(isinstance(part, Text) for part in message.parts) else set()
    names = [*(each.name for each in message.calls), *(each.name for each in message.results)]
    kind = kinds.pop() if len(kinds) == 1 else "mixed"
    return ToldMessage(
        message.role, kind, ", ".join(dict.fromkeys(filter(None, names))), text[:TEXT_CHARS], len(text), tokens
    )


class Tracing:
    """Follows what one policy sends of one conversation."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._at = {id(message): at for at, message in enumerate(messages)}
        self._messages = messages
        self._texts: dict[int, str] = {}
        self._folded: set[int] = set()
        self._summaries: list[Message] = []
        self.calls: list[CallStory] = []

    def add(self, call: CallStory, position: int, sent: ChatRequest | None) -> None:
        """A call whose answer is the message at that position; None where it was refused."""
        self.calls.append(call)
        call.lost = [value[:_VALUE_CHARS] for value in call.lost[:_VALUES]]
        if sent is None:
            call.states = _runs("d" * position)
            return
        states: list[State] = ["d"] * position
        summaries: list[Message] = []
        waiting: list[str] = []
        following = 0
        for message in sent.messages:
            at = self._place(message, position, states)
            if at is None:
                waiting.append(text_of(message).replace("\0", "\n")[:_ADDED_CHARS])
                if message.mark == "summary":
                    summaries.append(message.original)
                continue
            call.added += [Added(at, text) for text in waiting]
            waiting.clear()
            following = at + 1
            states[at] = "k" if message == self._messages[at] else "c"
            if states[at] == "c":
                self._tell(call, at, text_of(message).replace("\0", "\n")[:TEXT_CHARS])
        call.added += [Added(following, text) for text in waiting]
        known = {id(each) for each in self._summaries}  # by identity: a stand-in says the same each time
        if any(id(each) not in known for each in summaries):
            self._folded.update(at for at, state in enumerate(states) if state == "d")
        self._summaries = summaries
        if not summaries:
            self._folded.clear()
        call.states = _runs("f" if state == "d" and at in self._folded else state for at, state in enumerate(states))

    def _place(self, message: Message, position: int, states: Sequence[State]) -> int | None:
        """The number of the recorded message that this one is, or was made from; None for one that a layer put in."""
        at = self._at.get(id(message.original))
        if at is None and not message.mark:
            same = (n for n in range(position) if states[n] == "d" and self._messages[n] == message)
            at = next(same, None)
        return at if at is not None and at < position else None

    def _tell(self, call: CallStory, at: int, text: str) -> None:
        if self._texts.get(at) != text:
            self._texts[at] = text
            call.changed[str(at)] = text


def _runs(states: Iterable[str]) -> str:
    """``kkkcd`` as ``3k1c1d``."""
    return "".join(f"{len(list(run))}{state}" for state, run in itertools.groupby(states))
