"""Records as bytes: encoding decisions, and decoding them, as strictly as a plan is checked.

Only the decision is written: of an edited message, the new parts, and the others by their place in the original; a
dropped message is a position. So a store holds no text of a conversation but what a layer itself wrote or kept on
purpose: placeholders, excerpts, summaries.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from chatstack.context.edits.records import FEW, MAX_ENTRIES, Edit, Insertion, Position, Record, position_of
from chatstack.context.edits.summaries import is_summary
from chatstack.values.messages import Message

VERSION = 2
"""Version of the format. Records of another version are left as they are."""
MAX_BYTES = 1_000_000
"""Maximum size of a record in bytes; larger ones are not shared."""


class _Stored(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    covers: int
    drop: Annotated[tuple[Position, ...], FEW]
    replace: Annotated[tuple[Edit, ...], FEW]
    insert: Annotated[tuple[Insertion, ...], FEW]


class _Head(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a record, the same in every version."""

    version: int


class RecordError(ValueError):
    """A record that cannot be encoded or decoded. The message gives the reason, and quotes nothing of the record."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode
_decode_head = msgspec.msgpack.Decoder(_Head).decode


def stored(record: Record, messages: tuple[Message, ...]) -> bytes:
    """Encode the decision for these messages; equal records give equal bytes.

    Raises ``RecordError`` for a record that is too large, is not an edit of these messages, or contains a lone
    surrogate.
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
        tuple(sorted(record.replace, key=position_of)),
        tuple(sorted(record.insert, key=position_of)),
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
    """Decode the decision for exactly these messages. Raises ``RecordError`` for all but what ``stored`` writes."""
    if len(data) > MAX_BYTES:
        raise RecordError(f"it has {len(data):,} bytes, and at most {MAX_BYTES:,} are read")
    try:
        version = _decode_head(data).version
        found = _decode(data) if version == VERSION else None
        exact = found is not None and _encode(found) == data
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise RecordError("it is no record, or a damaged one") from None  # an error of msgspec may quote the record
    if found is None:
        raise RecordError(f"it is of version {version} of the format, and this release knows version {VERSION} alone")
    if not exact:  # fields that nobody knows, twice the same field, numbers in another spelling
        raise RecordError("it is not in the form in which records are written")
    _check(found, messages)
    return Record(found.drop, found.replace, found.insert)


def _check(found: _Stored, messages: tuple[Message, ...]) -> None:
    """Check the invariants of a record for these messages, whatever its origin. Raises ``RecordError``."""
    length = len(messages)
    if found.covers != length:
        raise RecordError("it was made for another number of messages")
    dropped = [*found.drop]
    replaced = [each.position for each in found.replace]
    inserted = [each.position for each in found.insert]
    if dropped != sorted({*dropped}) or replaced != sorted({*replaced}) or inserted != sorted(inserted):
        raise RecordError("its positions are not in order, or named twice")
    touched = (*dropped, *replaced)
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
