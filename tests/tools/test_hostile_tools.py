"""Tools that mean harm, or are just broken: the turn goes on or ends as stated, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pydantic
import pytest

from chatstack import (
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ProgressReporter,
    ToolCall,
    ToolLoopError,
    ToolResult,
)
from chatstack.errors import ToolError
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture

FLOOD = 100_000_000


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("hunter2")

    __repr__ = __str__


class UnprintableToolError(ToolError):
    def __str__(self) -> str:
        raise RuntimeError("hunter2")


class Blob(str):
    """Text that can be watched."""

    __slots__ = ("__weakref__",)


class Turn:
    """One turn with one tool, through a whole stack."""

    def __init__(self, function: Callable[..., Any], *answers: Answer, **options: Any) -> None:
        self.capture = TelemetryCapture()
        call = Message.assistant(ToolCall("call-1", getattr(function, "__name__", "tool"), "{}"))
        self.provider = ScriptedClient([*(answers or (call, "I see."))])
        self.client = (
            ChatStack(self.provider)
            .use(ProgressReporter)
            .use(FunctionInvoker, tools=[function], **options)
            .use(ContextWindowGuard, max_context_tokens=4_000, prune_on_overflow=True)
            .build(self.capture.resolve)
        )

    def ask(self) -> ChatResponse:
        async def asked() -> ChatResponse:
            async with asyncio.timeout(300):
                response = await self.client.get_response("go")
            assert len(asyncio.all_tasks()) == 1
            return response

        response = asyncio.run(asked())
        assert self.capture.open_spans == ()
        assert self.provider.open_streams == 0
        return response


def result_in(response: ChatResponse) -> ToolResult:
    """The one result of a turn."""
    (result,) = [each for message in response.messages for each in message.results]
    return result


def failed(function: Callable[..., Any], **options: Any) -> str:
    """What the model reads of a tool that failed, in a turn that goes on."""
    turn = Turn(function, **options)
    response = turn.ask()
    result = result_in(response)
    assert response.text == "I see."
    assert result.is_error
    assert isinstance(result.output, str)
    assert turn.provider.requests[-1].messages == (Message.user("go"), *response.messages[:-1])
    assert "hunter2" not in turn.capture.said()
    return result.output


# Floods


@pytest.mark.slow
@pytest.mark.parametrize("is_error", [False, True])
def test_a_flood_is_the_callers_whole_and_is_let_go_with_the_answer(is_error: bool) -> None:
    watched: list[weakref.ref[Blob]] = []

    def flood() -> str:
        text = Blob("x" * FLOOD)
        watched.append(weakref.ref(text))
        if is_error:
            raise ToolError(text)
        return text

    turn = Turn(flood)
    response = turn.ask()
    assert response.text == "I see."
    assert len(result_in(response).output) == FLOOD + (len("Error: ") if is_error else 0)
    *_, sent = turn.provider.requests[-1].messages
    assert 0 < len(sent.results[0].output) < 4_000 * 4  # the guard sends as much of it as fits
    assert "tool_result_shortened" in turn.capture.warnings
    assert len(turn.capture.said()) < 100_000
    del turn, response
    gc.collect()
    assert [each() for each in watched] == [None]


def test_a_flood_of_parallel_calls_is_answered_in_order_and_leaves_no_thread() -> None:
    def look(number: int) -> int:
        time.sleep(0.001)
        return number

    calls = Message.assistant(*(ToolCall(f"call-{at}", "look", f'{{"number": {at}}}') for at in range(300)))
    turn = Turn(look, calls, "I see.", max_tool_calls_per_turn=300, max_concurrency=20)
    response = turn.ask()
    assert [result.output for message in response.messages for result in message.results] == [
        str(at) for at in range(300)
    ]
    threads = [thread for thread in threading.enumerate() if thread.name == "chatstack-tool-look"]
    for thread in threads:  # one that has given its result is about to end
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


# What it gives


def circle() -> list[Any]:
    found: list[Any] = []
    found.append(found)
    return found


def deep() -> list[Any]:
    found: list[Any] = []
    for _ in range(100_000):
        found = [found]
    return found


def generator() -> Any:
    return (each for each in range(3))


def thing() -> object:
    return threading.Lock()


async def coroutine_in_vain() -> Any:
    return {1: object()}


class Unreadable(pydantic.BaseModel):
    """As its own author left it: what makes it plain raises."""

    number: int = 1

    @pydantic.model_serializer
    def written(self) -> dict[str, int]:
        raise KeyError("hunter2")

    def __str__(self) -> str:
        raise KeyError("hunter2")

    __repr__ = __str__


def unreadable() -> dict[str, Unreadable]:
    return {"a": Unreadable()}


NOT_TO_BE_WRITTEN = [circle, deep, generator, thing, coroutine_in_vain, unreadable]


@pytest.mark.parametrize("function", NOT_TO_BE_WRITTEN)
@pytest.mark.parametrize("with_details", [False, True])
def test_what_cannot_be_written_is_told_with_that_the_tool_was_run(
    function: Callable[..., Any], with_details: bool
) -> None:
    said = failed(function, include_error_details=with_details)
    assert said.startswith(
        f"Error: {function.__name__} was run, but its result cannot be given to you; calling it again"
    )
    assert "the tool must return text" in said
    assert ("hunter2" in said) is (with_details and function is unreadable)


# What it raises


@pytest.mark.parametrize(
    "error",
    [
        Unprintable(),
        UnprintableToolError(),
        ExceptionGroup("several", [ValueError("hunter2"), Unprintable()]),
        RecursionError("hunter2"),
        MemoryError(),
        StopAsyncIteration(),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "hunter2"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("with_details", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_whatever_it_raises_is_a_result(error: Exception, with_details: bool, is_async: bool) -> None:
    def breaks() -> None:
        raise error

    async def breaks_later() -> None:
        await asyncio.sleep(0)
        raise error

    said = failed(breaks_later if is_async else breaks, include_error_details=with_details)
    assert said.startswith("Error: ")


def test_a_tool_that_cannot_even_say_what_is_wrong_can_be_the_cause_of_the_end() -> None:
    def breaks() -> None:
        raise Unprintable

    call = Message.assistant(ToolCall("call-1", "breaks", "{}"))
    with pytest.raises(ToolLoopError, match="Unprintable") as caught:
        Turn(breaks, call, include_error_details=True, max_consecutive_failures=2).ask()
    assert isinstance(caught.value.__cause__, Unprintable)
    assert len(caught.value.messages) == 4


# What never ends


@pytest.mark.parametrize("is_async", [False, True])
def test_one_that_never_returns_is_left_behind_after_its_time(is_async: bool) -> None:
    let_go = threading.Event()

    def hangs() -> None:
        let_go.wait(300)

    async def hangs_too() -> None:
        await asyncio.get_running_loop().create_future()

    try:
        said = failed(hangs_too if is_async else hangs, tool_timeout_seconds=0.05)
    finally:
        let_go.set()
    assert said == f"Error: hangs{'_too' if is_async else ''} took longer than 0.05 seconds."


@pytest.mark.parametrize("is_async", [False, True])
def test_a_turn_can_be_cancelled_while_one_never_returns(is_async: bool) -> None:
    let_go = threading.Event()

    def hangs() -> None:
        let_go.wait(300)

    async def hangs_too() -> None:
        await asyncio.get_running_loop().create_future()

    turn = Turn(hangs_too if is_async else hangs)

    async def run() -> None:
        asking = asyncio.ensure_future(turn.client.get_response("go"))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert len(asyncio.all_tasks()) == 1

    try:
        asyncio.run(run())
    finally:
        let_go.set()
    assert turn.capture.open_spans == ()
    assert len(turn.provider.requests) == 1


def test_one_that_will_not_be_cancelled_at_first_ends_when_it_ends() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
        return "so there"

    response = Turn(stubborn, tool_timeout_seconds=0.05).ask()
    assert response.text == "I see."
    assert result_in(response) == ToolResult("call-1", "stubborn", "so there")


def test_one_that_cancels_its_own_task_does_not_end_the_turn_silently() -> None:
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    turn = Turn(cancels)

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await turn.client.get_response("go")

    asyncio.run(run())
    assert turn.capture.open_spans == ()


# What would change without a word


@pytest.mark.parametrize(("value", "said"), [(float("nan"), "not finite"), ({"png": b"\x89PNG"}, "holds bytes")])
def test_a_result_that_json_has_no_form_for_is_an_error_that_says_so(value: object, said: str) -> None:
    def measure() -> object:
        return value

    assert said in failed(measure)


# What tells a frame that it is closed


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_generator_exit_ends_the_turn_and_leaves_no_context_behind(is_async: bool, streaming: bool) -> None:
    async def exits() -> str:
        await asyncio.sleep(0)
        raise GeneratorExit("hunter2")

    def exits_in_a_thread() -> str:
        raise GeneratorExit("hunter2")

    async def ask() -> None:
        before = dict(contextvars.copy_context().items())
        client = turn.client
        asking = client.get_streaming_response("go").response() if streaming else client.get_response("go")
        with pytest.raises(GeneratorExit):
            await asking
        assert dict(contextvars.copy_context().items()) == before

    turn = Turn(exits if is_async else exits_in_a_thread)
    asyncio.run(ask())
    assert turn.capture.open_spans == ()
    assert "hunter2" not in turn.capture.said()


@pytest.mark.parametrize("at", ["send", "the first update", "a later update"])
def test_a_generator_exit_of_the_provider_leaves_no_context_behind(at: str) -> None:
    class Exits:
        async def send(self, request: ChatRequest, /) -> ChatStream:
            if at == "send":
                raise GeneratorExit
            return await ChatStream.primed(self.updates())

        async def updates(self) -> AsyncGenerator[ChatUpdate, None]:
            if at == "a later update":
                yield ChatUpdate(text="well")
            await asyncio.sleep(0)
            raise GeneratorExit

    async def ask() -> None:
        before = dict(contextvars.copy_context().items())
        for streaming in (False, True):
            asking = client.get_streaming_response("go").response() if streaming else client.get_response("go")
            with pytest.raises(GeneratorExit):
                await asking
            assert dict(contextvars.copy_context().items()) == before

    capture = TelemetryCapture()
    client = ChatStack(Exits()).use(ProgressReporter).build(capture.resolve)
    asyncio.run(ask())
    assert capture.open_spans == ()
