"""One budget for the event loops and threads of a process, one after the other and at once; in real, short times."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

from chatstack import ChatRequest, ChatStack, ChatStream
from chatstack.testing import ScriptedClient

from chatstack_ratelimit import RateLimiter, RateLimits
from chatstack_ratelimit.limits import Figures

TICK_SECONDS = 0.02
PER_MINUTE = round(60 / TICK_SECONDS)
"""One call each tick; with so small a burst there are none at once."""
BURST_SECONDS = 0.001


class Stamped(ScriptedClient):
    """When it was called, by the clock that all threads share."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.times.append(time.monotonic())
        return await super().send(request)


def a_stack(model: ScriptedClient) -> ChatStack:
    return ChatStack(model).use(RateLimiter, requests_per_minute=PER_MINUTE, burst_seconds=BURST_SECONDS)


async def calls(stack: ChatStack, count: int) -> None:
    client = stack.build()
    await asyncio.gather(*(client.get_response("hello") for _ in range(count)))


def test_loops_one_after_the_other_share_the_budget() -> None:
    model = Stamped()
    stack = a_stack(model)
    for _ in range(4):
        asyncio.run(calls(stack, 5))

    assert len(model.times) == 20
    assert model.times[-1] - model.times[0] >= 19 * TICK_SECONDS * 0.99


def test_threads_with_loops_of_their_own_share_the_budget() -> None:
    model = Stamped()
    stack = a_stack(model)
    threads = [threading.Thread(target=lambda: asyncio.run(calls(stack, 10))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert len(model.times) == 40
    assert max(model.times) - min(model.times) >= 39 * TICK_SECONDS * 0.99


def test_a_loop_that_was_closed_with_calls_in_the_line_holds_up_nobody() -> None:
    model = Stamped()
    stack = a_stack(model)
    loop = asyncio.new_event_loop()
    waiting = [loop.create_task(stack.build().get_response("hello")) for _ in range(3)]
    loop.run_until_complete(asyncio.sleep(TICK_SECONDS / 4))
    loop.set_exception_handler(lambda *_: None)  # it complains, rightly, of tasks that never ended
    loop.close()
    del waiting
    gc.collect()

    asyncio.run(asyncio.wait_for(calls(stack, 2), 30))

    assert len(model.times) == 3


def test_what_an_answer_gives_back_reaches_a_call_that_waits_in_another_loop() -> None:
    budget = RateLimits().budget(Figures("p", "s", None, 60_000, 5.0))
    waits = threading.Event()
    gone: list[bool] = []

    async def wait() -> None:
        call = asyncio.create_task(budget.enter(100))
        await asyncio.sleep(0)
        waits.set()
        await asyncio.wait_for(call, 30)  # for a minute, if nothing is given back
        gone.append(True)

    asyncio.run(budget.enter(60_000))
    thread = threading.Thread(target=lambda: asyncio.run(wait()))
    thread.start()
    assert waits.wait(30)
    budget.correct(60_000, 500)
    thread.join(60)

    assert gone == [True]
