"""Notes lead from the links of a history to what is kept under others."""

from __future__ import annotations

import asyncio

import pytest

from chatstack.context.edits.records import Record
from chatstack.context.memory.notes import MOST_NOTED, OWNER, add_note, noted, read_notes, written
from chatstack.context.memory.sharing import SharedDecisions
from chatstack.context.memory.stored import RecordError
from chatstack.errors import StoreError, UnusableRecordError
from tests.context.test_sharing import HISTORY, LINKS, DictStore


def test_notes_of_processes_at_the_same_time_are_joined() -> None:
    async def pause() -> None:
        await asyncio.sleep(0)

    async def check() -> None:
        store = DictStore(before=pause)
        await asyncio.gather(*(add_note(store, LINKS[0], link) for link in LINKS[1:4]))
        assert store.kept == {(OWNER, LINKS[0]): written(LINKS[1:4])}
        calls = len(store.calls)
        await add_note(store, LINKS[0], LINKS[2])
        assert len(store.calls) == calls + 1
        assert await read_notes(store, LINKS) == ({*LINKS[1:4]}, 0)

    asyncio.run(check())


def test_a_note_is_followed_and_goes_with_what_it_leads_to() -> None:
    async def check() -> None:
        store = DictStore()
        shared = SharedDecisions(store)
        record = Record(drop=(0,))
        await shared.put("guard", LINKS[1], record, HISTORY[:2], under=LINKS[1])
        for at in (2, 3):
            await shared.put("guard", LINKS[at], record, HISTORY[: at + 1], under=LINKS[0])
        assert len(store.kept) == 4
        await shared.forget([LINKS[0]])
        assert [link for _, link in store.kept] == [LINKS[1]]

    asyncio.run(check())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc0",
        b"\x92\x01",
        b"\x92\x02\x90",
        b"\x92\x01\x91\xc4\x00",
        b"\x92\x01\xc0",
        b"no",
        Record,
        UnusableRecordError,
    ],
    ids=["nothing", "nil", "cut off", "newer", "an empty link", "no links", "noise", "another type", "unusable"],
)
def test_a_note_that_cannot_be_read_is_left_alone_and_told_once_the_rest_is_gone(data: object) -> None:
    async def check() -> None:
        store = DictStore()
        shared = SharedDecisions(store)
        if isinstance(data, bytes):
            with pytest.raises(RecordError):
                noted(data)
        there = UnusableRecordError("no", link=LINKS[0]) if data is UnusableRecordError else data
        store.kept[OWNER, LINKS[0]] = there  # type: ignore[assignment]
        kept = await shared.put("guard", LINKS[1], Record(drop=(0,)), HISTORY[:2], under=LINKS[0])
        assert kept.problem == ""
        assert store.kept[OWNER, LINKS[0]] is there
        with pytest.raises(StoreError, match="1 notes cannot be read"):
            await shared.forget(LINKS[:2])
        assert store.kept == {}

    asyncio.run(check())


def test_a_note_is_bounded() -> None:
    links = [number.to_bytes(16, "big") for number in range(MOST_NOTED)]

    async def check() -> None:
        store = DictStore()
        store.kept[OWNER, b"under"] = written(links[:-1])
        for more in (links[-1], b"one more"):
            await add_note(store, b"under", more)
        assert noted(store.kept[OWNER, b"under"]) == {*links}

    asyncio.run(check())


def test_a_store_that_gives_a_link_that_was_not_asked_for_is_told() -> None:
    class Lies(DictStore):
        async def find(self, owner: str, links: object) -> tuple[bytes, bytes] | None:
            return LINKS[3], written([LINKS[2]])

    with pytest.raises(StoreError, match="not asked for"):
        asyncio.run(read_notes(Lies(), LINKS[:2]))
