"""One stream, several tasks: one reads, another may close it, and nobody sends twice."""

from __future__ import annotations

import asyncio

import pytest

from chatstack import ChatStack, ChatStream, StreamClosedError
from chatstack.errors import StreamBusyError
from chatstack.testing import ScriptedClient

WORDS = "a b c d e f g h"


def slow() -> ScriptedClient:
    return ScriptedClient([WORDS], delay_seconds=0.01)


def stream_of(model: ScriptedClient) -> ChatStream:
    return ChatStack(model).build().get_streaming_response("hello")


@pytest.mark.parametrize("seconds", [0, 0.005, 0.03], ids=["before it opens", "while it opens", "while it is read"])
def test_closing_a_stream_that_another_task_reads_stops_that_task(seconds: float) -> None:
    async def check() -> None:
        model = slow()
        stream = stream_of(model)
        reading = asyncio.create_task(stream.response())
        await asyncio.sleep(seconds)
        await stream.aclose()
        with pytest.raises(StreamClosedError):
            await reading
        assert model.open_streams == 0
        await stream.aclose()

    asyncio.run(check())


def test_an_error_in_the_body_is_not_hidden_by_a_task_that_still_reads() -> None:
    async def check() -> None:
        model, readings = slow(), []

        async def body() -> None:
            async with stream_of(model) as stream:
                readings.append(asyncio.create_task(stream.response()))
                await asyncio.sleep(0.03)
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await body()
        with pytest.raises(StreamClosedError):
            await readings[0]
        assert model.open_streams == 0

    asyncio.run(check())


def test_a_second_reader_is_refused_and_the_first_is_not_harmed() -> None:
    async def check() -> None:
        model = slow()
        stream = stream_of(model)
        first, second = await asyncio.gather(stream.response(), stream.response(), return_exceptions=True)
        assert not isinstance(first, BaseException)
        assert first.text == WORDS
        assert isinstance(second, StreamBusyError)
        assert len(model.requests) == 1

    asyncio.run(check())


def test_a_task_that_is_cancelled_from_outside_while_the_stream_is_closed_stays_cancelled() -> None:
    async def check() -> None:
        model = slow()
        stream = stream_of(model)
        reading = asyncio.create_task(stream.response())
        await asyncio.sleep(0.03)
        reading.cancel()
        await stream.aclose()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert model.open_streams == 0

    asyncio.run(check())


def test_closing_goes_on_where_it_was_cancelled() -> None:
    class Sticky:
        """A source that takes a while to close."""

        closed = False

        async def __anext__(self) -> object:
            raise StopAsyncIteration

        async def aclose(self) -> None:
            await asyncio.sleep(0.02)
            self.closed = True

    async def check() -> None:
        source = Sticky()
        stream = ChatStream(source)  # type: ignore[arg-type]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.aclose(), 0.005)
        await stream.aclose()
        assert source.closed

    asyncio.run(check())


def test_two_tasks_may_close_a_stream_that_a_third_one_reads() -> None:
    async def check() -> None:
        model = slow()
        stream = stream_of(model)
        reading = asyncio.create_task(stream.response())
        await asyncio.sleep(0.03)
        async with asyncio.timeout(300):
            await asyncio.gather(stream.aclose(), stream.aclose())
        with pytest.raises(StreamClosedError):
            await reading
        assert model.open_streams == 0

    asyncio.run(check())
