"""Errors that end a turn say what it had added until then, as tools may have done what must not be done twice."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence

import pytest

from chatstack import (
    ChatClient,
    ChatRequest,
    ChatStack,
    ChatStackError,
    ChatStream,
    FunctionInvoker,
    Message,
    OutputError,
    ServerError,
    StreamClosedError,
    ToolCall,
    ToolLoopError,
    TurnTimeoutError,
    Usage,
    tool,
)
from chatstack.testing import ScriptedClient

BOOK = Message.assistant(ToolCall("1", "book", '{"city": "Oslo"}'))
BOTH = Message.assistant(ToolCall("2", "book", '{"city": "Rome"}'), ToolCall("3", "wait", "{}"))


@tool
def book(city: str) -> str:
    return f"booked {city}"


@tool
async def wait() -> None:
    await asyncio.sleep(60)


class Hangs:
    """A model that gives no answer once its script is read."""

    def __init__(self, answers: Sequence[Message]) -> None:
        self.answers = list(answers)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if not self.answers:
            await asyncio.sleep(60)
        return await ScriptedClient([self.answers.pop(0)]).send(request)


def failure_of(provider: ChatClient, *, timeout_seconds: float | None = None) -> ChatStackError:
    client = ChatStack(provider).use(FunctionInvoker, tools=[book, wait]).build()
    with pytest.raises(ChatStackError) as caught:
        asyncio.run(client.get_response("go", timeout_seconds=timeout_seconds))
    return caught.value


def foreign(provider: ChatClient, *, timeout_seconds: float | None = None) -> Exception:
    client = ChatStack(provider).use(FunctionInvoker, tools=[book, pause], propagate=(Interrupt,)).build()
    try:
        asyncio.run(client.get_response("go", timeout_seconds=timeout_seconds))
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("timeout_seconds", [None, 30.0])
def test_a_later_round_that_fails_tells_what_the_tools_have_done(timeout_seconds: float | None) -> None:
    error = failure_of(ScriptedClient([BOOK, ServerError("overloaded")]), timeout_seconds=timeout_seconds)
    assert isinstance(error, ServerError)
    assert error.messages == (BOOK, Message.tool("1", "booked Oslo", name="book"))
    assert error.usage is not None
    assert error.usage.output_tokens > 0
    assert error.overhead_usage == Usage()
    assert pickle.loads(pickle.dumps(error)).messages == error.messages


def test_a_turn_out_of_time_tells_them_too() -> None:
    error = failure_of(Hangs([BOOK]), timeout_seconds=0.3)
    assert isinstance(error, TurnTimeoutError)
    assert error.messages == (BOOK, Message.tool("1", "booked Oslo", name="book"))


def test_only_whole_pairs_are_told() -> None:
    assert failure_of(Hangs([BOTH]), timeout_seconds=0.3).messages == ()
    assert len(failure_of(Hangs([BOOK, BOTH]), timeout_seconds=0.3).messages) == 2


class Interrupt(Exception):
    """An error of another library's."""


class Own(Exception):
    """An error that says something else by that name."""

    def __init__(self) -> None:
        super().__init__()
        self.messages = ["no such city"]


class Sealed(Exception):
    """An error that takes no attributes."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


@tool
def pause() -> None:
    raise Interrupt


@pytest.mark.parametrize("timeout_seconds", [None, 30.0])
@pytest.mark.parametrize("error", [OSError("reset"), Interrupt(), ExceptionGroup("both", [OSError()])], ids=repr)
def test_an_error_that_is_not_ours_tells_them_too(error: Exception, timeout_seconds: float | None) -> None:
    found = foreign(ScriptedClient([BOOK, error]), timeout_seconds=timeout_seconds)
    assert found is error
    assert found.messages == (BOOK, Message.tool("1", "booked Oslo", name="book"))  # type: ignore[attr-defined]


def test_so_does_what_ends_a_turn_by_propagating() -> None:
    found = foreign(ScriptedClient([BOOK, [ToolCall("2", "pause")]]))
    assert isinstance(found, Interrupt)
    assert len(found.messages) == 2  # type: ignore[attr-defined]


def test_messages_of_its_own_stay_and_none_are_forced_on_it() -> None:
    assert foreign(ScriptedClient([BOOK, Own()])).messages == ["no such city"]  # type: ignore[attr-defined]
    assert not hasattr(foreign(ScriptedClient([BOOK, Sealed()])), "messages")


def test_an_error_that_comes_again_tells_only_of_its_own_turn() -> None:
    same = ServerError("overloaded")
    assert len(failure_of(ScriptedClient([BOOK, same])).messages) == 2
    assert failure_of(ScriptedClient([same])).messages == ()
    assert same.usage is None or same.usage.total_tokens == 0


@pytest.mark.parametrize("timeout_seconds", [None, 30.0])
def test_an_answer_of_another_type_tells_them_too(timeout_seconds: float | None) -> None:
    client = ChatStack(ScriptedClient([BOOK, "no number"])).use(FunctionInvoker, tools=[book]).build()
    with pytest.raises(OutputError) as caught:
        asyncio.run(client.get_response("go", output_type=int, timeout_seconds=timeout_seconds))
    assert [message.role for message in caught.value.messages] == ["assistant", "tool", "assistant"]


class Reads:
    """A layer that reads the answer by itself, as one that checks it would."""

    def __init__(self, inner: ChatClient) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)
        await stream.response()
        return stream


@pytest.mark.parametrize("timeout_seconds", [None, 30.0])
def test_what_the_loop_says_itself_stays_where_a_layer_reads_its_answer(timeout_seconds: float | None) -> None:
    provider = ScriptedClient([BOOK, BOOK, BOOK])
    client = ChatStack(provider).use(Reads).use(FunctionInvoker, tools=[book], max_tool_calls_per_turn=1).build()
    with pytest.raises(ToolLoopError) as caught:
        asyncio.run(client.get_response("go", timeout_seconds=timeout_seconds))
    assert [message.role for message in caught.value.messages] == ["assistant", "tool"] * 2
    assert caught.value.usage is not None
    assert caught.value.usage.output_tokens > 0


# Streams


@pytest.mark.parametrize("timeout_seconds", [None, 30.0])
@pytest.mark.parametrize("error", [ServerError("overloaded"), OSError("reset")], ids=repr)
def test_an_error_that_ends_a_stream_tells_them_too(error: Exception, timeout_seconds: float | None) -> None:
    client = ChatStack(ScriptedClient([BOOK, error])).use(FunctionInvoker, tools=[book]).build()

    async def read() -> None:
        async with client.get_streaming_response("go", timeout_seconds=timeout_seconds) as stream:
            async for _ in stream:
                pass

    with pytest.raises(type(error)) as caught:
        asyncio.run(read())
    assert caught.value.messages == (BOOK, Message.tool("1", "booked Oslo", name="book"))  # type: ignore[attr-defined]


def test_a_stream_out_of_time_tells_them_too() -> None:
    client = ChatStack(Hangs([BOOK])).use(FunctionInvoker, tools=[book]).build()

    async def read() -> None:
        await client.get_streaming_response("go", timeout_seconds=0.3).response()

    with pytest.raises(TurnTimeoutError) as caught:
        asyncio.run(read())
    assert len(caught.value.messages) == 2


def test_a_stream_that_somebody_stops_tells_its_reader() -> None:
    """The button beside an answer: another task closes the stream, in the middle of a tool call."""
    client = ChatStack(ScriptedClient([BOOK, BOTH])).use(FunctionInvoker, tools=[book, wait]).build()

    async def read() -> None:
        stream = client.get_streaming_response("go")
        button = asyncio.get_running_loop().call_later(
            0.2, lambda: closing.append(asyncio.ensure_future(stream.aclose()))
        )
        try:
            async for _ in stream:
                pass
        finally:
            button.cancel()

    closing: list[asyncio.Future[None]] = []
    with pytest.raises(StreamClosedError) as caught:
        asyncio.run(read())
    assert caught.value.messages == (BOOK, Message.tool("1", "booked Oslo", name="book"))


def test_a_streamed_answer_of_another_type_tells_them_too() -> None:
    client = ChatStack(ScriptedClient([BOOK, "no number"])).use(FunctionInvoker, tools=[book]).build()

    async def read() -> None:
        await client.get_streaming_response("go", output_type=int).response()

    with pytest.raises(OutputError) as caught:
        asyncio.run(read())
    assert [message.role for message in caught.value.messages] == ["assistant", "tool", "assistant"]
