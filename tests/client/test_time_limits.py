"""Time limits: they expire, and what they leave with the event loop holds nothing of the call."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import weakref
from typing import Any

import pytest

from chatstack import ChatFronts, ChatStack, ContextMemory, Message, ProgressReporter, Summarizer
from chatstack.client.time_limits import expire_in
from chatstack.testing import ScriptedClient
from tests.context.test_sharing import DictStore
from tests.layers.test_summarizer_failures import conversation

HELD = contextvars.ContextVar[object]("held")


class Large:
    """Something that can be watched as it goes."""


def keep_cancelled_timers() -> None:
    """Have a timer that comes before the others: an event loop drops cancelled ones only from the front."""
    asyncio.get_running_loop().call_later(3, lambda: None)


def test_it_expires() -> None:
    async def main() -> bool:
        limit = asyncio.timeout(None)
        try:
            async with limit:
                expire_in(limit, 0)
                await asyncio.sleep(60)
        except TimeoutError:
            return limit.expired()
        return False

    assert asyncio.run(main())


def test_a_timer_that_is_over_holds_no_context() -> None:
    async def limited() -> weakref.ref[Large]:
        large = Large()
        HELD.set(large)
        async with asyncio.timeout(None) as limit:
            expire_in(limit, 3_600)
            await asyncio.sleep(0)
        return weakref.ref(large)

    async def main() -> None:
        keep_cancelled_timers()
        left = await asyncio.create_task(limited())
        await asyncio.sleep(0)
        gc.collect()
        assert left() is None

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_calls_with_summaries_a_store_and_time_limits_leave_nothing_of_theirs_to_the_event_loop(stream: bool) -> None:
    async def called(client: ChatFronts, of: int) -> weakref.ref[Large]:
        large = Large()
        HELD.set(large)
        given: dict[str, Any] = {"conversation_id": str(of), "timeout_seconds": 3_600}
        if stream:
            async with client.get_streaming_response(conversation(of=of), **given) as updates:
                await updates.response()
        else:
            await client.get_response(conversation(of=of), **given)
        return weakref.ref(large)

    async def main() -> None:
        keep_cancelled_timers()
        memory = ContextMemory(store=DictStore(), scope="tenant", store_timeout_seconds=3_600)
        stack = ChatStack(ScriptedClient([Message.assistant("ok")]), memory=memory).use(ProgressReporter)
        stack = stack.use(Summarizer, max_tokens=1_500, summary_client=ScriptedClient(["short"]))
        client = stack.build()
        left = [await asyncio.create_task(called(client, of)) for of in range(5)]
        await asyncio.sleep(0)
        gc.collect()
        assert [each() for each in left] == [None] * 5

    asyncio.run(main())
