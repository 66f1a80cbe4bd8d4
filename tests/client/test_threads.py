"""A plain function runs in a thread of its own, which hurts nobody, whatever it does."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading

import pytest

from chatstack.client.threads import in_own_thread

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


def test_it_gives_what_the_function_returns_with_the_callers_context_variables() -> None:
    async def run() -> tuple[str, int]:
        VARIABLE.set("set")
        return await in_own_thread(lambda: (VARIABLE.get(), threading.get_ident()), "t")

    value, thread = asyncio.run(run())
    assert value == "set"
    assert thread != threading.get_ident()


class Stop(BaseException):
    pass


@pytest.mark.parametrize("error", [ValueError("no"), Stop(), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_it_raises_what_the_function_raises(error: BaseException) -> None:
    def function() -> None:
        raise error

    async def run() -> BaseException | None:
        try:
            await in_own_thread(function, "t")
        except BaseException as caught:  # noqa: BLE001
            return caught
        return None

    assert asyncio.run(run()) is error


def test_a_stop_iteration_comes_out_as_from_any_coroutine_and_hangs_nobody() -> None:
    async def run() -> None:
        async with asyncio.timeout(300):
            await in_own_thread(lambda: next(iter(())), "t")

    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        asyncio.run(run())
    assert isinstance(caught.value.__cause__, StopIteration)


@pytest.mark.parametrize("or_here", [False, True])
def test_where_no_thread_can_be_started_it_raises_or_calls_the_function_here(
    or_here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    calling = in_own_thread(threading.get_ident, "t", or_here=or_here)
    if or_here:
        assert asyncio.run(calling) == threading.get_ident()
    else:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            asyncio.run(calling)


def test_many_that_hang_keep_nobody_waiting() -> None:
    release = threading.Event()

    async def run() -> str:
        hanging = [asyncio.ensure_future(in_own_thread(lambda: release.wait(300), "t")) for _ in range(50)]
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(300):
                return await in_own_thread(lambda: "done", "t")
        finally:
            release.set()
            await asyncio.gather(*hanging)

    assert asyncio.run(run()) == "done"


@pytest.mark.parametrize("loop_is_closed", [False, True])
def test_a_function_that_ends_after_its_waiter_was_cancelled_disturbs_nobody(loop_is_closed: bool) -> None:
    release, threads = threading.Event(), list[threading.Thread]()

    def function() -> str:
        threads.append(threading.current_thread())
        release.wait(300)
        return "late"

    async def run() -> None:
        waiting = asyncio.ensure_future(in_own_thread(function, "t"))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        if not loop_is_closed:
            release.set()
            await asyncio.sleep(0.02)

    asyncio.run(run())
    release.set()
    (thread,) = threads
    thread.join(300)  # what it raised would be a warning, and warnings are errors
    assert not thread.is_alive()


def test_a_function_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    program = (
        "import asyncio, time\n"
        "from chatstack.client.threads import in_own_thread\n"
        "async def main():\n"
        "    try:\n"
        "        async with asyncio.timeout(0.05):\n"
        "            await in_own_thread(lambda: time.sleep(60), 't')\n"
        "    except TimeoutError:\n"
        "        print('gone on')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "gone on\n"
