"""Pairing of tool calls with their results."""

from __future__ import annotations

import itertools
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias, cast

from chatstack.context.edits.item_pairs import ItemPairs
from chatstack.errors import InputError
from chatstack.values.messages import Message, as_shaped
from chatstack.values.parts import ProviderItem, Text, ToolCall, ToolResult
from chatstack.values.surrogates import without_lone_surrogates


class Answered(NamedTuple):
    """A tool result, where it stands, and the call that it answers: the message's position, and the part's in it.

    ``is_displaced``: something else than results of that same message stands between the two.
    """

    position: int
    part: int
    result: ToolResult
    call_position: int
    call_part: int
    call: ToolCall
    is_displaced: bool


Place = tuple[int, int, int, int, bool]
"""A result's position and its part's, those of its call, and whether it is displaced: plain values, cheap for the
garbage collector."""
_WIDTH = 5
_ENDING = ("assistant", "system")
"""Roles whose messages end a round: results after one do not directly follow the calls before it."""


class Places:
    """Places of answers in one piece of memory: 20 bytes in place of 200, and nothing for the garbage collector."""

    __slots__ = ("_numbers",)

    def __init__(self, places: Iterable[Place] = ()) -> None:
        self._numbers = array("i", itertools.chain.from_iterable(places))

    def append(self, place: Place) -> None:
        """Add the next one."""
        self._numbers.extend(place)

    def first(self, count: int) -> Places:
        """Return the first places, that many."""
        made = Places()
        made._numbers = self._numbers[: _WIDTH * count]
        return made

    def copy(self) -> Places:
        """Return a copy of its own."""
        return self.first(len(self))

    def behind(self, head: int) -> Places:
        """Return the same places, with that many messages before all."""
        made = self.copy()
        for column in (0, 2):  # the positions of results, and of calls
            made._numbers[column::_WIDTH] = array("i", [at + head for at in self._numbers[column::_WIDTH]])
        return made

    def __len__(self) -> int:
        return len(self._numbers) // _WIDTH

    def __getitem__(self, number: int) -> Place:
        (place,) = self.between(number, number + 1)
        return place

    def __iter__(self) -> Iterator[Place]:
        return self.between(0, len(self._numbers))

    def between(self, first: int, end: int) -> Iterator[Place]:
        """Yield the places from that number on to before another."""
        numbers = iter(self._numbers[_WIDTH * first : _WIDTH * end].tolist())
        return zip(numbers, numbers, numbers, numbers, map(bool, numbers), strict=True)


Paired: TypeAlias = tuple[Places, list[int]]
"""The places of all answers in messages, in order, and the positions of calls without one."""


class Pairs:
    """An incremental pairing of calls and results.

    A result answers the newest unanswered call of its id before it: ids are used again within one conversation, so
    an id alone says nothing. ``answers``, if given, gets all places of answers.
    """

    __slots__ = ("_answers", "_round", "displaced", "items", "orphans", "waiting")

    def __init__(self, answers: list[Place] | Places | None = None) -> None:
        self._answers = answers
        self.orphans: list[tuple[int, int, ToolResult]] = []
        """Results without a call, each with its position and its part's."""
        self.waiting: dict[str, list[tuple[int, int, ToolCall]]] = {}
        self.displaced = 0
        """Number of results that do not directly follow their calls."""
        self.items: ItemPairs | None = None
        """The pairs of provider items; None while there is none."""
        self._round = -1
        """The position of the message whose results may come next, -1 once something else has come."""

    def extend(self, messages: Sequence[Message], start: int = 0) -> None:
        """Add the messages from that position on."""
        for position in range(start, len(messages)):
            message = messages[position]
            parts = message.parts
            kind = type(parts[0]) if len(parts) == 1 else None
            if kind is Text:  # nearly all messages with one part are a text or a result
                self._round = -1
            elif kind is ToolResult and message.role == "tool":
                self._answer(position, 0, parts[0])  # type: ignore[arg-type]
            else:
                self.add(position, message)

    def branched(self, messages: Sequence[Message], latest_assistant: int) -> Pairs:
        """Return the pairs of these messages: all that were added but for users' texts at the end."""
        made = Pairs(None if self._answers is None else self._answers.copy())
        made.orphans, made.displaced = [*self.orphans], self.displaced
        made.waiting = {id: [*asked] for id, asked in self.waiting.items()}
        made.items = None if self.items is None else self.items.copy()
        latest = Pairs()
        latest.extend(messages, max(0, latest_assistant))
        made._round = latest._round
        return made

    def add(self, position: int, message: Message) -> None:
        """Add the next message.

        Parts of a system message are neither calls nor results. Provider items among results do not displace the
        results after them.
        """
        role, parts = message.role, message.parts
        if role in _ENDING or not parts:
            self._round = -1
            if role == "system":
                return
        has_calls = False
        for index, part in enumerate(parts):
            kind = type(part)
            if kind is ToolResult:
                self._answer(position, index, part)  # type: ignore[arg-type]
            elif kind is ToolCall and role == "assistant":
                self.waiting.setdefault(part.id, []).append((position, index, part))  # type: ignore[union-attr, arg-type]
                has_calls = True
            elif kind is ProviderItem:
                if self.items is None:
                    self.items = ItemPairs()
                self.items.add(position, part)  # type: ignore[arg-type]
                if role != "tool":
                    self._round = -1
            else:
                self._round = -1
        if has_calls:
            self._round = position

    def _answer(self, position: int, index: int, result: ToolResult) -> None:
        asked = self.waiting.get(result.call_id)
        if asked is None:
            self.orphans.append((position, index, result))
            return
        call_position, call_part, _ = asked.pop()
        if not asked:
            del self.waiting[result.call_id]
        is_displaced = call_position != self._round
        if is_displaced:
            self.displaced += 1
        if self._answers is not None:
            self._answers.append((position, index, call_position, call_part, is_displaced))

    def open_calls(self) -> list[tuple[int, int, ToolCall]]:
        """The calls that no result has answered yet, in order, each with its position and its part's."""
        return sorted((each for asked in self.waiting.values() for each in asked), key=itemgetter(0, 1))

    def paired(self) -> Paired:
        """Return the places of the answers, and the positions of calls without one, as far as it has come."""
        answers = self._answers.copy() if isinstance(self._answers, Places) else Places(self._answers or ())
        return answers, [at for asked in self.waiting.values() for at, _, _ in asked]

    def need_repair(self, last: int) -> bool:
        """Return True if a provider would refuse the messages. The calls of the message at ``last`` may still wait."""
        if self.orphans or self.displaced:
            return True
        return bool(self.waiting) and any(at != last for asked in self.waiting.values() for at, _, _ in asked)

    def leftovers(self, last: int) -> Counter[str]:
        """Count what does not pair, by description; the calls of the message at ``last`` still wait, and are not
        counted."""
        found = Counter(f"result without call: {result.call_id}" for _, _, result in self.orphans)
        found.update(f"call without result: {call.id}" for at, _, call in self.open_calls() if at != last)
        found.update(() if self.items is None else self.items.leftovers())
        return found

    def waiting_in(self, last: int) -> Counter[str]:
        """Count the calls of the message at ``last`` that still wait for their results, by id."""
        return Counter(call.id for at, _, call in self.open_calls() if at == last)


def pair(messages: Sequence[Message]) -> Pairs:
    """Pair calls and results, in one pass."""
    return places_of(messages)[0]


def answered_calls(messages: Sequence[Message]) -> list[Answered]:
    """Return every result that answers a call, in order, with the call; paired as in ``pair``."""
    return [answered_at(messages, place) for place in places_of(messages)[1]]


def answered_at(messages: Sequence[Message], place: Place) -> Answered:
    """Return the result in a place, and its call."""
    position, part, call_position, call_part, is_displaced = place
    result, call = messages[position].parts[part], messages[call_position].parts[call_part]
    return Answered(
        position, part, cast("ToolResult", result), call_position, call_part, cast("ToolCall", call), is_displaced
    )


def places_of(messages: Sequence[Message]) -> tuple[Pairs, list[Place]]:
    """Return the pairs of all messages, and the places of the answers among them, in order."""
    places: list[Place] = []
    pairs = Pairs(places)
    pairs.extend(messages)
    return pairs, places


def is_interrupted(messages: Sequence[Message], positions: Sequence[int]) -> bool:
    """Return True if a system message stands before results of a call; the other messages are at ``positions``."""
    return any(
        after - before > 1 and any(type(part) is ToolResult for part in messages[after].parts)
        for before, after in itertools.pairwise(positions)
    )


def as_it_came(message: Message, at: int) -> ToolResult:
    """Return the result at that place of a message, with the content that it had before any edit but its shaping."""
    return _before(message, at, as_shaped(message))


def in_full(message: Message, at: int) -> ToolResult:
    """Return the result at that place of a message as its tool gave it; its handle is of that."""
    return _before(message, at, message.original)


def _before(message: Message, at: int, earlier: Message) -> ToolResult:
    """Return the same result in an earlier form of its message.

    Edits leave parts in their places, so that place is tried first: a message may hold thousands of parts.
    """
    part, parts = cast("ToolResult", message.parts[at]), earlier.parts
    if len(parts) == len(message.parts):
        there = parts[at]
        if isinstance(there, ToolResult) and there.call_id == part.call_id:
            return there
    if part in parts:
        return part
    return next((each for each in earlier.results if each.call_id == part.call_id), part)


def alone(result: ToolResult) -> Message:
    """Return a message with this result only, to be sized. Lone surrogates, which a provider's result may contain and a
    tool message may not, are replaced; the size is the same."""
    try:
        return Message("tool", (result,))
    except InputError:
        return Message("tool", (ToolResult(result.call_id, result.name, without_lone_surrogates(result.text)),))
