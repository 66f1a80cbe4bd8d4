"""Which tool results answer which calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chatstack.errors import InputError
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall, ToolResult
from chatstack.values.surrogates import without_lone_surrogates


@dataclass(frozen=True, slots=True)
class Pairing:
    """The pairs of a list of messages, by position, and what is left over.

    ``answers`` are pairs (position of a result, position of its call). ``orphans`` are results without a call before
    them, ``open_calls`` calls without a result after them, each with its position.
    """

    answers: tuple[tuple[int, int], ...]
    orphans: tuple[tuple[int, ToolResult], ...]
    open_calls: tuple[tuple[int, ToolCall], ...]

    def leftovers(self, last: int) -> Counter[str]:
        """What does not pair, counted; the calls of a last message are still waiting, and not counted."""
        found = Counter(f"result without call: {result.call_id}" for _, result in self.orphans)
        found.update(f"call without result: {call.id}" for position, call in self.open_calls if position != last)
        return found

    def waiting(self, last: int) -> Counter[str]:
        """The ids of the calls of a last message that still wait for their results, counted."""
        return Counter(call.id for position, call in self.open_calls if position == last)


class Pairs:
    """Calls and results, paired as they come.

    A result answers the newest unanswered call of its id before it: ids are used again within one conversation, so
    an id alone says nothing.
    """

    __slots__ = ("answers", "orphans", "waiting")

    def __init__(self) -> None:
        self.answers: list[tuple[int, int]] = []
        self.orphans: list[tuple[int, ToolResult]] = []
        self.waiting: dict[str, list[tuple[int, ToolCall]]] = {}

    def add(self, position: int, message: Message) -> None:
        """Take in the next message; what a system message quotes is neither a call nor a result."""
        role = message.role
        if role == "system":
            return
        for part in message.parts:
            kind = type(part)
            if kind is ToolCall:
                if role == "assistant":
                    self.waiting.setdefault(part.id, []).append((position, part))  # type: ignore[union-attr, arg-type]
            elif kind is ToolResult:
                self._answer(position, part)  # type: ignore[arg-type]

    def _answer(self, position: int, result: ToolResult) -> None:
        asked = self.waiting.get(result.call_id)
        if asked is None:
            self.orphans.append((position, result))
            return
        self.answers.append((position, asked.pop()[0]))
        if not asked:
            del self.waiting[result.call_id]

    def open_calls(self) -> list[tuple[int, ToolCall]]:
        """The calls that no result has answered yet, in order."""
        return sorted((each for asked in self.waiting.values() for each in asked), key=lambda each: each[0])


def pair(messages: Sequence[Message]) -> Pairing:
    """Pair calls and results, in one pass."""
    pairs = Pairs()
    for position, message in enumerate(messages):
        pairs.add(position, message)
    return Pairing(tuple(pairs.answers), tuple(pairs.orphans), tuple(pairs.open_calls()))


class Answered(NamedTuple):
    """A tool result, where it stands, and the call that it answers: the message's position, and the part's in it."""

    position: int
    part: int
    result: ToolResult
    call_position: int
    call_part: int
    call: ToolCall


def answered_calls(messages: Sequence[Message]) -> list[Answered]:
    """Every result that answers a call, in order, with the call; paired as ``pair`` does it."""
    waiting: dict[str, list[tuple[int, int, ToolCall]]] = {}
    found: list[Answered] = []
    for position, message in enumerate(messages):
        if message.role == "system":
            continue
        for index, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                if message.role == "assistant":
                    waiting.setdefault(part.id, []).append((position, index, part))
            elif isinstance(part, ToolResult) and (asked := waiting.get(part.call_id)):
                found.append(Answered(position, index, part, *asked.pop()))
    return found


def alone(result: ToolResult) -> Message:
    """A result as a message by itself, to be sized. What a provider gave may hold half a character, which no message of
    a tool may; the size is the same without it."""
    try:
        return Message("tool", (result,))
    except InputError:
        return Message("tool", (ToolResult(result.call_id, result.name, without_lone_surrogates(result.text)),))
