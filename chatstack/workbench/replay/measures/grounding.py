"""Grounding: the share of the values in recorded tool calls that were still in the request.

Of the values in the arguments of a recorded call, those count that occur word for word in the full context: the text of
all messages before the call (contents, arguments of calls as the JSON text and as the values in it) and the
instructions. Grounded are those that still occur in the request; a message that a layer edited counts by its new text.
Far ones are those that occur in the full context only outside the system messages, the instructions, the first and the
latest user message, and the last three units.

All of this is told three times. *All*: as above. *Bare*: without what stands only in a list of names that an edit left
(``context/strategies/name_lists.py``): a bare word may or may not help a model. *Attributed*: what stands only in a
list counts if its label leads to a call that held the value (``attributing.py``); a list without labels attributes
nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence, Set
from enum import Enum

import msgspec

from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.attributing import Attribution
from chatstack.workbench.replay.measures.holding import EditedText, HeldTexts, SearchedTexts, held_below
from chatstack.workbench.replay.measures.near import Near
from chatstack.workbench.replay.measures.values import text_of, values_of


class Wanted(msgspec.Struct, frozen=True):
    """A value that a recorded call took from its full context; ``holders`` numbers the texts that hold it.

    Only those below ``end`` are of that context.
    """

    value: str
    holders: Set[int]
    end: int
    is_far: bool


class Sight(Enum):
    """The place where a value was found: nowhere, only in a list of names, there by its label, or in a text."""

    NONE = 0
    LISTED = 1
    ATTRIBUTED = 2
    BARE = 3


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
        self._ends = [0, *itertools.accumulate((number + 1 for number in self._at), max)]
        self._texts = SearchedTexts(map(text_of, self._numbers))
        self._near = Near(messages)
        self._known: dict[str, tuple[int, int, set[int]]] = {}
        self._wanted: dict[int, tuple[Wanted, ...]] = {}
        self._edited: dict[Message, EditedText] = {}
        self._attribution = Attribution(messages)

    def held(self) -> HeldTexts:
        """Return the texts of a request, which is empty yet, for the requests of one policy."""
        return HeldTexts(self._numbers, self._edited)

    def weigh(
        self, position: int, sent: ChatRequest | None, into: Grounding, held: HeldTexts | None = None
    ) -> list[str]:
        """Count the values that the recorded message at that position needs and ``sent`` holds; return the rest.

        ``sent`` is None for a refused call, which holds no value. ``held`` are the texts of the request before, which
        go on to this one.
        """
        wanted = self._wanted_at(position)
        lost: list[str] = []
        if not wanted:
            return lost
        held = held or self.held()
        if sent is not None:
            held.follow(sent)
        for each in wanted:
            sight = Sight.NONE if sent is None else self._sight_of(each, sent, held, position)
            into.count(each, sight)
            if sight is Sight.NONE:
                lost.append(each.value)
        return lost

    def _sight_of(self, wanted: Wanted, sent: ChatRequest, held: HeldTexts, position: int) -> Sight:
        value = wanted.value
        if held_below(wanted.holders, wanted.end, held.numbers) or value in sent.options.instructions:
            return Sight.BARE
        if held.says(value):
            return Sight.BARE
        listed = [text for text in held.listing if value in text.whole]
        rows = (
            row for text in listed for row in text.rows if row.label and value in f"{row.label} {' '.join(row.names)}"
        )
        if any(self._attribution.holds(row.label, value, position) for row in rows):
            return Sight.ATTRIBUTED
        return Sight.LISTED if listed else Sight.NONE

    def _wanted_at(self, position: int) -> tuple[Wanted, ...]:
        if position not in self._wanted:
            self._wanted[position] = tuple(self._find(position))
        return self._wanted[position]

    def _find(self, position: int) -> Iterator[Wanted]:
        calls = self._messages[position].calls
        values = [value for call in calls for value in values_of(call)]
        if not values:
            return
        near = {self._at[at] for at in self._near.before(position)}
        end = self._ends[position]
        for value in values:
            first, holders = self._holders(value, end)
            stands_in_instructions = value in self._instructions
            if first < end or stands_in_instructions:
                yield Wanted(value, holders, end, not stands_in_instructions and holders.isdisjoint(near))

    def _holders(self, value: str, end: int) -> tuple[int, set[int]]:
        """Return the numbers of the texts that hold a value, all of those below ``end`` and others, and the first one.

        Texts are numbered by their first occurrence, so those before a call are below its ``end``.
        """
        looked, first, found = self._known.get(value, (0, len(self._numbers), set[int]()))
        if looked < end:
            numbers = list(self._texts.holding(value, looked, end))
            found.update(numbers)
            first = min([first, *numbers[:1]])
            self._known[value] = (end, first, found)
        return first, found


def _share(found: int, values: int) -> float | None:
    return found / values if values else None
