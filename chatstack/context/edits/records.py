"""Records: the edits in force for one history, by position, and how they are carried out again."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from chatstack.context.edits.plans import Plan
from chatstack.values.messages import Annotation, Message, last_edit_of
from chatstack.values.parts import Part, ToolCall, ToolResult

MAX_ENTRIES = 20_000
"""Maximum number of messages that one stored record may drop, edit or insert, for each of the three."""
FEW = msgspec.Meta(max_length=MAX_ENTRIES)
Position = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class Edit(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """An edit of one message, without its text: in ``parts``, a number stands for that part of the original message."""

    position: Position
    parts: Annotated[tuple[Position | Part, ...], FEW]
    extra_json: str | None
    mark: str | None
    annotation: Annotation | None

    def applied(self, old: Message) -> Message | None:
        """Return the message with this edit; None if it lacks a part that the edit keeps or replaces."""
        parts: list[Part] = []
        for at, part in enumerate(self.parts):
            if type(part) is int:
                if part >= len(old.parts):
                    return None
                parts.append(old.parts[part])
                continue
            there = old.parts[at] if at < len(old.parts) else None
            # Callers may change the ids of calls in a history: a replaced part takes the current id.
            if type(part) is ToolResult and type(there) is ToolResult and part.call_id != there.call_id:
                part = msgspec.structs.replace(part, call_id=there.call_id)
            elif type(part) is ToolCall and type(there) is ToolCall and part.id != there.id:
                part = msgspec.structs.replace(part, id=there.id)
            elif type(part) in (ToolResult, ToolCall) and type(part) is not type(there):
                return None
            parts.append(part)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        if self.extra_json is None and self.mark is None:  # nearly all of them, and soon made
            return old.edited(parts=tuple(parts), annotation=self.annotation)
        extra_json = old.extra_json if self.extra_json is None else self.extra_json
        mark = old.mark if self.mark is None else self.mark
        return old.edited(parts=tuple(parts), extra_json=extra_json, mark=mark, annotation=self.annotation)


class Insertion(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A layer's message, inserted before a position; the length of the history means its end."""

    position: Position
    message: Message
    annotation: Annotation | None

    def made(self) -> Message:
        """Return the message, with its annotation."""
        if self.annotation is None or self.message.annotation is not None:
            return self.message
        return self.message.edited(annotation=self.annotation)


position_of: Callable[[Edit | Insertion], int] = attrgetter("position")


class Patch(NamedTuple):
    """A replacement of the messages from ``start`` to before ``stop`` by others, or by none."""

    start: int
    stop: int
    put: tuple[Message, ...]


class _WorkedOut:
    """Values computed from a record once. They are slots, as a dict takes six times their bytes, and a conversation has
    a record for each of its edits."""

    __slots__ = ("fingerprint", "patches", "reach")

    fingerprint: int
    """A hash of the record, valid in this process only."""
    patches: tuple[Patch, ...]
    """The deletions and insertions in order, neighbours joined, as every later call applies them."""
    reach: int
    """The minimum length of a history that these edits fit."""


class Record(_WorkedOut, msgspec.Struct, frozen=True):
    """The edits in force for one history: dropped, edited and inserted messages.

    Positions are those in the history, without system messages, in ascending order. It holds positions and new content,
    never a message of the caller, so it may outlive the conversation that it was made for.
    """

    drop: tuple[int, ...] = ()
    replace: tuple[Edit, ...] = ()
    insert: tuple[Insertion, ...] = ()

    if not TYPE_CHECKING:  # else any attribute would be taken for one of these

        def __getattr__(self, name: str) -> object:
            """Work out what is asked for the first time: later on, its slot is found first."""
            if name == "patches":
                found = self._joined()
            elif name == "reach":
                last = max((*self.drop, *map(position_of, self.replace)), default=-1)
                found = max((last + 1, *map(position_of, self.insert)))
            elif name == "fingerprint":
                found = hash(self)
            else:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            force_setattr(self, name, found)
            return found

    def _joined(self) -> tuple[Patch, ...]:
        single = [Patch(each.position, each.position, (each.made(),)) for each in self.insert]
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

    def touches(self, position: int) -> bool:
        """Return True if it leaves out or edits the message at that position."""
        if position >= self.reach:
            return False
        dropped = bisect_left(self.drop, position)
        replaced = bisect_left(self.replace, position, key=position_of)
        return position in (
            *self.drop[dropped : dropped + 1],
            *map(position_of, self.replace[replaced : replaced + 1]),
        )

    def with_summary(self, summary: Message) -> Record:
        """Return the same edits with another summary."""
        insert = tuple(
            Insertion(each.position, summary, summary.annotation) if each.message.mark == "summary" else each
            for each in self.insert
        )
        return Record(self.drop, self.replace, insert)

    def edited(self, messages: Sequence[Message], positions: Sequence[int]) -> dict[int, Message] | None:
        """Return the edited messages by position in the history, made from a request that has the history at these
        positions; None if a message lacks the parts that its edit needs."""
        made: dict[int, Message] = {}
        for each in self.replace:
            message = each.applied(messages[positions[each.position]])
            if message is None:
                return None
            made[each.position] = message
        return made

    def carried_out(
        self, messages: tuple[Message, ...], head: int, edited: Mapping[int, Message]
    ) -> tuple[Message, ...]:
        """Return the messages as edited, for a history that begins at ``head`` and is in one piece."""
        after = list(messages)
        for position, message in edited.items():
            after[position + head] = message
        for start, stop, put in reversed(self.patches):  # from the end, so that the positions before stay true
            after[start + head : stop + head] = put
        return tuple(after)

    def saved(self, sums: Sequence[int], size_of: Callable[[Message], int], edited: Mapping[int, Message]) -> int:
        """Return the tokens that the edits save in a history with these prefix sums of sizes."""
        saved = sum(sums[stop] - sums[start] - sum(map(size_of, put)) for start, stop, put in self.patches)
        return saved + sum([sums[position + 1] - sums[position] - size_of(new) for position, new in edited.items()])

    def plan(self, positions: Sequence[int], end: int, edited: Mapping[int, Message]) -> Plan:
        """Return the edits as a plan for a request of ``end`` messages that has the history at these positions."""
        return Plan(
            strategy="replay",
            reason="decided before",
            drop=tuple(positions[each] for each in self.drop),
            replace=tuple((positions[each], message) for each, message in edited.items()),
            insert=tuple(
                (positions[each.position] if each.position < len(positions) else end, each.made())
                for each in self.insert
            ),
        )


def edit_of(position: int, old: Message, new: Message) -> Edit:
    """Return the difference between a message and its edited form."""
    parts: tuple[int | Part, ...]
    if len(old.parts) == len(new.parts) == 1:  # then a part that is not in its place is in none
        parts = new.parts if old.parts != new.parts else (0,)
    else:
        places = {part: at for at, part in reversed([*enumerate(old.parts)])}
        parts = tuple([_part(at, part, old.parts, places) for at, part in enumerate(new.parts)])
        if int not in map(type, parts):  # the tuple of the message serves for both
            parts = new.parts
    extra_json = None if new.extra_json == old.extra_json else new.extra_json
    return Edit(position, parts, extra_json, None if new.mark == old.mark else new.mark, last_edit_of(new))


def _part(at: int, part: Part, old: tuple[Part, ...], places: Mapping[Part, int]) -> int | Part:
    """Return the place of an equal part, the same place first; the part itself if there is none."""
    if at < len(old) and old[at] == part:
        return at
    return places.get(part, part)


class Made(NamedTuple):
    """A record, and its edited messages by position in the history."""

    record: Record
    edited: Mapping[int, Message]


NOTHING_MADE = Made(Record(), {})


def named(made: Made) -> Made:
    """Return a record for a store: its annotations are complete, as other processes have no originals to do that by."""
    replace = [
        msgspec.structs.replace(each, annotation=made.edited[each.position].annotation)
        if each.annotation is last_edit_of(made.edited[each.position])
        else each
        for each in made.record.replace
    ]
    return Made(msgspec.structs.replace(made.record, replace=tuple(replace)), made.edited)


def record_in_place(
    messages: Sequence[Message], head: int, replaced: Mapping[int, Message], known: Made = NOTHING_MADE
) -> Made:
    """Return the record of edits that move no message: these messages by their position in the request, in which the
    history begins at ``head``. ``known`` is the record of an earlier request of the same history."""
    earlier = {each.position: each for each in known.record.replace}
    edited = {at - head: replaced[at] for at in sorted(replaced) if replaced[at] is not messages[at]}
    replace = [
        earlier[at] if known.edited.get(at) is message else edit_of(at, messages[at + head], message)
        for at, message in edited.items()
    ]
    return Made(Record(replace=tuple(replace)), edited)


def record_of(
    positions: Sequence[int],
    before: tuple[Message, ...],
    after: Sequence[tuple[Message, int | None]],
    known: Made = NOTHING_MADE,
) -> Made:
    """Return the record of all edits so far. ``after`` are the resulting messages, each with its place in ``before``;
    ``known`` is the record of an earlier request of the same history."""
    index = {position: number for number, position in enumerate(positions)}
    kept = {origin for _, origin in after if origin is not None}
    earlier = {each.position: each for each in known.record.replace}
    replace: list[Edit] = []
    insert: list[Insertion] = []
    edited: dict[int, Message] = {}
    following = len(index)
    for message, origin in reversed(after):
        if origin is None:
            insert.append(Insertion(following, message, message.annotation))
            continue
        following = index.get(origin, following)
        if message is not before[origin]:
            at = index[origin]
            edited[at] = message
            is_known = known.edited.get(at) is message
            replace.append(earlier[at] if is_known else edit_of(at, before[origin], message))
    record = Record(
        tuple(number for position, number in index.items() if position not in kept),
        tuple(reversed(replace)),
        tuple(reversed(insert)),
    )
    return Made(record, dict(reversed(edited.items())))
