"""Records as bytes: what is written down of a decision, and how it is read again, as strictly as a plan is checked.

Only what was decided is written: of an edited message, the parts that are new, the others by their place in the
message it was made from; a dropped one is a position. So the text of a conversation is not in a store, save what a
layer itself wrote or kept on purpose: placeholders, excerpts, summaries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Annotated, NoReturn

import msgspec

from chatstack.context.records import MAX_ENTRIES, Edit, Insertion, Record
from chatstack.context.summaries import is_summary
from chatstack.values.messages import Message

VERSION = 2
"""Of the format. What has another is left alone."""
MAX_BYTES = 1_000_000
"""Of one record; what is larger is not shared."""

_FEW = msgspec.Meta(max_length=MAX_ENTRIES)
_Position = Annotated[int, msgspec.Meta(ge=0, le=2**31)]


class _Stored(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    covers: int
    drop: Annotated[tuple[_Position, ...], _FEW]
    replace: Annotated[tuple[Edit, ...], _FEW]
    insert: Annotated[tuple[Insertion, ...], _FEW]


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """What every version begins with."""

    version: int


class RecordError(ValueError):
    """A record that cannot be written down, or read; says why, and nothing of what is in it."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode
_decode_head = msgspec.msgpack.Decoder(_Head).decode


def stored(record: Record, messages: tuple[Message, ...]) -> bytes:
    """The bytes that stand for what was decided for these messages; equal records give equal bytes.

    Raises ``RecordError`` for what must stay in this process: it is too large, it is no edit of these messages, or it
    holds half a character.
    """
    if max(len(record.drop), len(record.replace), len(record.insert)) > MAX_ENTRIES:
        raise RecordError(f"it names more than {MAX_ENTRIES:,} messages")
    length = len(messages)
    if any(not 0 <= each.position < length for each in record.replace):
        raise RecordError("it is a decision about other messages")
    found = _Stored(
        VERSION,
        length,
        tuple(sorted(record.drop)),
        tuple(sorted(record.replace, key=_position_of)),
        tuple(sorted(record.insert, key=_position_of)),
    )
    _check(found, messages)
    try:
        data = _encode(found)
    except (ValueError, OverflowError) as error:
        raise RecordError("it cannot be encoded: half a character, or a number that is too large") from error
    if len(data) > MAX_BYTES:
        raise RecordError(f"it has {len(data):,} bytes, and at most {MAX_BYTES:,} are stored")
    return data


def restored(data: bytes, messages: tuple[Message, ...]) -> Record:
    """What was decided for exactly these messages. Raises ``RecordError`` for anything but what ``stored`` writes."""
    if len(data) > MAX_BYTES:
        raise RecordError(f"it has {len(data):,} bytes, and at most {MAX_BYTES:,} are read")
    try:
        version = _decode_head(data).version
        found = _decode(data) if version == VERSION else None
        exact = found is not None and _encode(found) == data
    except (msgspec.MsgspecError, ValueError, RecursionError):
        _refuse("it is no record, or a damaged one")
    if found is None:
        raise RecordError(f"it is of version {version} of the format, and this release knows version {VERSION} alone")
    if not exact:  # fields that nobody knows, twice the same field, numbers in another spelling
        raise RecordError("it is not in the form in which records are written")
    _check(found, messages)
    return Record(found.drop, found.replace, found.insert)


def _refuse(why: str) -> NoReturn:
    """Without the cause: what msgspec says may quote what is in the record."""
    raise RecordError(why) from None


def _position_of(entry: Edit | Insertion) -> int:
    return entry.position


def _check(found: _Stored, messages: tuple[Message, ...]) -> None:
    """What must be so in any record for these messages, whoever wrote it."""
    length = len(messages)
    if found.covers != length:
        raise RecordError("it was made for another number of messages")
    replaced = [each.position for each in found.replace]
    inserted = [each.position for each in found.insert]
    if not (_ascends(found.drop) and _ascends(replaced)) or inserted != sorted(inserted):
        raise RecordError("its positions are not in order, or named twice")
    touched = (*found.drop, *replaced)
    if len(set(touched)) < len(touched):
        raise RecordError("it drops and edits the same message")
    if any(not 0 <= position < length for position in touched) or any(not 0 <= at <= length for at in inserted):
        raise RecordError("a position is not among the messages")
    if any(messages[position].pinned or messages[position].role == "system" for position in touched):
        raise RecordError("it drops or edits a pinned message, or a system message")
    for edit in found.replace:
        parts = len(messages[edit.position].parts)
        if any(isinstance(part, int) and part >= parts for part in edit.parts):
            raise RecordError("it keeps a part that its message has not")
        if edit.mark is not None:
            raise RecordError("it changes the mark of a message")
    for each in found.insert:
        message = each.message
        if not message.mark or message.pinned or message.role in ("system", "user"):
            raise RecordError("what it inserts is pinned, not marked as a layer's, or speaks as the user or the system")
        if message.mark == "summary" and not is_summary(message):
            raise RecordError("what it inserts as a summary has not the form of one")
    annotations = [each.annotation for each in found.replace] + [each.annotation for each in found.insert]
    if any(each is not None and each.tokens_before < 0 for each in annotations):
        raise RecordError("an annotation has a negative size")


def _ascends(positions: Iterable[int]) -> bool:
    ordered = list(positions)
    return all(one < other for one, other in itertools.pairwise(ordered))
