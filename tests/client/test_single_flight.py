"""The flight: one task at a time for each key, whoever is cancelled, and nothing is left over."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest

from chatstack.client.single_flight import SingleFlight


class Key:
    """A key that can be watched as it goes."""


class Inside:
    """Who is in there, and how many there were at most."""

    def __init__(self, flight: SingleFlight) -> None:
        self.flight = flight
        self.order: list[str] = []
        self.now = self.most = 0

    async def go(self, name: str, key: object = "key", *, seconds: float = 0) -> None:
        async with self.flight.alone(key):
            self.now += 1
            self.most = max(self.most, self.now)
            self.order.append(name)
            try:
                await asyncio.sleep(seconds)
                await asyncio.sleep(0)
            finally:
                self.now -= 1


async def started(*tasks: asyncio.Task[None]) -> None:
    """Give tasks time to get as far as they can."""
    for _ in range(5 * len(tasks)):
        await asyncio.sleep(0)


def test_one_at_a_time_goes_through_in_the_order_in_which_they_came() -> None:
    inside = Inside(SingleFlight())

    async def crowd() -> None:
        await asyncio.gather(*(inside.go(str(number)) for number in range(10)))

    asyncio.run(crowd())
    assert inside.most == 1
    assert inside.order == [str(number) for number in range(10)]


def test_other_keys_do_not_wait() -> None:
    inside = Inside(SingleFlight())

    async def crowd() -> None:
        await asyncio.gather(*(inside.go(str(number), key=number) for number in range(10)))

    asyncio.run(crowd())
    assert inside.most == 10


def test_equal_keys_are_one() -> None:
    inside = Inside(SingleFlight())

    async def crowd() -> None:
        await asyncio.gather(*(inside.go("x", key=("owner", bytes([7]))) for _ in range(5)))

    asyncio.run(crowd())
    assert inside.most == 1


def test_flights_know_nothing_of_one_another() -> None:
    one, other = SingleFlight(), SingleFlight()

    async def both() -> None:
        async with asyncio.timeout(300), one.alone("key"), other.alone("key"):
            pass

    asyncio.run(both())


def test_whoever_is_cancelled_inside_lets_the_next_one_in() -> None:
    inside = Inside(SingleFlight())

    async def crowd() -> None:
        first = asyncio.create_task(inside.go("first", seconds=60))
        second = asyncio.create_task(inside.go("second"))
        await started(first, second)
        assert inside.order == ["first"]
        first.cancel()
        async with asyncio.timeout(300):
            await second
        assert first.cancelled()

    asyncio.run(crowd())
    assert inside.order == ["first", "second"]


def test_whoever_is_cancelled_while_waiting_never_gets_in_and_holds_up_nobody() -> None:
    inside = Inside(SingleFlight())

    async def crowd() -> None:
        first = asyncio.create_task(inside.go("first", seconds=0.02))
        second = asyncio.create_task(inside.go("second"))
        third = asyncio.create_task(inside.go("third"))
        await started(first, second, third)
        second.cancel()
        async with asyncio.timeout(300):
            await asyncio.gather(first, third)
        assert second.cancelled()

    asyncio.run(crowd())
    assert inside.order == ["first", "third"]
    assert inside.most == 1


def test_one_who_comes_while_others_wait_is_not_let_in_beside_them() -> None:
    """The place is kept for as long as anybody stands there, also where somebody in the middle has left."""
    inside = Inside(SingleFlight())

    async def crowd() -> None:
        first = asyncio.create_task(inside.go("first", seconds=0.05))
        second = asyncio.create_task(inside.go("second", seconds=0.05))
        await started(first, second)
        second.cancel()
        await started(second)
        late = asyncio.create_task(inside.go("late"))
        await started(late)
        assert inside.order == ["first"]
        async with asyncio.timeout(300):
            await asyncio.gather(first, late)

    asyncio.run(crowd())
    assert inside.most == 1


def test_an_error_inside_goes_through_and_lets_the_next_one_in() -> None:
    inside = Inside(SingleFlight())

    async def fail() -> None:
        async with inside.flight.alone("key"):
            raise ValueError("it went wrong")

    async def crowd() -> None:
        with pytest.raises(ValueError, match="it went wrong"):
            await fail()
        async with asyncio.timeout(300):
            await inside.go("next")

    asyncio.run(crowd())
    assert inside.order == ["next"]


def test_threads_with_loops_of_their_own_do_not_wait_for_one_another() -> None:
    flight = SingleFlight()
    together = threading.Barrier(3, timeout=300)
    order: list[str] = []

    async def go(name: str) -> None:
        async with flight.alone("key"):
            await asyncio.to_thread(together.wait)  # only if all three are in there at once
            order.append(name)

    def run(name: str) -> None:
        asyncio.run(go(name))

    threads = [threading.Thread(target=run, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(order) == ["a", "b", "c"]


def test_each_of_many_threads_lets_one_at_a_time_through() -> None:
    flight = SingleFlight()
    found: list[tuple[int, int]] = []

    async def crowd() -> None:
        inside = Inside(flight)
        await asyncio.gather(*(inside.go(str(number)) for number in range(50)))
        found.append((inside.most, len(inside.order)))

    def run() -> None:
        asyncio.run(crowd())

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(1, 50)] * 6


@pytest.mark.parametrize("how", ["through", "error", "cancelled inside", "cancelled waiting"])
def test_nothing_of_a_key_is_left_over(how: str) -> None:
    flight = SingleFlight()
    key = Key()
    gone = weakref.ref(key)

    async def go(key: Key) -> None:
        inside = Inside(flight)
        if how == "through":
            await asyncio.gather(*(inside.go("x", key) for _ in range(3)))
        elif how == "error":
            with pytest.raises(ValueError, match="wrong"):
                async with flight.alone(key):
                    raise ValueError("wrong")
        else:
            first = asyncio.create_task(inside.go("first", key, seconds=0.02 if "waiting" in how else 60))
            second = asyncio.create_task(inside.go("second", key))
            await started(first, second)
            (second if "waiting" in how else first).cancel()
            await asyncio.gather(first, second, return_exceptions=True)

    asyncio.run(go(key))
    del key
    gc.collect()
    assert gone() is None


def test_no_event_loop_is_kept() -> None:
    flight = SingleFlight()
    inside = Inside(flight)
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def go() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await inside.go("x")

    asyncio.run(go())
    gc.collect()
    assert loops[0]() is None
