"""Grounding: the share of the values in recorded tool calls that were still in the request.

Of the values in the arguments of a recorded call, those count that occur word for word in the full context: the text of
all messages before the call (contents, arguments of calls as the JSON text and as the values in it) and the
instructions. Grounded are those that still occur in the request; a message that a layer edited counts by its new text.
Far ones are those that occur in the full context only outside the system messages, the instructions, the first and the
latest user message, and the last three units.

All of this is told three times. *All*: as above. *Bare*: without what stands only in a list of names that an edit left
(``context/name_lists.py``): a bare word may or may not help a model. *Attributed*: what stands only in a list counts if
its label leads to a call that held the value (``attributing.py``); a list without labels attributes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import NamedTuple

import msgspec

from chatstack.context.name_lists import Names, without_lists
from chatstack.context.units import units_of
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.attributing import Attribution
from chatstack.workbench.replay.measures.values import text_of, values_of

NEAR_UNITS = 3


class Wanted(msgspec.Struct, frozen=True):
    """A value that a recorded call took from its full context; ``holders`` numbers the texts that hold it."""

    value: str
    holders: frozenset[int]
    is_far: bool


class Sight(Enum):
    """The place where a value was found: nowhere, only in a list of names, there by its label, or in a text."""

    NONE = 0
    LISTED = 1
    ATTRIBUTED = 2
    BARE = 3


class _Text(NamedTuple):
    """The text of a message that a layer wrote: the whole, that without its lists of names, and their rows."""

    whole: str
    bare: str
    rows: tuple[Names, ...]


class _Held(NamedTuple):
    """The texts of a request: the numbers of recorded ones, and all others."""

    numbers: set[int]
    others: Iterable[_Text]


class Grounding(msgspec.Struct):
    """Counts of the values that were looked for and found, and of the far ones among them.

    ``bare`` counts the found ones that do not stand in a list of names alone; ``attributed`` those, and the ones in a
    list whose label leads to the call that held them.
    """

    values: int = 0
    found: int = 0
    far_values: int = 0
    far_found: int = 0
    bare: int = 0
    far_bare: int = 0
    attributed: int = 0
    far_attributed: int = 0

    @property
    def share(self) -> float | None:
        """The share that was found, 0 to 1; None if nothing was looked for."""
        return _share(self.found, self.values)

    @property
    def far_share(self) -> float | None:
        """The share of far values that was found, 0 to 1; None if none was looked for."""
        return _share(self.far_found, self.far_values)

    @property
    def bare_share(self) -> float | None:
        """The share that was found outside lists of names; None if nothing was looked for."""
        return _share(self.bare, self.values)

    @property
    def far_bare_share(self) -> float | None:
        """The share of far values that was found outside lists of names; None if none was looked for."""
        return _share(self.far_bare, self.far_values)

    @property
    def attributed_share(self) -> float | None:
        """The share that was found, in lists of names only by its label; None if nothing was looked for."""
        return _share(self.attributed, self.values)

    @property
    def far_attributed_share(self) -> float | None:
        """The share of far values that was found, in lists only by its label; None if none was looked for."""
        return _share(self.far_attributed, self.far_values)

    def count(self, wanted: Wanted, sight: Sight) -> None:
        """Count one value."""
        found, bare, attributed = sight is not Sight.NONE, sight is Sight.BARE, sight in (Sight.BARE, Sight.ATTRIBUTED)
        self.values += 1
        self.found += found
        self.bare += bare
        self.attributed += attributed
        if wanted.is_far:
            self.far_values += 1
            self.far_found += found
            self.far_bare += bare
            self.far_attributed += attributed

    def merge(self, other: Grounding) -> None:
        """Add the counts of other calls."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Evidence:
    """An index of one conversation: which of its texts hold which values.

    A text is searched once for each value, however many calls and policies ask, and a message that a policy sends
    unchanged is not searched again. Only texts that a layer wrote are searched anew.
    """

    def __init__(self, messages: Sequence[Message], instructions: str = "") -> None:
        self._messages = messages
        self._instructions = instructions
        self._numbers: dict[Message, int] = {}
        self._at = [self._numbers.setdefault(message, len(self._numbers)) for message in messages]
        self._texts = [text_of(message) for message in self._numbers]
        self._known: dict[str, tuple[int, set[int]]] = {}
        self._wanted: dict[int, tuple[Wanted, ...]] = {}
        self._edited: dict[Message, _Text] = {}
        self._attribution = Attribution(messages)

    def weigh(self, position: int, sent: ChatRequest | None, into: Grounding) -> list[str]:
        """Count the values that the recorded message at that position needs and ``sent`` holds; return the rest.

        ``sent`` is None for a refused call, which holds no value.
        """
        wanted = self._wanted_at(position)
        lost: list[str] = []
        if not wanted:
            return lost
        held = _Held(set(), ()) if sent is None else self._held(sent)
        for each in wanted:
            sight = self._sight_of(each, held, position)
            into.count(each, sight)
            if sight is Sight.NONE:
                lost.append(each.value)
        return lost

    def _sight_of(self, wanted: Wanted, held: _Held, position: int) -> Sight:
        value = wanted.value
        if not wanted.holders.isdisjoint(held.numbers) or any(value in text.bare for text in held.others):
            return Sight.BARE
        listed = [text for text in held.others if text.rows and value in text.whole]
        rows = (
            row for text in listed for row in text.rows if row.label and value in f"{row.label} {' '.join(row.names)}"
        )
        if any(self._attribution.holds(row.label, value, position) for row in rows):
            return Sight.ATTRIBUTED
        return Sight.LISTED if listed else Sight.NONE

    def _held(self, sent: ChatRequest) -> _Held:
        """Return the numbers of the conversation's texts in the request, and all other texts in it."""
        instructions = sent.options.instructions
        numbers: set[int] = set()
        others: dict[_Text, None] = {_Text(instructions, instructions, ()): None}
        for message in sent.messages:
            number = self._numbers.get(message)
            if number is not None:
                numbers.add(number)
                continue
            if message not in self._edited:
                self._edited[message] = _text_of_edited(message)
            others[self._edited[message]] = None
        return _Held(numbers, others)

    def _wanted_at(self, position: int) -> tuple[Wanted, ...]:
        if position not in self._wanted:
            self._wanted[position] = tuple(self._find(position))
        return self._wanted[position]

    def _find(self, position: int) -> Iterator[Wanted]:
        calls = self._messages[position].calls
        values = [value for call in calls for value in values_of(call)]
        if not values:
            return
        near = self._near(position)
        end = max(self._at[:position], default=-1) + 1
        for value in values:
            holders = self._holders(value, end)
            stands_in_instructions = value in self._instructions
            if holders or stands_in_instructions:
                yield Wanted(value, holders, not stands_in_instructions and holders.isdisjoint(near))

    def _holders(self, value: str, end: int) -> frozenset[int]:
        """Return the numbers below ``end`` of the texts that hold a value.

        Texts are numbered by their first occurrence, so those before a call are below its ``end``.
        """
        looked, found = self._known.get(value, (0, set[int]()))
        if looked < end:
            found.update(number for number in range(looked, end) if value in self._texts[number])
            self._known[value] = (end, found)
        return frozenset(number for number in found if number < end)

    def _near(self, position: int) -> set[int]:
        """Return the numbers of the texts that any policy is expected to keep."""
        before = self._messages[:position]
        users = [at for at, message in enumerate(before) if message.role == "user"]
        near = {at for at, message in enumerate(before) if message.role == "system"}
        near.update(users[:1], users[-1:])
        for unit in units_of(before)[-NEAR_UNITS:]:
            near.update(unit.positions)
        return {self._at[at] for at in near}


def _text_of_edited(message: Message) -> _Text:
    bare, rows = without_lists(message)
    whole = text_of(message)
    return _Text(whole, text_of(bare) if rows else whole, rows)


def _share(found: int, values: int) -> float | None:
    return found / values if values else None
