"""The contract that every store of decisions keeps, as a suite to subclass."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import ClassVar, TypeVar

from chatstack.context.memory.sharing import DecisionStore
from chatstack.context.memory.stored import MAX_BYTES
from chatstack.errors import StoreError
from chatstack.testing.exchanges import same
from chatstack.testing.store_sharing import SharingContract

T = TypeVar("T")

_SECONDS = 60.0
_TRIES = 50
_MANY = 5_000
_BORDERS = (0, 1, 499, 500, 511, 512, 999, 1_000, 1_001, 1_023, 1_024, 2_500, _MANY - 2, _MANY - 1)
"""Positions of links to look up: stores query them in portions, counted from either end, so the borders are checked."""
_OWNERS = ("o", "O", "o ", "", "o:a", "é", "o\x00", "%s {0} *[a-z]? \\ $1", "'); DROP TABLE decisions; --")
_LINKS = (b"a", b"A", b"a\x00", b"\x00", b"", b"a:b", b"b", b"\xff\r\n", b"\xfe\r\n", b"%s {0} *[a-z]? $1 '--")


class StoreContract(SharingContract):
    """Promises of every store of decisions. Subclass it as ``Test...``, write ``make()``, and run pytest.

    ``make`` returns a store, open or to be opened on first use. Called again on the same instance it returns another
    store at the same place, as another process would have it; another instance should use a place of its own, for one
    check deletes everything there. Every check closes the stores that it made.

    The checks: every record that was put is found, to the byte, by every store at that place, and under the newest link
    that has a record; of concurrent puts exactly one wins, and all learn which; a record is replaced only by a caller
    that names it; forgotten records are gone, for every owner; a store works from several event loops and threads, goes
    on after cancelled calls, may be closed again and again, then raises ``StoreError``, and leaves no thread or
    connection behind; stacks in two processes with the same store send the same, and write one summary.

    A busy store may raise ``StoreError`` when several write at the same time; the call is then repeated. ``secrets``
    are texts that no ``repr`` may hold, such as a password that ``make`` uses. Every check is a plain method that
    raises ``AssertionError``.
    """

    secrets: ClassVar[tuple[str, ...]] = ()

    # Kept records

    def test_nothing_is_found_where_nothing_was_put(self) -> None:
        same(self._run(lambda store: store.find(_owner(), _links(3))), None, "links that nobody has put")
        same(self._run(lambda store: store.find(_owner(), [])), None, "no links")

    def test_another_store_finds_what_was_put(self) -> None:
        owner, (link,) = _owner(), _links(1)
        same(self._run(lambda store: store.put(owner, link, b"record")), b"record", "what is there after the first put")
        found = self._run(lambda store: store.find(owner, (link,)))
        same(found, (link, b"record"), "what another store finds")

    def test_the_last_link_that_has_a_record_is_found(self) -> None:
        owner, links = _owner(), _links(10)

        async def work(store: DecisionStore) -> None:
            for number in (7, 2, 5):
                await store.put(owner, links[number], b"%d" % number)
            asked = list(links)
            same(await store.find(owner, asked), (links[7], b"7"), "the last of three")
            same(asked, links, "the list that was given")
            same(await store.find(owner, links[:7]), (links[5], b"5"), "the last of two")
            same(await store.find(owner, links[:2]), None, "links without a record")
            same(await store.find(owner, links[::-1]), (links[2], b"2"), "the last one asked for, not the last one put")
            same(await store.find(_owner(), links), None, "another owner's links")

        self._run(work)

    def test_it_is_found_among_thousands_of_links_wherever_it_is_and_forgotten_with_them(self) -> None:
        owner, links = _owner(), _links(_MANY)

        async def work(store: DecisionStore) -> None:
            same(await store.find(owner, links), None, "none of thousands")
            for number in _BORDERS:
                await store.put(owner, links[number], b"%d" % number)
                same(await store.find(owner, links), (links[number], b"%d" % number), f"number {number} of thousands")
            await store.forget(links)
            same(await store.find(owner, links), None, "thousands that were forgotten")

        self._run(work)

    def test_owners_links_and_records_are_any_bytes_and_none_is_taken_for_another(self) -> None:
        mark = _owner()
        pairs = [(owner, link) for owner in _OWNERS for link in _LINKS]
        records = {pair: b"\x00\xff\r\n" + repr(pair).encode() for pair in pairs}

        async def work(store: DecisionStore) -> None:
            for (owner, link), record in records.items():
                same(await store.put(mark + owner, link, record), record, f"what is there for {owner!r}, {link!r}")
            for (owner, link), record in records.items():
                same(await store.find(mark + owner, [link]), (link, record), f"what is found for {owner!r}, {link!r}")

        self._run(work)

    def test_records_of_every_size_come_back(self) -> None:
        records = [b"", b"\x00", os.urandom(10_000), os.urandom(MAX_BYTES)]
        owner, links = _owner(), _links(len(records))

        async def work(store: DecisionStore) -> None:
            for link, record in zip(links, records, strict=True):
                there = await store.put(owner, link, record)
                found = await store.find(owner, [link])
                same((type(there), [*map(type, found or ())]), (bytes, [bytes] * 2), "the types of what it gives")
                same((there == record, found == (link, record)), (True, True), f"a record of {len(record):,} bytes")
            there = await store.put(owner, links[-1], b"small", replaces=records[-1])
            same(there == b"small", True, "whether a large record was replaced")

        self._run(work)

    # Concurrent puts

    def test_the_first_record_stays_unless_it_is_the_one_that_is_replaced(self) -> None:
        owner, (link, other) = _owner(), _links(2)

        async def work(store: DecisionStore) -> None:
            same(await store.put(owner, link, b"first"), b"first", "the first")
            same(await store.put(owner, link, b"second"), b"first", "a second that replaces nothing")
            same(await store.put(owner, link, b"second", replaces=b"first "), b"first", "one that replaces another")
            same(await store.put(owner, link, b"first"), b"first", "the first once more")
            same(await store.put(owner, link, b"second", replaces=b"first"), b"second", "one that replaces the first")
            same(await store.put(owner, link, b"third", replaces=b"first"), b"second", "one that replaces what is gone")
            same(await store.put(owner, other, b"fourth", replaces=b"gone"), b"fourth", "in place of nothing")
            same(await store.find(owner, [link]), (link, b"second"), "what is found in the end")

        self._run(work)

    def test_of_puts_at_the_same_time_one_wins_and_all_are_told_which(self) -> None:
        owner, links = _owner(), _links(10)

        async def work(*stores: DecisionStore) -> None:
            for link in links:
                tasks = (_surely(stores[each % 2], owner, link, b"of task %d" % each) for each in range(24))
                told = set(await asyncio.gather(*tasks))
                same(len(told), 1, "how many records were given back as the one that holds")
                found = await stores[0].find(owner, [link])
                same(found, (link, told.pop()), "what is found afterwards")

        self._run_two(work)

    def test_of_replacements_at_the_same_time_none_is_lost(self) -> None:
        """Concurrent increments of one counter: a caller that lost the race has seen the winner's record, and counts on
        from it."""
        owner, (link,) = _owner(), _links(1)
        people, times = 6, 5

        async def count(store: DecisionStore, who: int) -> None:
            done, known = 0, None
            while done < times:
                mine = b"%d by %d" % (int(known.split()[0]) + 1 if known else 1, who)
                there = await _surely(store, owner, link, mine, known)
                done, known = done + (there == mine), there

        async def work(*stores: DecisionStore) -> None:
            await asyncio.gather(*(count(stores[who % len(stores)], who) for who in range(people)))
            found = await stores[0].find(owner, [link])
            same(found and int(found[1].split()[0]), people * times, "how far they have counted")

        self._run_two(work)

    # Forgotten records

    def test_links_are_forgotten_for_every_owner_and_no_others_are(self) -> None:
        owners, links = (_owner(), _owner()), _links(4)

        async def work(store: DecisionStore, other: DecisionStore) -> None:
            for owner in owners:
                for link in links:
                    await store.put(owner, link, b"record")
            await store.forget([])
            await store.forget(_links(3))
            same(await other.find(owners[0], links), (links[3], b"record"), "after forgetting nothing")
            await store.forget([links[3], links[0], links[3]])
            for owner in owners:
                same(await other.find(owner, [links[0], links[3]]), None, "what was forgotten")
                same(await other.find(owner, links), (links[2], b"record"), "what was not")
            same(await other.put(owners[0], links[3], b"new", replaces=b"record"), b"new", "put again")

        self._run_two(work)

    def test_everything_is_forgotten_of_everybody(self) -> None:
        owners, links = (_owner(), _owner()), _links(1_500)

        async def work(store: DecisionStore, other: DecisionStore) -> None:
            for number, link in enumerate(links):
                await store.put(owners[number % 2], link, b"record")
            await other.forget()
            for owner in owners:
                same(await store.find(owner, links), None, "what was forgotten")

        self._run_two(work)

    # Loops, threads, and the end

    def test_one_store_works_in_one_event_loop_after_another(self) -> None:
        owner, (link,) = _owner(), _links(1)
        store = self.make()
        try:
            for number in range(3):
                same(asyncio.run(store.put(owner, link, b"%d" % number)), b"0", f"put in loop {number}")
                same(asyncio.run(store.find(owner, [link])), (link, b"0"), f"found in another than loop {number}")
        finally:
            asyncio.run(store.aclose())

    def test_one_store_works_in_the_event_loops_of_several_threads(self) -> None:
        owner, links = _owner(), _links(20)
        store = self.make()
        told: list[list[bytes]] = []

        async def put(record: bytes) -> None:
            told.append([await _surely(store, owner, link, record) for link in links])

        try:
            work = [put(b"of thread %d" % number) for number in range(4)]
            threads = [threading.Thread(target=asyncio.run, args=(each,), daemon=True) for each in work]
            for each in threads:
                each.start()
            for each in threads:
                each.join(_SECONDS)
            same(len(told), 4, "threads that have finished")
            same(told, [told[0]] * 4, "what the threads were told")
        finally:
            asyncio.run(store.aclose())

    def test_it_goes_on_after_calls_were_cancelled(self) -> None:
        owner, links = _owner(), _links(40)

        async def work(store: DecisionStore) -> None:
            await store.find(owner, links)
            for number, link in enumerate(links):
                task = asyncio.create_task(store.put(owner, link, b"cancelled"))
                await asyncio.sleep(number % 10 * 0.0002)
                task.cancel()
                (outcome,) = await asyncio.gather(task, return_exceptions=True)
                is_fine = outcome == b"cancelled" or isinstance(outcome, asyncio.CancelledError)
                same(is_fine, True, f"a cancelled put ends, or is cancelled; it did: {outcome!r}")
            for link in links:
                there = await store.put(owner, link, b"later")
                same(there in (b"cancelled", b"later"), True, "a cancelled put is made as a whole, or not at all")
                same(await store.find(owner, [link]), (link, there), "what is found afterwards")

        self._run(work)

    def test_it_is_closed_again_and_again_and_refuses_calls_from_then_on(self) -> None:
        owner, links = _owner(), _links(2)

        async def work(store: DecisionStore, unused: DecisionStore) -> None:
            await store.put(owner, links[0], b"record")
            await asyncio.gather(store.aclose(), store.aclose())
            await store.aclose()
            await unused.aclose()
            for closed in (store, unused):
                calls = closed.find(owner, links), closed.put(owner, links[1], b"late"), closed.forget()
                outcomes = await asyncio.gather(*calls, return_exceptions=True)
                others = [each for each in outcomes if not isinstance(each, StoreError)]
                same(others, [], "what a closed store gives or raises, and is no StoreError")

        self._run_two(work)
        same(self._run(lambda store: store.find(owner, links)), (links[0], b"record"), "what is found afterwards")

    def test_calls_under_way_while_it_is_closed_are_answered_or_refused(self) -> None:
        owner, links = _owner(), _links(60)

        async def work(store: DecisionStore) -> None:
            await store.find(owner, links)
            tasks = [asyncio.create_task(store.put(owner, link, b"record")) for link in links]
            await asyncio.sleep(0.002)
            await store.aclose()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            others = [each for each in outcomes if each != b"record" and not isinstance(each, StoreError)]
            same(others, [], "outcomes that are neither an answer nor a StoreError")

        self._run(work)

    def test_making_one_starts_nothing_and_closing_it_leaves_nothing_behind(self) -> None:
        owner, links = _owner(), _links(20)
        gc.collect()
        before = set(threading.enumerate())
        unused = self.make()
        same(set(threading.enumerate()) - before, set[threading.Thread](), "threads of a store that nobody has used")
        asyncio.run(unused.aclose())
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            self._run(lambda store: asyncio.gather(*(store.put(owner, link, b"record") for link in links)))
            for each in set(threading.enumerate()) - before:
                each.join(10)
            same(set(threading.enumerate()) - before, set[threading.Thread](), "threads of a closed store")
            gc.collect()
        unclosed = [str(each.message) for each in heard if issubclass(each.category, ResourceWarning)]
        same(unclosed, [], "what was not closed")

    def test_no_secret_is_in_its_repr(self) -> None:
        async def work(store: DecisionStore) -> str:
            return f"{store!r} {await store.find(_owner(), _links(1))} {store!r} {store}"

        told = self._run(work)
        same([secret in told for secret in self.secrets], [False] * len(self.secrets), "whether it holds the secrets")

    def _run(self, work: Callable[[DecisionStore], Awaitable[T]]) -> T:
        """Run the work with a store, in an event loop of its own, and close both."""

        async def bounded() -> T:
            store = self.make()
            try:
                async with asyncio.timeout(_SECONDS):
                    return await work(store)
            finally:
                await store.aclose()

        return asyncio.run(bounded())

    def _run_two(self, work: Callable[[DecisionStore, DecisionStore], Awaitable[T]]) -> T:
        """Run the work with two stores at one place."""

        async def with_another(store: DecisionStore) -> T:
            another = self.make()
            try:
                return await work(store, another)
            finally:
                await another.aclose()

        return self._run(with_another)


def _owner() -> str:
    return os.urandom(8).hex()


def _links(count: int) -> Sequence[bytes]:
    start = os.urandom(8)
    return [start + number.to_bytes(8, "big") for number in range(count)]


async def _surely(store: DecisionStore, owner: str, link: bytes, record: bytes, replaces: bytes | None = None) -> bytes:
    """Put a record, and repeat that while the store is busy."""
    for _ in range(_TRIES):
        with suppress(StoreError):
            return await store.put(owner, link, record, replaces=replaces)
        await asyncio.sleep(0.01)
    return await store.put(owner, link, record, replaces=replaces)
