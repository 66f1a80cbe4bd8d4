"""The stream: primed by the provider, read once, closed as often as anybody likes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from chatstack import (
    BrokenStreamError,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    Fallback,
    Message,
    RateLimitError,
    ServerError,
    StreamClosedError,
    ToolCall,
    ToolResult,
    TurnTimeoutError,
    Usage,
)
from chatstack.errors import ProviderTimeoutError
from chatstack.testing import ScriptedClient
from chatstack.values.responses import CallDelta

DONE = ChatUpdate(
    message_done=Message.assistant("ab"), usage=Usage(3, 2), finish_reason="stop", response_id="r-1", model="m"
)


class Source:
    """An async generator of updates and errors that tells whether it was closed, and how far it was read."""

    def __init__(self, *steps: ChatUpdate | BaseException, delay_seconds: float = 0) -> None:
        self.steps = steps
        self.read = 0
        self.is_closed = False
        self.delay_seconds = delay_seconds

    async def updates(self) -> AsyncGenerator[ChatUpdate, None]:
        try:
            for step in self.steps:
                self.read += 1
                if self.delay_seconds:
                    await asyncio.sleep(self.delay_seconds)
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            self.is_closed = True

    def stream(self) -> ChatStream:
        return ChatStream(self.updates())


class Watch:
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.inside = 0
        self.steps = 0
        self.endings: list[tuple[ChatResponse | None, BaseException | None]] = []

    def enter(self) -> object:
        self.inside += 1
        self.steps += 1
        return self.steps

    def leave(self, token: object, /) -> None:
        assert token == self.steps
        self.inside -= 1

    def ended(self, answer: ChatResponse | None, error: BaseException | None, /) -> None:
        self.endings.append((answer, error))


def plain(inner: ChatStream) -> ChatStream:
    return inner


def owned(inner: ChatStream) -> ChatStream:
    async def on() -> AsyncGenerator[ChatUpdate, None]:
        async for update in inner:
            yield update

    return ChatStream(on(), owns=inner)


def watched(inner: ChatStream) -> ChatStream:
    return ChatStream.watched(inner, Watch())


def opened(inner: ChatStream) -> ChatStream:
    async def send() -> ChatStream:
        return inner

    return ChatStream.opening(send)


async def iterated(stream: ChatStream) -> None:
    async for _ in stream:
        pass


def ab() -> Source:
    return Source(ChatUpdate(text="a"), ChatUpdate(text="b"), DONE)


# Reading


def test_iterating_gives_every_update_in_order() -> None:
    async def run() -> list[str]:
        return [update.text async for update in ab().stream()]

    assert asyncio.run(run()) == ["a", "b", ""]


def test_response_reads_the_rest_and_folds_all_of_it() -> None:
    async def run() -> ChatResponse:
        stream = ab().stream()
        await stream.__anext__()
        return await stream.response()

    response = asyncio.run(run())
    assert response == ChatResponse(
        messages=(Message.assistant("ab"),), usage=Usage(3, 2), finish_reason="stop", id="r-1", model="m"
    )


def test_response_may_be_asked_again() -> None:
    async def run() -> tuple[ChatResponse, ChatResponse]:
        stream = ab().stream()
        return await stream.response(), await stream.response()

    first, second = asyncio.run(run())
    assert first == second
    assert first.text == "ab"


def test_response_may_be_asked_after_the_loop_and_after_the_block() -> None:
    async def run() -> tuple[str, str]:
        async with ab().stream() as stream:
            async for _ in stream:
                pass
            inside = await stream.response()
        return inside.text, (await stream.response()).text

    assert asyncio.run(run()) == ("ab", "ab")


def test_so_far_holds_what_had_arrived_of_a_stream_that_is_closed_before_it_is_read() -> None:
    async def run() -> ChatResponse:
        stream = await ChatStream.primed(Source(ChatUpdate(text="a", usage=Usage(3)), DONE).updates())
        await stream.aclose()
        with pytest.raises(StreamClosedError):
            await anext(stream)
        return stream.so_far

    closed = asyncio.run(run())
    assert (closed.usage, closed.messages) == (Usage(3), ())


def test_so_far_holds_whole_messages_only() -> None:
    async def run() -> tuple[int, int]:
        stream = ab().stream()
        await stream.__anext__()
        before = len(stream.so_far.messages)
        await stream.response()
        return before, len(stream.so_far.messages)

    assert asyncio.run(run()) == (0, 1)


def test_an_ended_stream_stays_ended() -> None:
    async def run() -> None:
        stream = ab().stream()
        await stream.response()
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await stream.__anext__()

    asyncio.run(run())


def test_usage_of_all_rounds_and_overhead_add_up_and_the_last_round_names_the_answer() -> None:
    source = Source(
        ChatUpdate(
            message_done=Message.assistant("one"), usage=Usage(1, 1), finish_reason="tool_calls", response_id="1"
        ),
        ChatUpdate(overhead_usage=Usage(7, 7)),
        ChatUpdate(
            message_done=Message.assistant("two"), usage=Usage(2, 2), finish_reason="stop", response_id="2", round=1
        ),
        ChatUpdate(overhead_usage=Usage(1, 0)),
    )
    response = asyncio.run(source.stream().response())
    assert (response.usage, response.overhead_usage) == (Usage(3, 3), Usage(8, 7))
    assert (response.finish_reason, response.id, response.rounds) == ("stop", "2", 2)


def test_a_finish_reason_that_comes_by_itself_is_kept() -> None:
    source = Source(
        ChatUpdate(message_done=Message.assistant("cut")),
        ChatUpdate(finish_reason="length", response_id="r", model="m"),
    )
    response = asyncio.run(source.stream().response())
    assert (response.finish_reason, response.id, response.model) == ("length", "r", "m")


# Failing


def test_an_error_reaches_the_reader_and_stays_the_answer_to_every_later_read() -> None:
    async def run() -> None:
        stream = Source(ChatUpdate(text="a"), BrokenStreamError("gone")).stream()
        assert (await stream.__anext__()).text == "a"
        for _ in range(2):
            with pytest.raises(BrokenStreamError, match="gone"):
                await stream.__anext__()
        with pytest.raises(BrokenStreamError, match="gone"):
            await stream.response()

    asyncio.run(run())


HELLO, LOOK = ChatUpdate(text="hello"), ToolCall("1", "look")


@pytest.mark.parametrize(
    "steps",
    [
        (),
        (HELLO,),
        (HELLO, ChatUpdate(finish_reason="stop", usage=Usage(3, 2))),
        (ChatUpdate(reasoning="hm"),),
        (ChatUpdate(part=LOOK),),
        (ChatUpdate(call_delta=CallDelta(0, "1", "look")),),
        (HELLO, DONE, HELLO),
        (HELLO, DONE, ChatUpdate(usage=Usage(1, 1)), HELLO),
        (HELLO, DONE, HELLO, ChatUpdate(usage=Usage(1, 1))),
        (HELLO, DONE, ChatUpdate(text="more", usage=Usage(1, 1))),
    ],
)
@pytest.mark.parametrize("read", [iterated, ChatStream.response])
@pytest.mark.parametrize("around", [plain, owned, watched, opened])
def test_a_stream_that_ends_without_its_message_is_broken_wherever_it_is_read(
    around: Callable[[ChatStream], ChatStream],
    read: Callable[[ChatStream], Awaitable[object]],
    steps: tuple[ChatUpdate, ...],
) -> None:
    async def run() -> None:
        source, told = Source(*steps), list[ChatResponse]()
        stream = around(source.stream())
        stream.when_answered(told.append)
        for _ in range(2):
            with pytest.raises(BrokenStreamError, match="the answer is not complete"):
                await read(stream)
        await stream.aclose()
        assert (source.is_closed, told) == (True, [])

    asyncio.run(run())


@pytest.mark.parametrize(
    "steps",
    [
        (ChatUpdate(message_done=Message.assistant(), finish_reason="stop"),),
        (ChatUpdate(message_done=Message.assistant(), finish_reason="refused"),),
        (ChatUpdate(text="no", message_done=Message.assistant("no"), finish_reason="refused"),),
        (ChatUpdate(part=LOOK), ChatUpdate(message_done=Message.assistant(LOOK), finish_reason="tool_calls")),
        (HELLO, ChatUpdate(message_done=Message.assistant("hello"))),
        (HELLO, ChatUpdate(message_done=Message.assistant("hello")), ChatUpdate(finish_reason="length")),
        (HELLO, DONE, ChatUpdate(part=ToolResult("1", "look", "x"), message_done=Message.tool("1", "x"))),
    ],
)
@pytest.mark.parametrize("around", [plain, owned, watched, opened])
def test_an_answer_whose_message_is_finished_is_whole_however_little_is_in_it(
    around: Callable[[ChatStream], ChatStream], steps: tuple[ChatUpdate, ...]
) -> None:
    answer = asyncio.run(around(Source(*steps).stream()).response())
    assert answer.messages == tuple(step.message_done for step in steps if step.message_done is not None)


def test_what_had_arrived_before_an_error_can_still_be_seen() -> None:
    async def run() -> ChatResponse:
        stream = Source(DONE, BrokenStreamError("gone")).stream()
        with pytest.raises(BrokenStreamError):
            await stream.response()
        return stream.so_far

    assert asyncio.run(run()).text == "ab"


def test_reading_on_after_a_cancelled_read_never_passes_half_an_answer_off_as_whole() -> None:
    async def run() -> None:
        stream = Source(ChatUpdate(text="a"), DONE, delay_seconds=0.05).stream()
        reading = asyncio.ensure_future(stream.__anext__())
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        with pytest.raises(StreamClosedError, match="cancelled"):
            await stream.response()

    asyncio.run(run())


# Closing


def test_reading_a_closed_stream_says_that_the_answer_is_not_complete() -> None:
    async def run() -> None:
        stream = ab().stream()
        await stream.__anext__()
        await stream.aclose()
        with pytest.raises(StreamClosedError, match="closed before its end"):
            await stream.__anext__()
        with pytest.raises(StreamClosedError):
            await stream.response()

    asyncio.run(run())


def test_closing_again_and_again_is_harmless_and_closes_what_is_below() -> None:
    async def run() -> bool:
        source = ab()
        stream = source.stream()
        await stream.__anext__()
        for _ in range(3):
            await stream.aclose()
        return source.is_closed

    assert asyncio.run(run())


def test_leaving_the_block_early_closes_what_is_below() -> None:
    async def run() -> bool:
        source = ab()
        async with source.stream() as stream:
            await stream.__anext__()
        return source.is_closed

    assert asyncio.run(run())


def test_closing_closes_what_it_owns_even_if_it_was_never_read() -> None:
    async def run() -> bool:
        below = ab()
        inner = below.stream()
        await inner.__anext__()
        await ChatStream(ab().updates(), owns=inner).aclose()
        return below.is_closed

    assert asyncio.run(run())


def test_a_source_that_ends_before_what_it_reads_from_closes_that_too() -> None:
    async def run() -> tuple[str, bool]:
        below = ab()
        inner = below.stream()

        async def first_only() -> AsyncGenerator[ChatUpdate, None]:
            yield replace(await inner.__anext__(), message_done=Message.assistant("a"))

        text = "".join([update.text async for update in ChatStream(first_only(), owns=inner)])
        return text, below.is_closed

    assert asyncio.run(run()) == ("a", True)


# Primed


def test_priming_reads_up_to_the_first_content_and_loses_nothing() -> None:
    async def run() -> tuple[int, list[str]]:
        source = Source(ChatUpdate(model="m"), ChatUpdate(text="a"), ChatUpdate(text="b"), DONE)
        stream = await ChatStream.primed(source.updates())
        read = source.read
        return read, [update.text async for update in stream]

    assert asyncio.run(run()) == (2, ["", "a", "b", ""])


def test_an_error_before_the_first_content_is_raised_by_priming() -> None:
    async def run() -> bool:
        source = Source(ChatUpdate(model="m"), ServerError("overloaded"))
        with pytest.raises(ServerError, match="overloaded"):
            await ChatStream.primed(source.updates())
        return source.is_closed

    assert asyncio.run(run())


def test_an_error_after_the_first_content_is_raised_where_it_is_read() -> None:
    async def run() -> None:
        stream = await ChatStream.primed(Source(ChatUpdate(text="a"), ServerError("late")).updates())
        await stream.__anext__()
        with pytest.raises(ServerError, match="late"):
            await stream.__anext__()

    asyncio.run(run())


def test_an_answer_without_content_is_primed_too() -> None:
    async def run() -> ChatResponse:
        empty = ChatUpdate(message_done=Message.assistant(), finish_reason="stop", usage=Usage(1, 0))
        said_nothing = await ChatStream.primed(Source(empty).updates())
        return await said_nothing.response()

    said_nothing = asyncio.run(run())
    assert (said_nothing.text, said_nothing.finish_reason) == ("", "stop")


@pytest.mark.parametrize("steps", [(), (ChatUpdate(finish_reason="stop", usage=Usage(1, 0)),)])
def test_an_answer_with_neither_content_nor_message_is_refused_by_priming(steps: tuple[ChatUpdate, ...]) -> None:
    source = Source(*steps)
    with pytest.raises(BrokenStreamError, match="without a message"):
        asyncio.run(ChatStream.primed(source.updates()))
    assert source.is_closed


def test_a_primed_stream_that_was_closed_gives_nothing_more_not_even_what_it_had_read() -> None:
    async def run() -> None:
        stream = await ChatStream.primed(ab().updates())
        await stream.aclose()
        with pytest.raises(StreamClosedError):
            await stream.__anext__()

    asyncio.run(run())


class Steps:
    """An async iterator without ``aclose``."""

    def __init__(self, *steps: object) -> None:
        self.steps = list(steps)

    def __aiter__(self) -> Steps:
        return self

    async def __anext__(self) -> Any:
        step = self.steps.pop(0)
        if isinstance(step, BaseException):
            raise step
        return step


def test_an_error_of_a_source_that_cannot_be_closed_is_raised_as_it_is() -> None:
    class Own:
        async def send(self, request: ChatRequest, /) -> ChatStream:
            return await ChatStream.primed(Steps(RateLimitError("slow down", provider="own")))

    async def main() -> None:
        with pytest.raises(RateLimitError, match="slow down"):
            await Own().send(ChatRequest((Message.user("hi"),)))
        client = ChatStack(Own()).use(Fallback, clients=[ScriptedClient(["from the other"])]).build()
        assert (await client.get_response("hi")).text == "from the other"
        stream = await ChatStream.primed(Steps(ChatUpdate(text="a"), ServerError("gone")))
        with pytest.raises(ServerError, match="gone"):
            await stream.response()
        await stream.aclose()
        async with ChatStream(Steps(ChatUpdate(text="a"))) as stream:
            assert (await anext(stream)).text == "a"

    asyncio.run(main())


def test_a_source_that_closes_without_waiting_hides_no_error() -> None:
    class Closes(Steps):
        def aclose(self) -> None:
            self.steps.clear()

    async def main() -> None:
        source = Closes(ServerError("gone"), "more")
        with pytest.raises(ServerError, match="gone"):
            await ChatStream.primed(source)
        assert source.steps == []

    asyncio.run(main())


async def awaited() -> list[ChatUpdate]:
    return [DONE]


async def not_called() -> AsyncGenerator[ChatUpdate, None]:
    yield DONE


def not_async() -> Any:
    yield DONE


@pytest.mark.parametrize(
    ("make", "given"),
    [
        (lambda: [DONE], "list"),
        (lambda: None, "NoneType"),
        (awaited, r"awaited \(a coroutine\)"),
        (not_async, r"not_async \(a generator\)"),
        (lambda: not_called, r"not_called \(a function\)"),
    ],
)
def test_what_is_no_source_is_named(make: Callable[[], Any], given: str) -> None:
    told = f"^ChatStream: {given} is no source of updates: write an async generator, and call it"
    with pytest.raises(TypeError, match=told):
        asyncio.run(ChatStream.primed(make()))
    with pytest.raises(TypeError, match=told):
        ChatStream(make())


@pytest.mark.parametrize(
    ("update", "told"),
    [
        ("a", "a str, not a ChatUpdate"),
        (None, "a NoneType, not a ChatUpdate"),
        (Message.assistant("a"), "a Message, not a ChatUpdate"),
        (ChatUpdate(message_done="a"), "a str as message_done"),  # type: ignore[arg-type]
        (ChatUpdate(message_done=True), "a bool as message_done"),  # type: ignore[arg-type]
        (ChatUpdate(message_done=Message.user("a")), "a user message as message_done"),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_no_update_of_an_answer_is_named_with_its_source(update: Any, told: str, is_first: bool) -> None:
    async def updates() -> AsyncGenerator[ChatUpdate, None]:
        if not is_first:
            yield ChatUpdate(text="a")
        yield update
        yield DONE

    async def main() -> None:
        expected = f"updates gave {told}"
        if is_first:
            with pytest.raises(TypeError, match=expected):
                await ChatStream.primed(updates())
        else:
            stream = await ChatStream.primed(updates())
            assert (await anext(stream)).text == "a"
            for _ in range(2):  # and nothing after it makes an answer
                with pytest.raises(TypeError, match=expected):
                    await anext(stream)
            await stream.aclose()
        with pytest.raises(TypeError, match=expected):
            await ChatStream(updates()).response()

    asyncio.run(main())


def test_cancelled_priming_closes_the_source() -> None:
    async def run() -> bool:
        source = Source(ChatUpdate(text="a"), delay_seconds=10)
        priming = asyncio.ensure_future(ChatStream.primed(source.updates()))
        await asyncio.sleep(0.01)
        priming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await priming
        return source.is_closed

    assert asyncio.run(run())


# Opening


class Opener:
    """Counts how often it was asked."""

    def __init__(self, make: Callable[[], ChatStream], *, delay_seconds: float = 0) -> None:
        self.make = make
        self.times = 0
        self.delay_seconds = delay_seconds

    async def __call__(self) -> ChatStream:
        self.times += 1
        await asyncio.sleep(self.delay_seconds)
        return self.make()


def test_an_unopened_stream_sends_nothing_until_it_is_entered_and_then_once() -> None:
    async def run() -> list[int]:
        opener = Opener(ab().stream)
        stream = ChatStream.opening(opener)
        times = [opener.times]
        async with stream:
            times.append(opener.times)
            await stream.response()
            times.append(opener.times)
        return times

    assert asyncio.run(run()) == [0, 1, 1]


def test_an_unopened_stream_sends_when_it_is_iterated_too() -> None:
    async def run() -> tuple[str, int]:
        opener = Opener(ab().stream)
        text = "".join([update.text async for update in ChatStream.opening(opener)])
        return text, opener.times

    assert asyncio.run(run()) == ("ab", 1)


def test_closing_an_unopened_stream_sends_nothing() -> None:
    async def run() -> int:
        opener = Opener(ab().stream)
        stream = ChatStream.opening(opener)
        await stream.aclose()
        async with stream:
            with pytest.raises(StreamClosedError):
                await stream.__anext__()
        return opener.times

    assert asyncio.run(run()) == 0


def test_a_refusal_is_raised_on_entering_and_not_sent_again_by_reading_on() -> None:
    async def run() -> int:
        def refuse() -> ChatStream:
            raise ServerError("no")

        opener = Opener(refuse)
        stream = ChatStream.opening(opener)
        with pytest.raises(ServerError):
            await stream.__aenter__()
        with pytest.raises(ServerError):
            await stream.response()
        return opener.times

    assert asyncio.run(run()) == 1


def test_the_time_limit_covers_the_opening() -> None:
    async def run() -> None:
        stream = ChatStream.opening(Opener(ab().stream, delay_seconds=10), timeout_seconds=0.02)
        with pytest.raises(TurnTimeoutError, match=r"timeout_seconds=0\.02"):
            await stream.response()

    asyncio.run(run())


def test_the_time_limit_covers_all_updates_together_and_closes_what_is_below() -> None:
    async def run() -> bool:
        source = Source(*[ChatUpdate(text="a")] * 100, delay_seconds=0.01)
        stream = ChatStream.opening(Opener(source.stream), timeout_seconds=0.05)
        with pytest.raises(TurnTimeoutError):
            await stream.response()
        return source.is_closed

    assert asyncio.run(run())


def test_the_time_that_the_reader_takes_between_updates_counts_too() -> None:
    async def run() -> None:
        source = Source(*[ChatUpdate(text="a")] * 3, delay_seconds=0.001)
        stream = ChatStream.opening(Opener(source.stream), timeout_seconds=0.3)
        await stream.__anext__()
        await asyncio.sleep(0.35)
        with pytest.raises(TurnTimeoutError):
            await stream.response()

    asyncio.run(run())


def test_a_timeout_of_the_providers_own_is_not_taken_for_the_turns() -> None:
    async def run() -> None:
        stream = ChatStream.opening(Opener(Source(ProviderTimeoutError("slow")).stream), timeout_seconds=5)
        with pytest.raises(ProviderTimeoutError, match="slow"):
            await stream.response()

    asyncio.run(run())


# Watched


def test_a_watch_is_told_of_the_end_once_with_the_whole_answer() -> None:
    async def run() -> Watch:
        watch = Watch()
        stream = ChatStream.watched(ab().stream(), watch)
        async for _ in stream:
            pass
        await stream.aclose()
        return watch

    watch = asyncio.run(run())
    ((answer, error),) = watch.endings
    assert answer is not None
    assert (answer.text, error, watch.inside) == ("ab", None, 0)


def test_asking_a_watched_stream_for_the_whole_gives_the_same_as_iterating() -> None:
    async def run() -> tuple[ChatResponse, Watch]:
        watch = Watch()
        stream = ChatStream.watched(ab().stream(), watch)
        await stream.response()
        return await stream.response(), watch

    answer, watch = asyncio.run(run())
    assert answer.text == "ab"
    assert watch.endings == [(answer, None)]


@pytest.mark.parametrize("whole", [True, False], ids=["response", "iterated"])
def test_a_watch_is_told_of_an_error_with_what_had_arrived(whole: bool) -> None:
    async def run() -> Watch:
        watch = Watch()
        stream = ChatStream.watched(Source(DONE, ServerError("no")).stream(), watch)
        if not whole:
            await stream.__anext__()
        with pytest.raises(ServerError):
            await stream.response()
        await stream.aclose()
        return watch

    watch = asyncio.run(run())
    ((answer, error),) = watch.endings
    assert answer is not None
    assert answer.text == "ab"
    assert isinstance(error, ServerError)
    assert watch.inside == 0


def test_a_watch_is_told_of_an_early_close() -> None:
    async def run() -> Watch:
        watch = Watch()
        stream = ChatStream.watched(ab().stream(), watch)
        await stream.__anext__()
        await stream.aclose()
        await stream.aclose()
        return watch

    ((_, error),) = asyncio.run(run()).endings
    assert isinstance(error, GeneratorExit)


def test_a_watch_is_told_when_the_stream_is_dropped() -> None:
    async def run() -> Watch:
        watch = Watch()
        stream = ChatStream.watched(ab().stream(), watch)
        await stream.__anext__()
        del stream
        gc.collect()
        return watch

    ((answer, error),) = asyncio.run(run()).endings
    assert answer is None
    assert isinstance(error, GeneratorExit)


def test_a_watch_is_told_of_a_cancellation() -> None:
    async def run() -> Watch:
        watch = Watch()
        stream = ChatStream.watched(Source(ChatUpdate(text="a"), delay_seconds=10).stream(), watch)
        reading = asyncio.ensure_future(stream.response())
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        return watch

    watch = asyncio.run(run())
    ((_, error),) = watch.endings
    assert isinstance(error, asyncio.CancelledError)
    assert watch.inside == 0
