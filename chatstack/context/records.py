"""Records: what was decided for one history, and how it is carried out again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple

import msgspec

from chatstack.context.plans import Plan
from chatstack.values.messages import Message


class Patch(NamedTuple):
    """In the place of the messages from ``start`` to before ``stop`` stand others, or none."""

    start: int
    stop: int
    put: tuple[Message, ...]


class Record(msgspec.Struct, frozen=True, dict=True):
    """What was decided for one history: which of its messages are left out, stand edited, or follow something of
    ours. Positions are those in the history, without system messages."""

    drop: tuple[int, ...] = ()
    replace: tuple[tuple[int, Message], ...] = ()
    insert: tuple[tuple[int, Message], ...] = ()

    @cached_property
    def patches(self) -> tuple[Patch, ...]:
        """What is left out and put in, in order, neighbours joined: with ``replace``, what every later call does."""
        single: list[Patch] = [Patch(position, position, (message,)) for position, message in self.insert]
        single += [Patch(position, position + 1, ()) for position in self.drop]
        single.sort(key=lambda each: each[:2])  # what is inserted before a message comes before its own patch
        joined: list[Patch] = []
        for each in single:
            if joined and joined[-1].stop == each.start:
                before = joined.pop()
                joined.append(Patch(before.start, each.stop, before.put + each.put))
            else:
                joined.append(each)
        return tuple(joined)

    @cached_property
    def touched(self) -> frozenset[int]:
        """The positions of messages that it leaves out or edits."""
        return frozenset((*self.drop, *(position for position, _ in self.replace)))

    def carried_out(self, messages: tuple[Message, ...], head: int) -> tuple[Message, ...]:
        """The messages as decided, where the history begins at ``head``, and nothing else stands in it."""
        after = list(messages)
        for position, message in self.replace:
            after[position + head] = message
        for start, stop, put in reversed(self.patches):  # from the end, so that the positions before stay true
            after[start + head : stop + head] = put
        return tuple(after)

    def saved(self, sums: Sequence[int], size_of: Callable[[Message], int]) -> int:
        """By how much it makes a history smaller whose sizes sum up like that."""
        saved = sum(sums[stop] - sums[start] - sum(map(size_of, put)) for start, stop, put in self.patches)
        return saved + sum(sums[position + 1] - sums[position] - size_of(new) for position, new in self.replace)

    def plan(self, positions: Sequence[int], end: int) -> Plan:
        """The same as a plan for a request of ``end`` messages, where the history stands at these positions."""
        return Plan(
            strategy="replay",
            reason="decided before",
            drop=tuple(positions[each] for each in self.drop),
            replace=tuple((positions[each], message) for each, message in self.replace),
            insert=tuple((positions[at] if at < len(positions) else end, new) for at, new in self.insert),
        )


class Decision:
    """A record that was found for a history, kept with it so that the next call need not look for it again."""

    __slots__ = ("covers", "edition", "length", "record", "saved")

    def __init__(self, record: Record | None, covers: int, length: int, edition: int) -> None:
        self.record = record
        self.covers = covers
        """The record was made for that many messages."""
        self.length = length
        """How long the history was when it was looked for."""
        self.edition = edition
        """The memory's, when it was; another one means that something was decided for such a history since."""
        self.saved: tuple[object, int] | None = None
        """By that counter, how much smaller it makes the history."""


def record_of(
    positions: Sequence[int], before: tuple[Message, ...], after: Sequence[tuple[Message, int | None]]
) -> Record:
    """All that was decided up to now. ``after`` are the messages that are left, each with its place in ``before``."""
    index = {position: number for number, position in enumerate(positions)}
    kept = {origin for _, origin in after if origin is not None}
    replace: list[tuple[int, Message]] = []
    insert: list[tuple[int, Message]] = []
    following = len(index)
    for message, origin in reversed(after):
        if origin is None:
            insert.append((following, message))
        else:
            following = index.get(origin, following)
            if message is not before[origin]:
                replace.append((index[origin], message))
    return Record(
        tuple(number for position, number in index.items() if position not in kept),
        tuple(reversed(replace)),
        tuple(reversed(insert)),
    )


def covered(record: Record, messages: Sequence[Message]) -> int:
    """For how many of a history's messages a decision holds, whatever follows them.

    Up to the model's latest message, and whatever the decision itself names. What came after that may not come again:
    a reminder that a caller appends to each request, and does not keep.
    """
    latest = next((at for at in range(len(messages) - 1, -1, -1) if messages[at].role == "assistant"), -1)
    named = (*record.drop, *(position for position, _ in record.replace))
    inserted = (position for position, _ in record.insert)
    return min(len(messages), max(latest + 1, max(named, default=-1) + 1, max(inserted, default=0), 1))
