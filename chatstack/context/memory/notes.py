"""Notes: links that are forgotten with another link, in a store as a record under that one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Annotated, Protocol

import msgspec

from chatstack.context.memory.stored import RecordError
from chatstack.errors import StoreError, UnusableRecordError

OWNER = "notes"
"""The owner of notes in a store; those of decisions are digests."""
MOST_NOTED = 4_096
"""Maximum number of links noted under one link."""
_MOST_TRIES = 8
"""Maximum number of tries for one note, while others write to the same."""
_VERSION = 1

_Link = Annotated[bytes, msgspec.Meta(min_length=1, max_length=64)]


class _Note(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    version: int
    links: Annotated[tuple[_Link, ...], msgspec.Meta(max_length=MOST_NOTED)]


class _Store(Protocol):
    """The part of a store of decisions that notes need."""

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None: ...

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes: ...


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Note).decode


def written(links: Iterable[bytes]) -> bytes:
    """Encode noted links; equal sets give equal bytes."""
    return _encode(_Note(_VERSION, tuple(sorted(set(links)))))


def noted(data: bytes) -> frozenset[bytes]:
    """Decode noted links. Raises ``RecordError`` for all but what ``written`` writes."""
    try:
        note = _decode(data) if type(data) is bytes else None  # a store may be foreign code
    except (msgspec.MsgspecError, RecursionError):
        note = None
    if note is None or note.version != _VERSION:
        raise RecordError("it is no note of links, a damaged one, or one of another version") from None
    return frozenset(note.links)


async def add_note(store: _Store, under: bytes, link: bytes) -> None:
    """Note a link under another one, beside those that are noted there. Raises what the store raises.

    A note that cannot be read is left as it is.
    """
    known, there = frozenset[bytes](), None
    with suppress(RecordError, UnusableRecordError):
        for _ in range(_MOST_TRIES):
            mine = written({*known, link})
            kept = await store.put(OWNER, under, mine, replaces=there)
            if kept == mine:
                return
            there, known = kept, noted(kept)
            if link in known or len(known) >= MOST_NOTED:
                return
        raise StoreError("others write to the same note all the time")


async def use_note(store: _Store, under: bytes) -> None:
    """Find a note, so that the store knows that it is used. Raises what the store raises."""
    with suppress(UnusableRecordError):
        await store.find(OWNER, [under])


async def read_notes(store: _Store, under: Sequence[bytes]) -> tuple[set[bytes], int]:
    """Return all links that are noted under these, and the number of notes that cannot be read. Raises what the store
    raises."""
    asked, found, unreadable = [*under], set[bytes](), 0
    while asked:
        try:
            answer = await store.find(OWNER, asked)
        except UnusableRecordError as error:
            last, unreadable = error.link, unreadable + 1
        else:
            if answer is None:
                break
            last = answer[0]
            try:
                found |= noted(answer[1])
            except RecordError:
                unreadable += 1
        if last not in asked:
            raise StoreError("it gave a link that was not asked for")
        asked = asked[: asked.index(last)]
    return found, unreadable
