from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from chatstack import BrokenStreamError
from chatstack.providers.stalls import StallGuard


async def events(*pauses: float) -> AsyncIterator[int]:
    for number, pause in enumerate(pauses):
        await asyncio.sleep(pause)
        yield number


def test_events_in_time_come_through() -> None:
    async def read() -> list[int]:
        return [event async for event in StallGuard(events(0, 0, 0), stall_seconds=5, provider="openai")]

    assert asyncio.run(read()) == [0, 1, 2]


def test_a_stall_is_a_broken_stream_that_says_how_long() -> None:
    seen: list[int] = []

    async def read() -> None:
        async for event in StallGuard(events(0, 30), stall_seconds=0.05, provider="openai"):
            seen.append(event)

    with pytest.raises(BrokenStreamError, match=r"0\.05 seconds") as caught:
        asyncio.run(read())
    assert caught.value.provider == "openai"
    assert seen == [0]


def test_time_that_the_reader_takes_is_no_stall() -> None:
    async def read() -> int:
        count = 0
        async for _ in StallGuard(events(0, 0, 0), stall_seconds=0.05, provider="openai"):
            await asyncio.sleep(0.08)
            count += 1
        return count

    assert asyncio.run(read()) == 3


def test_a_timeout_from_below_is_not_taken_for_a_stall() -> None:
    async def failing() -> AsyncIterator[int]:
        raise TimeoutError("from below")
        yield 0

    async def read() -> None:
        async for _ in StallGuard(failing(), stall_seconds=5, provider="openai"):
            pass

    with pytest.raises(TimeoutError, match="from below"):
        asyncio.run(read())


def test_cancelling_the_reader_is_no_stall() -> None:
    async def read() -> None:
        guard = StallGuard(events(30), stall_seconds=20, provider="openai")
        task = asyncio.ensure_future(guard.__anext__())
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(read())
