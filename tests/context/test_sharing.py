"""Decisions that several processes share, in a store that may fail, hang and lie: no call fails for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest

from chatstack import ContextMemory, Message, WiringError
from chatstack.context.edits.records import Insertion, Record
from chatstack.context.memory.sharing import DecisionStore, Found, Kept, SharedDecisions
from chatstack.context.memory.stored import stored
from chatstack.errors import StoreError, UnusableRecordError

A, B, C, D = (Message.user(each) for each in "abcd")
HISTORY = (A, B, C, D)
LINKS = [bytes([at]) * 16 for at in range(4)]
FIRST, SECOND = Record(drop=(0,)), Record(drop=(0, 1))


class DictStore:
    """A store in a dictionary; ``before`` is awaited before each answer."""

    def __init__(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        self.kept: dict[tuple[str, bytes], bytes] = {}
        self.calls: list[tuple[str, str, Any]] = []
        self.before = before
        self.is_closed = False

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        await self._called("find", owner, list(links))
        link = next((link for link in reversed(links) if (owner, link) in self.kept), None)
        return None if link is None else (link, self._kept(owner, link))

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        await self._called("put", owner, link)
        there = self.kept.get((owner, link))
        if there is None or there == replaces:
            self.kept[owner, link] = record
        return self._kept(owner, link)

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        await self._called("forget", "", links)
        for key in list(self.kept):
            if links is None or key[1] in links:
                del self.kept[key]

    async def aclose(self) -> None:
        self.is_closed = True

    def _kept(self, owner: str, link: bytes) -> bytes:
        kept: Any = self.kept[owner, link]
        if isinstance(kept, Exception):
            raise kept
        return kept  # type: ignore[no-any-return]

    async def _called(self, what: str, owner: str, about: Any) -> None:
        self.calls.append((what, owner, about))
        if self.before is not None:
            await self.before()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Fails:
    """Raises while told so."""

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error

    async def __call__(self) -> None:
        if self.error is not None:
            raise self.error


async def hang() -> None:
    await asyncio.Event().wait()


def run(work: Awaitable[Any]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(300):
            return await work

    return asyncio.run(bounded())


def find(shared: SharedDecisions, messages: tuple[Message, ...] = HISTORY, owner: str = "guard", **more: int) -> Found:
    found: Found = run(shared.find(owner, LINKS[: len(messages)], messages, **more))
    return found


def put(
    shared: SharedDecisions,
    record: Record,
    messages: tuple[Message, ...] = HISTORY,
    owner: str = "guard",
) -> Kept:
    kept: Kept = run(shared.put(owner, LINKS[len(messages) - 1], record, messages))
    return kept


# What is kept, and for whom


def test_a_decision_is_found_by_another_process_and_for_all_that_go_on_from_it() -> None:
    store = DictStore()
    assert put(SharedDecisions(store), FIRST, (A, B)) == (FIRST, "")
    other = SharedDecisions(store)
    assert find(other, (A, B)) == Found(FIRST, 2)
    assert find(other, HISTORY) == Found(FIRST, 2)
    assert find(other, (A,)) == Found(None, 0)


def test_the_longest_match_counts() -> None:
    shared = SharedDecisions(DictStore())
    put(shared, FIRST, (A, B))
    put(shared, SECOND, (A, B, C))
    assert find(shared) == Found(SECOND, 3)
    assert find(shared, (A, B)) == Found(FIRST, 2)


def test_another_owner_has_other_decisions() -> None:
    shared = SharedDecisions(DictStore())
    put(shared, FIRST, owner="guard")
    assert find(shared, owner="summarizer").record is None


def test_the_first_writer_wins_and_the_other_gets_its_record() -> None:
    store = DictStore()
    put(SharedDecisions(store), FIRST)
    assert put(SharedDecisions(store), SECOND) == (FIRST, "")


def test_a_record_that_is_there_is_never_replaced_by_whoever_knows_it() -> None:
    """What was sent under it was sent: it holds for those that have the answer in their history."""
    store = DictStore()
    shared = SharedDecisions(store)
    put(shared, FIRST)
    before = dict(store.kept)
    assert find(shared).record == FIRST
    assert put(shared, SECOND) == (FIRST, "")
    assert store.kept == before


def test_ones_own_record_comes_back_as_the_same_object() -> None:
    """By that the caller knows that it holds, and need not be carried out anew."""
    shared = SharedDecisions(DictStore())
    mine, equal = Record(drop=(0,)), Record(drop=(0,))
    assert put(shared, mine).record is mine
    assert put(shared, equal).record is equal


def test_only_what_covers_more_than_is_known_is_asked_for() -> None:
    store = DictStore()
    shared = SharedDecisions(store)
    put(shared, FIRST, (A, B))
    store.calls.clear()
    assert find(shared, beyond=2) == Found(None, 0)
    assert find(shared, beyond=1) == Found(FIRST, 2)
    assert find(shared, beyond=4) == Found(None, 0)
    assert [links for _, _, links in store.calls] == [LINKS[2:], LINKS[1:]]


def test_an_owner_is_a_short_key_in_the_store_whatever_its_options_are() -> None:
    store = DictStore()
    find(SharedDecisions(store), owner="guard" * 1000 + "\ud800")
    assert len(store.calls[0][1]) == 32


def test_forgetting_and_closing_go_to_the_store() -> None:
    store = DictStore()
    shared = SharedDecisions(store)
    put(shared, FIRST, (A, B))
    put(shared, SECOND)
    run(shared.forget([LINKS[3]]))
    assert find(shared) == Found(FIRST, 2)
    run(shared.forget())
    assert find(shared) == Found(None, 0)
    run(shared.aclose())
    assert store.is_closed


def test_that_something_could_not_be_forgotten_is_not_kept_quiet() -> None:
    shared = SharedDecisions(DictStore(Fails(OSError("gone"))))
    with pytest.raises(OSError, match="gone"):
        run(shared.forget([LINKS[0]]))


# A store that fails

LATER = "then tried again"


@pytest.mark.parametrize("error", [OSError("no"), TimeoutError(), KeyError("k"), StoreError("it is locked")], ids=repr)
def test_what_a_store_raises_is_told_and_the_decision_holds_here(error: Exception) -> None:
    kept = put(SharedDecisions(DictStore(Fails(error))), FIRST)
    assert kept.record is FIRST
    assert kept.problem.startswith("the store of decisions takes none (")
    found = find(SharedDecisions(DictStore(Fails(error))))
    assert (found.record, found.covers, found.answered) == (None, 0, False)
    assert found.problem == kept.problem.replace("takes none", "fails")


def test_a_store_that_takes_no_writes_is_still_read() -> None:
    """Full, locked, or a read-only replica: what was decided before goes on to hold in every process."""
    clock, store = Clock(), DictStore()
    put(SharedDecisions(store), FIRST, (A, B))
    shared = SharedDecisions(store, rest_seconds=5, clock=clock)
    store.before = Fails(StoreError("it is full"))
    told = [put(shared, SECOND).problem for _ in range(3)]
    assert told == [f"the store of decisions takes none (it is full); it is left alone for 5 seconds, {LATER}", "", ""]
    store.before = None
    assert [find(shared) for _ in range(2)] == [Found(FIRST, 2)] * 2
    assert put(shared, SECOND) == (SECOND, "")
    assert find(shared) == Found(FIRST, 2)
    clock.now += 5
    assert find(shared) == Found(FIRST, 2)  # after which it is put again
    assert find(shared) == Found(SECOND, 4)


def test_what_could_not_be_kept_is_put_by_calls_that_come_later_a_few_at_a_time() -> None:
    clock, fails, links = Clock(), Fails(OSError()), [bytes([at]) * 16 for at in range(1, 151)]
    store = DictStore(fails)
    shared = SharedDecisions(store, rest_seconds=5, clock=clock)
    for each in links:
        run(shared.put("guard", each, FIRST, HISTORY, under=LINKS[0]))
    fails.error = None
    for _ in range(3):
        find(shared, owner="another")
        assert not store.kept  # nothing before its rest is over
    clock.now += 5
    told = []
    for _ in range(4):
        find(shared, owner="another")
        told.append(sum(link in links for _, link in store.kept))
    assert told == [64, 128, 150, 150]


def test_what_a_cancelled_call_was_about_to_keep_is_put_by_a_later_one() -> None:
    async def check() -> None:
        store = DictStore(before=hang)
        shared = SharedDecisions(store)
        task = asyncio.create_task(shared.put("guard", LINKS[1], FIRST, (A, B)))
        await asyncio.sleep(0.01)
        task.cancel()
        assert isinstance((await asyncio.gather(task, return_exceptions=True))[0], asyncio.CancelledError)
        store.before = None
        await shared.find("another", LINKS, HISTORY)
        assert await shared.find("guard", LINKS, HISTORY) == Found(FIRST, 2)

    run(check())


def test_what_was_forgotten_is_not_put_again() -> None:
    clock, store = Clock(), DictStore()
    shared = SharedDecisions(store, rest_seconds=5, clock=clock)
    store.before = Fails(OSError())
    for at, under in ((1, LINKS[1]), (2, LINKS[0]), (3, LINKS[3])):
        run(shared.put("guard", LINKS[at], FIRST, HISTORY[: at + 1], under=under))
    store.before = None
    clock.now += 5
    run(shared.forget(LINKS[:2]))
    find(shared)
    assert [link for _, link in store.kept] == [LINKS[3]]
    store.before = Fails(OSError())
    put(shared, SECOND, (A, B))
    store.before = None
    run(shared.forget())
    clock.now += 60
    find(shared)
    assert store.kept == {}


@pytest.mark.parametrize("error", [None, OSError()], ids=["kept", "not kept"])
def test_what_is_forgotten_while_it_is_being_put_is_not_kept(error: Exception | None) -> None:
    async def check() -> None:
        clock, store = Clock(), DictStore()
        shared = SharedDecisions(store, rest_seconds=5, clock=clock)
        begun, forgotten = asyncio.Event(), asyncio.Event()

        async def before() -> None:
            if store.calls[-1][0] == "put" and not begun.is_set():
                begun.set()
                await forgotten.wait()
                if error is not None:
                    raise error

        store.before = before
        putting = asyncio.create_task(shared.put("guard", LINKS[3], FIRST, HISTORY))
        await begun.wait()
        await shared.forget(LINKS)
        forgotten.set()
        assert (await putting).record is FIRST
        assert store.kept == {}
        clock.now += 60
        await shared.find("another", LINKS, HISTORY)
        assert store.kept == {}

    run(check())


def test_what_is_forgotten_while_it_is_being_put_is_taken_out_of_a_store_that_is_left_alone() -> None:
    async def check() -> None:
        store = DictStore()
        shared = SharedDecisions(store)
        begun, forgotten = asyncio.Event(), asyncio.Event()

        async def before() -> None:
            what, _, about = store.calls[-1]
            if what == "put" and about == LINKS[1]:
                raise OSError
            if what == "put":
                begun.set()
                await forgotten.wait()

        store.before = before
        putting = asyncio.create_task(shared.put("guard", LINKS[3], FIRST, HISTORY))
        await begun.wait()
        assert (await shared.put("guard", LINKS[1], FIRST, HISTORY[:2])).problem
        await shared.forget(LINKS)
        forgotten.set()
        assert not (await putting).problem
        assert store.kept == {}

    run(check())


def test_what_is_put_while_the_notes_are_read_is_forgotten_with_them() -> None:
    async def check() -> None:
        store = DictStore()
        shared = SharedDecisions(store)
        noting, read = asyncio.Event(), asyncio.Event()

        async def before() -> None:
            if store.calls[-1][0] == "put" and not read.is_set():
                noting.set()
                await read.wait()

        store.before = before
        putting = asyncio.create_task(shared.put("guard", LINKS[3], FIRST, HISTORY, under=LINKS[0]))
        await noting.wait()
        find = store.find

        async def find_and_wait(owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
            found = await find(owner, links)
            read.set()
            await putting
            return found

        store.find = find_and_wait  # type: ignore[method-assign]
        await shared.forget(LINKS[:1])
        assert store.kept == {}

    run(check())


def test_only_what_is_ours_is_told_in_full() -> None:
    """What a driver says may hold an address with a password in it."""
    assert "it is locked" in find(SharedDecisions(DictStore(Fails(StoreError("it is locked"))))).problem
    problem = find(SharedDecisions(DictStore(Fails(OSError("redis://:hunter2@host"))))).problem
    assert "hunter2" not in problem
    assert "OSError" in problem


def test_an_outage_is_told_once_and_nobody_asks_or_waits_while_the_store_rests() -> None:
    clock, fails = Clock(), Fails(OSError())
    store = DictStore(fails)
    shared = SharedDecisions(store, rest_seconds=5, clock=clock)
    assert find(shared).problem
    clock.now += 4.9
    for _ in range(3):
        assert find(shared) == Found(None, 0, "", answered=False)
        assert put(shared, FIRST) == (FIRST, "")
    assert len(store.calls) == 1
    clock.now += 0.2
    assert find(shared).problem == ""
    assert len(store.calls) == 2


def test_the_rest_doubles_up_to_a_minute_and_begins_anew_after_an_answer() -> None:
    clock, fails = Clock(), Fails(OSError())
    store = DictStore(fails)
    shared = SharedDecisions(store, rest_seconds=5, clock=clock)

    def rests() -> float:
        """Seconds until the store is asked again."""
        asked, started = len(store.calls), clock.now
        while len(store.calls) == asked:
            clock.now += 1
            find(shared)
        return clock.now - started

    find(shared)
    assert [rests() for _ in range(6)] == [5, 10, 20, 40, 60, 60]
    clock.now += 60
    fails.error = None
    assert find(shared).answered
    fails.error = OSError()
    assert find(shared).problem
    assert rests() == 5


def test_calls_that_fail_at_the_same_time_are_one_failure() -> None:
    clock = Clock()
    store = DictStore(Fails(OSError()))
    shared = SharedDecisions(store, rest_seconds=5, clock=clock)

    async def many() -> list[Found]:
        gate = asyncio.Event()

        async def fail() -> None:
            await gate.wait()
            raise OSError

        store.before = fail
        calls = [asyncio.create_task(shared.find("guard", LINKS, HISTORY)) for _ in range(20)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(*calls)

    found = run(many())
    assert sum(bool(each.problem) for each in found) == 1
    clock.now += 5
    find(shared)
    assert len(store.calls) == 21


def test_after_a_rest_one_call_tries_and_the_others_do_not_wait_for_it() -> None:
    clock, fails = Clock(), Fails(OSError())
    store = DictStore(fails)
    shared = SharedDecisions(store, clock=clock)
    find(shared)
    clock.now += 5

    async def many() -> list[Found]:
        gate = asyncio.Event()

        async def wait() -> None:
            await gate.wait()

        store.before = wait
        first = asyncio.create_task(shared.find("guard", LINKS, HISTORY))
        await asyncio.sleep(0)
        others = [await shared.find("guard", LINKS, HISTORY) for _ in range(5)]
        gate.set()
        return [*others, await first]

    assert [each.answered for each in run(many())] == [False] * 5 + [True]
    assert find(shared).answered


def test_a_store_that_cancels_itself_has_failed() -> None:
    found = find(SharedDecisions(DictStore(Fails(asyncio.CancelledError()))))
    assert "it cancelled itself" in found.problem


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_the_end_of_the_program_is_no_failure_of_the_store(error: BaseException) -> None:
    with pytest.raises(type(error)):
        find(SharedDecisions(DictStore(Fails(error))))


# A store that hangs


def test_a_store_that_hangs_is_waited_for_so_long_and_no_longer() -> None:
    shared = SharedDecisions(DictStore(hang), timeout_seconds=0.01)

    async def ask() -> Found:
        async with asyncio.timeout(300):
            return await shared.find("guard", LINKS, HISTORY)

    assert "no answer in 0.01 seconds" in asyncio.run(ask()).problem


def test_being_cancelled_goes_through_to_the_store_and_leaves_nothing_running() -> None:
    stopped: list[str] = []

    async def hang_until_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.append("yes")
            raise

    shared = SharedDecisions(DictStore(hang_until_cancelled), timeout_seconds=15)

    async def cancel() -> set[asyncio.Task[Any]]:
        call = asyncio.create_task(shared.find("guard", LINKS, HISTORY))
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return asyncio.all_tasks()

    assert len(asyncio.run(cancel())) == 1  # itself
    assert stopped == ["yes"]


def test_being_cancelled_is_no_failure_of_the_store() -> None:
    store = DictStore(hang)
    shared = SharedDecisions(store, timeout_seconds=15, clock=Clock())

    async def cancelled() -> None:
        async with asyncio.timeout(0.01):
            await shared.find("guard", LINKS, HISTORY)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    store.before = None
    assert find(shared) == Found(None, 0)


def test_whoever_is_cancelled_while_it_tries_the_store_leaves_that_to_the_next() -> None:
    clock, fails = Clock(), Fails(OSError())
    store = DictStore(fails)
    shared = SharedDecisions(store, timeout_seconds=15, clock=clock)
    find(shared)
    clock.now += 5
    store.before = hang

    async def cancelled() -> None:
        async with asyncio.timeout(0.01):
            await shared.find("guard", LINKS, HISTORY)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    store.before = None
    assert find(shared).answered


# A store that lies


@pytest.mark.parametrize("data", [b"", b"noise", stored(FIRST, (A, B)), stored(FIRST, HISTORY)[:-1]], ids=repr)
def test_a_record_that_cannot_be_used_is_told_and_not_overwritten(data: bytes) -> None:
    store = DictStore()
    shared = SharedDecisions(store)
    put(shared, FIRST)
    (key,) = store.kept
    store.kept[key] = data
    found = find(shared)
    assert (found.record, found.answered) == (None, True)
    assert found.problem.startswith("a stored decision cannot be used: ")
    kept = put(SharedDecisions(store), SECOND)
    assert kept == (SECOND, found.problem)
    assert store.kept[key] == data


def test_a_record_that_cannot_be_used_is_told_once_and_is_no_outage() -> None:
    """Every call of a conversation meets it again."""
    store = DictStore()
    shared = SharedDecisions(store, clock=Clock())
    put(shared, FIRST)
    put(shared, FIRST, (A, B))
    for at, key in enumerate(store.kept):
        store.kept[key] = b"noise %d" % at
    assert find(shared, (A, B)).problem
    assert find(shared).problem
    assert [find(shared) for _ in range(3)] == [Found(None, 0, "")] * 3
    assert put(shared, SECOND).problem == ""


@pytest.mark.parametrize("given", ["text", None, 7, UnusableRecordError("of a kind", link=LINKS[3])], ids=repr)
def test_a_record_of_another_type_is_as_if_it_were_not_there_and_the_store_does_not_rest(given: Any) -> None:
    store = DictStore()
    shared = SharedDecisions(store, clock=Clock())
    put(shared, FIRST, (A, B))
    put(shared, SECOND)
    store.kept[next(key for key in store.kept if key[1] == LINKS[3])] = given
    found = find(shared)
    assert (found.record, found.covers) == (FIRST, 2)
    assert found.problem.startswith("a stored decision cannot be used: ")
    assert find(shared) == Found(FIRST, 2)
    if isinstance(given, Exception):
        assert put(shared, SECOND) == Kept(SECOND)
    assert put(shared, SECOND, (A, B, C)) == Kept(SECOND)
    assert find(shared, (A, B, C)) == Found(SECOND, 3)


def test_a_store_full_of_records_that_cannot_be_used_is_not_asked_for_all_of_them() -> None:
    store = DictStore()
    shared = SharedDecisions(store, clock=Clock())
    for length in range(1, 5):
        put(shared, FIRST, HISTORY[:length])
    store.kept = dict.fromkeys(store.kept, b"noise")
    store.calls.clear()
    assert find(shared).record is None
    assert len(store.calls) == 3


@pytest.mark.parametrize(
    "answer", [b"record", (LINKS[0],), ("link", b"r"), (b"another link", b"r"), 7, [LINKS[0], b"r"]]
)
def test_an_answer_of_another_shape_is_a_failure(answer: object) -> None:
    class Lies(DictStore):
        async def find(self, owner: str, links: Sequence[bytes]) -> Any:
            return answer

        async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> Any:
            return answer if answer != b"record" else None

    assert "it gave " in find(SharedDecisions(Lies())).problem
    kept = put(SharedDecisions(Lies()), FIRST)
    assert kept.record is FIRST
    assert "it gave " in kept.problem


def test_a_decision_that_cannot_be_written_down_holds_in_this_process() -> None:
    store = DictStore()
    unmarked = Record(insert=(Insertion(0, Message.assistant("said"), None),))
    kept = put(SharedDecisions(store), unmarked)
    assert kept.record is unmarked
    assert "holds in this process only" in kept.problem
    assert store.calls == []


def test_a_record_of_another_version_of_the_format_is_left_alone() -> None:
    store = DictStore()
    put(SharedDecisions(store), FIRST)
    (key,) = store.kept
    data = store.kept[key]
    for older in (data.replace(b"\x95\x02", b"\x95\x01", 1), msgspec.msgpack.encode([9, "of another form"])):
        store.kept[key] = older
        shared = SharedDecisions(store)
        found = find(shared)
        assert (found.record, found.answered) == (None, True)
        assert found.problem.endswith("of the format, and this release knows version 2 alone")
        assert put(shared, SECOND).record is SECOND
        assert store.kept[key] == older


# How it is made, and used


@pytest.mark.parametrize("name", ["timeout_seconds", "rest_seconds"])
@pytest.mark.parametrize("seconds", [0, -1, float("nan")])
def test_times_are_checked(name: str, seconds: float) -> None:
    with pytest.raises(WiringError, match=f"{name}=") as caught:
        SharedDecisions(DictStore(), **{name: seconds})  # type: ignore[arg-type]
    assert caught.value.parameter == name


def test_what_is_no_store_is_refused_by_what_it_lacks() -> None:
    with pytest.raises(WiringError, match="ContextMemory: dict is no store, it has no find, put, forget, aclose"):
        SharedDecisions({})  # type: ignore[arg-type]


def test_a_class_of_stores_is_no_store() -> None:
    with pytest.raises(
        WiringError, match=r"ContextMemory: DictStore is a class; make a store of it: DictStore\(\.\.\.\)"
    ):
        SharedDecisions(DictStore)  # type: ignore[arg-type]


@pytest.mark.parametrize("scope", [7, b"tenant", ["tenant"]])
def test_a_scope_is_text(scope: object) -> None:
    with pytest.raises(WiringError, match="scope=") as caught:
        ContextMemory(store=DictStore(), scope=scope)  # type: ignore[arg-type]
    assert caught.value.parameter == "scope"


def test_several_event_loops_in_several_threads_share_one() -> None:
    shared = SharedDecisions(DictStore(lambda: asyncio.sleep(0)))
    kept: list[Record] = []

    def work(number: int) -> None:
        kept.append(put(shared, Record(drop=tuple(range(number)))).record)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len({each.drop for each in kept}) == 1


def _is_a_store(store: DecisionStore) -> DecisionStore:
    return store


def test_a_plain_class_with_the_four_methods_is_a_store() -> None:
    store = DictStore()
    assert _is_a_store(store) is store
