"""Synchronous callers of coroutines: their own calls are made in their own threads."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest

from chatstack import WiringError
from chatstack.client.blocking import Blocking

Ask = Callable[[int], Awaitable[str]]
variable: ContextVar[str] = ContextVar("variable", default="unset")


def test_a_coroutine_asks_the_callers_thread_and_both_see_each_others_context() -> None:
    seen: list[tuple[str, str]] = []

    async def main(ask: Ask) -> str:
        assert variable.get() == "outside"
        assert threading.current_thread() is not threading.main_thread()
        variable.set("inside")
        return await ask(1) + await ask(2)

    def call(number: int) -> str:
        seen.append((variable.get(), threading.current_thread().name))
        return str(number)

    token = variable.set("outside")
    try:
        assert Blocking().run(main, call) == "12"
        assert variable.get() == "outside"
    finally:
        variable.reset(token)
    assert seen == [("inside", threading.current_thread().name)] * 2


def test_an_exception_of_the_call_is_raised_where_it_was_asked_for_and_may_be_caught_there() -> None:
    def call(number: int) -> str:
        raise KeyError(number)

    async def catching(ask: Ask) -> str:
        try:
            return await ask(1)
        except KeyError:
            return "caught"

    assert Blocking().run(catching, call) == "caught"

    async def letting_it(ask: Ask) -> str:
        return await ask(1)

    with pytest.raises(KeyError):
        Blocking().run(letting_it, call)


def test_what_is_no_exception_cancels_the_coroutine_and_surfaces() -> None:
    ended: list[str] = []

    async def main(ask: Ask) -> str:
        try:
            return await ask(1)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    def call(number: int) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Blocking().run(main, call)
    assert ended == ["cancelled"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("in_a_task", [False, True])
def test_what_ends_a_process_surfaces_from_a_coroutine_and_the_loop_goes_on(
    kind: type[BaseException], in_a_task: bool
) -> None:
    async def ending() -> str:
        raise kind

    async def main(ask: Ask) -> str:
        return await (asyncio.create_task(ending()) if in_a_task else ending())

    async def other(ask: Ask) -> str:
        return "fine"

    blocking, found = Blocking(), list[object]()

    def calls() -> None:
        try:
            blocking.run(main, str)
        except (SystemExit, KeyboardInterrupt) as raised:
            found.append(type(raised))
        found.append(blocking.run(other, str))

    thread = threading.Thread(target=calls, daemon=True)  # where the loop is gone, it waits for ever
    thread.start()
    thread.join(60)
    assert found == [kind, "fine"]


def test_two_questions_at_once_are_both_answered() -> None:
    async def main(ask: Ask) -> list[str]:
        return await asyncio.gather(*map(ask, range(5)))

    assert Blocking().run(main, str) == ["0", "1", "2", "3", "4"]


async def counted(ended: list[str]) -> AsyncGenerator[int, None]:
    try:
        for number in range(3):
            yield number
    finally:
        ended.append("ended")


def test_an_iterator_that_is_left_early_closes_its_source() -> None:
    for most, expected in ((3, [0, 1, 2]), (1, [0])):
        ended: list[str] = []
        numbers = Blocking().iterate(lambda ended=ended: counted(ended))  # type: ignore[misc]
        found = [next(numbers) for _ in range(most)]
        numbers.close()
        assert found == expected
        assert ended == ["ended"]


def test_it_works_in_a_running_loop_and_from_many_threads_but_not_on_its_own() -> None:
    blocking = Blocking()

    async def main(ask: Ask) -> str:
        await asyncio.sleep(0)
        return await ask(3)

    async def within_a_loop() -> str:
        return blocking.run(main, str)

    assert asyncio.run(within_a_loop()) == "3"
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: blocking.run(main, str), range(50))) == ["3"] * 50

    async def again(ask: Ask) -> str:
        return blocking.run(main, str)

    with pytest.raises(WiringError, match="await"):
        blocking.run(again, str)


def test_a_copy_is_a_new_one_and_the_thread_ends_with_its_users() -> None:
    blocking = Blocking()

    async def main(ask: Ask) -> str:
        return await ask(1)

    assert blocking.run(main, str) == "1"
    for other in (copy.deepcopy(blocking), pickle.loads(pickle.dumps(blocking))):
        assert other is not blocking
        assert other.run(main, str) == "1"
    del blocking, other
    gc.collect()  # those of other tests, which errors hold
    for thread in threading.enumerate():
        if thread.name == "chatstack-sync":
            thread.join(60)
            assert not thread.is_alive()
