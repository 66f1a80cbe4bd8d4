"""Who wants the whole answer is told once, at its end, and costs nothing before."""

from __future__ import annotations

import asyncio
import gc
import sys
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeAlias

import pytest

from chatstack import (
    BrokenStreamError,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    ContextWindowGuard,
    Message,
    StreamClosedError,
    Usage,
)
from chatstack.testing import ScriptedClient, TelemetryCapture

DONE = ChatUpdate(message_done=Message.assistant("ab"), usage=Usage(3, 2), finish_reason="stop", response_id="r-1")
Reading: TypeAlias = Callable[[ChatStream], Awaitable[object]]
Making: TypeAlias = Callable[[AsyncGenerator[ChatUpdate, None]], Awaitable[ChatStream]]


async def updates(*steps: ChatUpdate | BaseException) -> AsyncGenerator[ChatUpdate, None]:
    for step in steps:
        await asyncio.sleep(0)
        if isinstance(step, BaseException):
            raise step
        yield step


class Watch:
    """Looks on."""

    def enter(self) -> object:
        return None

    def leave(self, token: object, /) -> None:
        pass

    def ended(self, answer: ChatResponse | None, error: BaseException | None, /) -> None:
        pass


async def plain(source: AsyncGenerator[ChatUpdate, None]) -> ChatStream:
    return ChatStream(source)


async def primed(source: AsyncGenerator[ChatUpdate, None]) -> ChatStream:
    return await ChatStream.primed(source)


async def watched(source: AsyncGenerator[ChatUpdate, None]) -> ChatStream:
    return ChatStream.watched(await ChatStream.primed(source), Watch())


async def opening(source: AsyncGenerator[ChatUpdate, None]) -> ChatStream:
    return ChatStream.opening(lambda: ChatStream.primed(source))


async def iterate(stream: ChatStream) -> None:
    async for _ in stream:
        pass


async def ask(stream: ChatStream) -> None:
    await stream.response()


async def iterate_then_ask(stream: ChatStream) -> None:
    await iterate(stream)
    await stream.response()
    await iterate(stream)


async def ask_twice(stream: ChatStream) -> None:
    await stream.response()
    await stream.response()


async def begin_then_ask(stream: ChatStream) -> None:
    await anext(stream)
    await stream.response()


async def read_in_a_block(stream: ChatStream) -> None:
    async with stream:
        await iterate(stream)


EVERY_KIND = pytest.mark.parametrize("make", [plain, primed, watched, opening])


@EVERY_KIND
@pytest.mark.parametrize(
    "read", [iterate, ask, iterate_then_ask, ask_twice, begin_then_ask, read_in_a_block], ids=lambda each: each.__name__
)
def test_it_is_told_once_the_whole_answer_however_that_is_read(make: Making, read: Reading) -> None:
    told: list[ChatResponse] = []

    async def use() -> ChatResponse:
        stream = await make(updates(ChatUpdate(text="a"), ChatUpdate(text="b"), DONE))
        stream.when_answered(told.append)
        await read(stream)
        await stream.aclose()
        return stream.so_far

    answer = asyncio.run(use())
    assert told == [answer]
    assert (told[0].text, told[0].usage, told[0].finish_reason) == ("ab", Usage(3, 2), "stop")


@EVERY_KIND
def test_several_are_told_in_their_order(make: Making) -> None:
    told: list[str] = []

    async def use() -> None:
        stream = await make(updates(DONE))
        for name in "abc":
            stream.when_answered(lambda answer, name=name: told.append(name + answer.text))  # type: ignore[misc]
        await ask(stream)

    asyncio.run(use())
    assert told == ["aab", "bab", "cab"]


def test_who_listens_to_the_inner_stream_is_told_when_the_outer_one_is_read() -> None:
    told: list[str] = []

    async def use(read: Reading) -> None:
        inner = await primed(updates(ChatUpdate(text="a"), DONE))
        inner.when_answered(lambda answer: told.append(f"inner {answer.text}"))
        outer = ChatStream.watched(inner, Watch())
        outer.when_answered(lambda answer: told.append(f"outer {answer.text}"))
        await read(outer)

    for read in (iterate, ask):
        told.clear()
        asyncio.run(use(read))
        assert told == ["inner ab", "outer ab"]


def test_an_answer_of_nothing_is_an_answer() -> None:
    told: list[ChatResponse] = []

    async def use() -> None:
        stream = await primed(updates(ChatUpdate(message_done=Message.assistant())))
        stream.when_answered(told.append)
        await ask(stream)

    asyncio.run(use())
    assert [answer.text for answer in told] == [""]


# Answers that are none


async def closed_before_its_end(stream: ChatStream) -> None:
    await anext(stream)
    await stream.aclose()
    with pytest.raises(StreamClosedError):
        await stream.response()


async def closed_after_its_last_message(stream: ChatStream) -> None:
    while (await anext(stream)).message_done is None:
        pass
    await stream.aclose()


async def left_early(stream: ChatStream) -> None:
    async with stream:
        async for _ in stream:
            break


async def never_read(stream: ChatStream) -> None:
    await stream.aclose()


async def dropped(stream: ChatStream) -> None:
    await anext(stream)


@EVERY_KIND
@pytest.mark.parametrize(
    "leave",
    [closed_before_its_end, closed_after_its_last_message, left_early, never_read, dropped],
    ids=lambda each: each.__name__,
)
def test_of_an_answer_that_is_left_nobody_is_told(make: Making, leave: Reading) -> None:
    told: list[ChatResponse] = []

    async def use() -> None:
        stream = await make(updates(ChatUpdate(text="a"), DONE, ChatUpdate(text="b")))
        stream.when_answered(told.append)
        await leave(stream)

    asyncio.run(use())
    assert told == []


@EVERY_KIND
@pytest.mark.parametrize("read", [iterate, ask], ids=lambda each: each.__name__)
def test_of_an_answer_that_breaks_nobody_is_told(make: Making, read: Reading) -> None:
    told: list[ChatResponse] = []

    async def use() -> None:
        stream = await make(updates(ChatUpdate(text="a"), DONE, BrokenStreamError("cut")))
        stream.when_answered(told.append)
        for _ in range(2):
            with pytest.raises(BrokenStreamError):
                await read(stream)
        await stream.aclose()

    asyncio.run(use())
    assert told == []


@EVERY_KIND
@pytest.mark.parametrize("read", [iterate, ask], ids=lambda each: each.__name__)
def test_of_an_answer_whose_reading_is_cancelled_nobody_is_told(make: Making, read: Reading) -> None:
    told: list[ChatResponse] = []

    async def hanging() -> AsyncGenerator[ChatUpdate, None]:
        yield ChatUpdate(text="a")
        yield DONE
        there.set()
        await asyncio.Event().wait()

    there = asyncio.Event()

    async def use() -> None:
        stream = await make(hanging())
        stream.when_answered(told.append)
        reading = asyncio.ensure_future(read(stream))
        await there.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        with pytest.raises(StreamClosedError):
            await stream.response()
        await stream.aclose()

    asyncio.run(use())
    assert told == []


# What it costs


@EVERY_KIND
@pytest.mark.parametrize("listeners", [1, 5])
def test_nothing_is_called_for_them_between_the_first_update_and_the_end(make: Making, listeners: int) -> None:
    def calls(chunks: int, listeners: int) -> int:
        """How many functions are called while that many updates are read."""
        count = 0

        def profiled(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        async def use() -> None:
            stream = await make(updates(*[ChatUpdate(text="a")] * chunks, DONE))
            for _ in range(listeners):
                stream.when_answered(lambda answer: None)
            await anext(stream)
            gc.disable()  # what others have registered with it is called, too
            sys.setprofile(profiled)
            try:
                for _ in range(chunks - 1):
                    await anext(stream)
            finally:
                sys.setprofile(None)
                gc.enable()
            await stream.aclose()

        asyncio.run(use())
        return count

    assert calls(50, listeners) == calls(50, 0)


# What it holds


@pytest.mark.usefixtures("without_collector")
@EVERY_KIND
@pytest.mark.parametrize("read", [dropped, iterate, ask], ids=lambda each: each.__name__)
def test_a_stream_with_listeners_goes_with_its_last_reference(make: Making, read: Reading) -> None:
    async def use() -> bool:
        stream = await make(updates(ChatUpdate(text="a"), DONE))
        here = weakref.ref(stream)
        request = ChatRequest((Message.user("hi"),))
        stream.sent = request
        stream.when_answered(lambda answer: print(request, answer))
        await read(stream)
        del stream
        return here() is None

    assert asyncio.run(use())


@pytest.mark.usefixtures("without_collector")
def test_who_was_told_is_let_go() -> None:
    class Listener:
        def __call__(self, answer: ChatResponse) -> None:
            pass

    async def use() -> bool:
        stream = await primed(updates(DONE))
        listener = Listener()
        here = weakref.ref(listener)
        stream.when_answered(listener)
        del listener
        await ask(stream)
        return here() is None

    assert asyncio.run(use())


@pytest.mark.usefixtures("without_collector")
def test_a_layer_that_listens_does_not_delay_the_end_of_a_span_of_a_dropped_stream() -> None:
    capture = TelemetryCapture()
    stack = ChatStack(ScriptedClient(["one two three"]))
    client = stack.use(ContextWindowGuard, max_context_tokens=1_000, prune_on_overflow=True).build(capture.resolve)

    async def use() -> None:
        stream = await client.send(ChatRequest((Message.user("hi"),), stream=True))
        await anext(stream)
        assert capture.open_spans == ("chat script",)
        del stream
        assert not capture.open_spans

    asyncio.run(use())


# The request as it reached the provider


def test_what_reached_the_provider_is_on_the_stream_and_a_watch_passes_it_on() -> None:
    async def use(client: ScriptedClient | object) -> tuple[ChatRequest | None, ChatRequest]:
        request = ChatRequest((Message.user("hi"),))
        stream = await client.send(request)  # type: ignore[union-attr]
        await stream.aclose()
        return stream.sent, request

    for resolve in (None, TelemetryCapture().resolve):
        sent, request = asyncio.run(use(ChatStack(ScriptedClient()).build(resolve)))
        assert sent is request
