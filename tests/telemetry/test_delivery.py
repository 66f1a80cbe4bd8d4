"""Events reach a listener in order, and a bad listener hurts nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chatstack import ProgressEvent
from chatstack.telemetry.delivery import ProgressDelivery


def event(name: str) -> ProgressEvent:
    return ProgressEvent(kind="edit", name=name, at=0.0)


def test_events_arrive_in_order_off_the_callers_thread() -> None:
    heard: list[str] = []
    threads: set[int] = set()

    def listen(each: ProgressEvent) -> None:
        heard.append(each.name)
        threads.add(threading.get_ident())

    delivery = ProgressDelivery(listen)
    for number in range(100):
        delivery.put(event(str(number)))
    assert asyncio.run(delivery.flush())
    assert heard == [str(number) for number in range(100)]
    assert len(threads) == 1
    assert threading.get_ident() not in threads


def test_a_slow_listener_does_not_hold_up_whoever_puts() -> None:
    go, heard = threading.Event(), list[bool]()
    delivery = ProgressDelivery(lambda each: heard.append(go.wait(300)))
    for number in range(10):
        delivery.put(event(str(number)))
    assert heard == []  # whoever puts goes on while the listener is still at the first
    go.set()
    assert asyncio.run(delivery.flush())


def test_what_does_not_fit_any_more_is_dropped_and_counted() -> None:
    go, began, heard = threading.Event(), threading.Event(), list[str]()

    def listen(each: ProgressEvent) -> None:
        began.set()
        go.wait(300)
        heard.append(each.name)

    delivery = ProgressDelivery(listen, capacity=2)
    delivery.put(event("0"))
    assert began.wait(300)
    for name in "1234":
        delivery.put(event(name))
    assert delivery.take_dropped() == 2
    assert delivery.take_dropped() == 0
    go.set()
    assert asyncio.run(delivery.flush())
    assert heard == ["0", "1", "2"]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(1), KeyboardInterrupt()])
def test_a_listener_that_raises_misses_that_event_alone(error: BaseException) -> None:
    heard: list[str] = []

    def listen(each: ProgressEvent) -> None:
        if each.name == "bad":
            raise error
        heard.append(each.name)

    delivery = ProgressDelivery(listen)
    for name in ("one", "bad", "two"):
        delivery.put(event(name))
    assert asyncio.run(delivery.flush())
    assert heard == ["one", "two"]
    assert delivery.take_dropped() == 1


async def awaited(each: ProgressEvent) -> None:
    raise AssertionError("nobody runs this")


def yielding(each: ProgressEvent) -> Iterator[None]:
    raise AssertionError("nobody runs this")
    yield


@pytest.mark.parametrize("listener", [awaited, yielding])
def test_a_listener_that_gives_what_nobody_runs_has_missed_the_event(listener: Callable[[ProgressEvent], Any]) -> None:
    delivery = ProgressDelivery(lambda each: listener(each))
    for name in ("one", "two"):
        delivery.put(event(name))
    assert asyncio.run(delivery.flush())
    given = listener(event("x"))
    assert delivery.take_dropped() == 2
    told = f"gave a {type(given).__name__}, which nobody runs: pass a plain function, such as a queue's put_nowait"
    assert delivery.take_failure() == told
    given.close()


def test_flushing_says_when_the_listener_did_not_finish_in_time() -> None:
    go = threading.Event()
    delivery = ProgressDelivery(lambda each: go.wait(300))
    delivery.put(event("0"))
    assert not asyncio.run(delivery.flush(0.02))
    go.set()
    assert asyncio.run(delivery.flush())


def test_flushing_nothing_is_done_at_once() -> None:
    assert asyncio.run(ProgressDelivery(print).flush(0.0))


def test_the_thread_ends_when_idle_and_comes_back_when_needed() -> None:
    heard: list[str] = []
    delivery = ProgressDelivery(lambda each: heard.append(each.name))
    delivery.put(event("one"))
    ours = [each for each in threading.enumerate() if each.name == "chatstack-progress"]
    for thread in ours:
        thread.join(300)
    assert not any(thread.is_alive() for thread in ours)
    delivery.put(event("two"))
    assert asyncio.run(delivery.flush())
    assert heard == ["one", "two"]


def test_many_threads_may_put_at_once() -> None:
    heard: list[str] = []
    delivery = ProgressDelivery(lambda each: heard.append(each.name))

    def put(number: int) -> None:
        for k in range(50):
            delivery.put(event(f"{number}-{k}"))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asyncio.run(delivery.flush())
    assert sorted(heard) == sorted(f"{n}-{k}" for n in range(4) for k in range(50))
    assert [name for name in heard if name.startswith("0-")] == [f"0-{k}" for k in range(50)]


def test_flushing_needs_no_thread_of_a_pool() -> None:
    go, release = threading.Event(), threading.Event()

    async def run() -> bool:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        stuck = loop.run_in_executor(None, release.wait, 20)
        delivery = ProgressDelivery(lambda each: go.wait(300))
        delivery.put(event("0"))
        loop.call_later(0.02, go.set)
        try:
            async with asyncio.timeout(300):
                return await delivery.flush(10)
        finally:
            release.set()
            await stuck

    assert asyncio.run(run())


def test_several_may_flush_at_once_and_one_that_is_cancelled_disturbs_nobody() -> None:
    go = threading.Event()

    async def run() -> list[bool]:
        delivery = ProgressDelivery(lambda each: go.wait(300))
        delivery.put(event("0"))
        waiting = [asyncio.ensure_future(delivery.flush()) for _ in range(3)]
        await asyncio.sleep(0.02)
        waiting[1].cancel()
        go.set()
        return [await each for each in (waiting[0], waiting[2])]

    assert asyncio.run(run()) == [True, True]


def test_a_listener_that_ends_after_the_loop_that_flushed_disturbs_nobody() -> None:
    go, heard = threading.Event(), list[str]()

    def listen(each: ProgressEvent) -> None:
        go.wait(300)
        heard.append(each.name)

    delivery = ProgressDelivery(listen)
    delivery.put(event("0"))
    assert not asyncio.run(delivery.flush(0.01))
    go.set()
    assert asyncio.run(delivery.flush())
    assert heard == ["0"]
    assert delivery.take_dropped() == 0
