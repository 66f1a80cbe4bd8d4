"""Who is asked before a tool is run, and what ends a turn instead of becoming a result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from chatstack import (
    ChatResponse,
    ChatStack,
    FunctionInvoker,
    Message,
    ProgressReporter,
    ToolCall,
    ToolContext,
    ToolLoopError,
    ToolResult,
    WiringError,
)
from chatstack.errors import ToolError
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture


class Trip:
    """A turn with tools that keep what they were called with."""

    def __init__(self, *answers: Answer, **options: Any) -> None:
        self.run: list[str] = []
        self.provider = ScriptedClient(answers)
        self.capture = TelemetryCapture()
        tools: Sequence[Callable[..., Any]] = options.pop("tools", (self.book,))
        stack = ChatStack(self.provider).use(ProgressReporter).use(FunctionInvoker, tools=tools, **options)
        self.client = stack.build(self.capture.resolve)

    def book(self, city: str) -> str:
        """Books a flight."""
        self.run.append(city)
        return f"booked {city}"

    def ask(self) -> ChatResponse:
        return asyncio.run(asyncio.wait_for(self.client.get_response("go", conversation_id="c-1"), 300))

    @property
    def results(self) -> list[ToolResult]:
        """What the model got to read."""
        return [result for message in self.provider.requests[-1].messages for result in message.results]


def book(city: str) -> str:
    """Books nothing."""
    return city


def booking(*cities: str, name: str = "book") -> Message:
    return Message.assistant(
        *(ToolCall(f"call-{place}", name, f'{{"city": "{city}"}}') for place, city in enumerate(cities))
    )


def always(said: bool | str) -> Callable[[ToolCall, ToolContext], bool | str]:
    return lambda call, context: said


def awaited(said: bool | str) -> Callable[[ToolCall, ToolContext], Awaitable[bool | str]]:
    async def answer(call: ToolCall, context: ToolContext) -> bool | str:
        await asyncio.sleep(0)
        return said

    return answer


# Yes and no


@pytest.mark.parametrize("kind", [always, awaited])
def test_what_is_approved_is_run(kind: Callable[[bool], object]) -> None:
    trip = Trip(booking("Dubai"), "done", approve=kind(True))
    assert trip.ask().text == "done"
    assert trip.run == ["Dubai"]
    assert [(result.output, result.is_error) for result in trip.results] == [("booked Dubai", False)]


@pytest.mark.parametrize("kind", [always, awaited])
@pytest.mark.parametrize(
    ("said", "read"),
    [
        (False, "Error: book was not allowed. Go on without it."),
        ("", "Error: book was not allowed. Go on without it."),
        ("Too expensive: ask for a cheaper one.", "Error: Too expensive: ask for a cheaper one."),
    ],
)
def test_what_is_not_approved_is_not_run_and_the_model_reads_why(
    kind: Callable[[bool | str], object], said: bool | str, read: str
) -> None:
    trip = Trip(booking("Dubai"), "a pity", approve=kind(said))
    response = trip.ask()
    assert response.text == "a pity"
    assert trip.run == []
    assert trip.results == [ToolResult("call-0", "book", read, is_error=True)]
    assert response.messages[1].results == tuple(trip.results)


def test_whoever_is_asked_sees_the_call_and_where_it_was_made() -> None:
    seen: list[tuple[str, str, str | None, int, int]] = []

    def approve(call: ToolCall, context: ToolContext) -> bool:
        seen.append((call.name, call.arguments, context.conversation_id, context.round, len(context.messages)))
        return True

    Trip(booking("Dubai"), booking("Oslo"), "done", approve=approve).ask()
    assert seen == [("book", '{"city": "Dubai"}', "c-1", 0, 2), ("book", '{"city": "Oslo"}', "c-1", 1, 4)]


def test_parallel_calls_are_approved_one_by_one_and_results_stay_in_order() -> None:
    async def approve(call: ToolCall, context: ToolContext) -> bool | str:
        await asyncio.sleep(0.03 if "Dubai" in call.arguments else 0)
        return "Oslo" not in call.arguments or "not there"

    trip = Trip(booking("Dubai", "Oslo", "Lima"), "done", approve=approve)
    trip.ask()
    assert sorted(trip.run) == ["Dubai", "Lima"]
    assert [result.output for result in trip.results] == ["booked Dubai", "Error: not there", "booked Lima"]


def test_nobody_is_asked_about_a_call_that_could_not_be_run() -> None:
    def approve(call: ToolCall, context: ToolContext) -> bool:
        raise AssertionError("asked")

    broken = Message.assistant(ToolCall("1", "book", "{"), ToolCall("2", "fly", "{}"))
    trip = Trip(broken, "sorry", approve=approve)
    assert trip.ask().text == "sorry"
    assert [result.is_error for result in trip.results] == [True, True]


def test_nobody_is_asked_about_a_call_beyond_the_limit() -> None:
    asked: list[str] = []

    def approve(call: ToolCall, context: ToolContext) -> bool:
        asked.append(call.id)
        return True

    Trip(booking("Dubai", "Oslo"), "done", approve=approve, max_tool_calls_per_turn=1).ask()
    assert asked == ["call-0"]


# Time


def test_a_person_may_take_longer_than_the_tool_may() -> None:
    async def approve(call: ToolCall, context: ToolContext) -> bool:
        await asyncio.sleep(0.1)
        return True

    trip = Trip(booking("Dubai"), "done", approve=approve, tool_timeout_seconds=0.05)
    trip.ask()
    assert [result.output for result in trip.results] == ["booked Dubai"]


def test_a_turn_that_is_cancelled_while_it_waits_for_an_answer_runs_nothing_and_leaves_no_task() -> None:
    stopped: list[str] = []

    async def approve(call: ToolCall, context: ToolContext) -> bool:
        try:
            await asyncio.sleep(3_600)
        finally:
            stopped.append(call.id)
        return True

    async def run() -> None:
        trip = Trip(booking("Dubai", "Oslo"), "done", approve=approve)
        asking = asyncio.ensure_future(trip.client.get_response("go"))
        await asyncio.sleep(0.03)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert trip.run == []
        assert trip.capture.open_spans == ()
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
    assert sorted(stopped) == ["call-0", "call-1"]


def test_a_dropped_stream_stops_asking() -> None:
    stopped: list[str] = []

    async def run() -> None:
        waiting = asyncio.Event()

        async def approve(call: ToolCall, context: ToolContext) -> bool:
            waiting.set()
            try:
                await asyncio.sleep(3_600)
            finally:
                stopped.append(call.id)
            return True

        trip = Trip(booking("Dubai"), "done", approve=approve)
        stream = trip.client.get_streaming_response("go")
        await stream.__aenter__()
        reading = asyncio.ensure_future(stream.response())
        await waiting.wait()
        await stream.aclose()
        await asyncio.gather(reading, return_exceptions=True)
        assert trip.provider.open_streams == 0
        assert trip.capture.open_spans == ()

    asyncio.run(asyncio.wait_for(run(), 300))
    assert stopped == ["call-0"]


# What it raises, and what else ends a turn


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("error", [Interrupted("who is asked is gone"), ToolError("no"), TimeoutError()], ids=repr)
def test_what_it_raises_ends_the_turn_as_it_is(error: Exception) -> None:
    async def approve(call: ToolCall, context: ToolContext) -> bool:
        raise error

    trip = Trip(booking("Dubai"), "never", approve=approve)
    with pytest.raises(type(error)) as caught:
        trip.ask()
    assert caught.value is error
    assert trip.run == []
    assert len(trip.provider.requests) == 1
    assert trip.capture.open_spans == ()
    assert trip.provider.open_streams == 0


def test_a_dialog_that_was_cancelled_is_an_error_and_no_cancellation_of_the_turn() -> None:
    async def approve(call: ToolCall, context: ToolContext) -> bool:
        loop = asyncio.get_running_loop()
        dialog: asyncio.Future[bool] = loop.create_future()
        loop.call_soon(dialog.cancel)
        return await dialog

    trip = Trip(booking("Dubai", "Oslo"), "never", approve=approve)
    with pytest.raises(ToolLoopError, match="FunctionInvoker: approve was cancelled, and gave nothing") as caught:
        trip.ask()
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert trip.run == []
    assert trip.capture.open_spans == ()


@pytest.mark.parametrize("is_async", [True, False])
def test_an_approval_that_raises_cancelled_error_itself_is_an_error_whatever_kind_of_function_it_is(
    is_async: bool,
) -> None:
    def approve(call: ToolCall, context: ToolContext) -> bool:
        raise asyncio.CancelledError

    async def approve_later(call: ToolCall, context: ToolContext) -> bool:
        return approve(call, context)

    trip = Trip(booking("Dubai", "Oslo"), "never", approve=approve_later if is_async else approve)
    with pytest.raises(ToolLoopError, match="FunctionInvoker: approve was cancelled, and gave nothing"):
        trip.ask()
    assert trip.run == []
    assert trip.capture.open_spans == ()


@pytest.mark.parametrize("said", [None, 1, 0, b"no"])
def test_an_answer_that_is_neither_yes_nor_no_is_never_taken_for_yes(said: Any) -> None:
    trip = Trip(booking("Dubai"), "never", approve=always(said))
    with pytest.raises(WiringError, match=f"approve gave a {type(said).__name__}, not True, False or a text"):
        trip.ask()
    assert trip.run == []


def test_something_that_cannot_be_asked_fails_at_build() -> None:
    with pytest.raises(WiringError, match="approve='yes' must be a function") as caught:
        Trip("hi", approve="yes")
    assert caught.value.parameter == "approve"


def test_a_denial_is_an_error_span_and_no_failure_of_the_tool() -> None:
    trip = Trip(*[booking("Dubai")] * 4, "done", approve=always(False), max_consecutive_failures=1)
    assert trip.ask().text == "done"
    for span in trip.capture.spans_named("execute_tool book"):
        assert span.status == "error"
        assert span.attributes["error.type"] == "ToolDeniedError"
    assert "Dubai" not in trip.capture.said()


def test_the_cause_of_a_loop_that_fails_is_a_failure_and_not_a_denial() -> None:
    def fails(city: str) -> None:
        raise Interrupted(city)

    def approve(call: ToolCall, context: ToolContext) -> bool:
        return call.name != "book"

    both = Message.assistant(ToolCall("1", "fails", '{"city": "Oslo"}'), *booking("Dubai").calls)
    trip = Trip(both, "never", approve=approve, max_consecutive_failures=1, tools=(fails, book))
    with pytest.raises(ToolLoopError, match="Interrupted") as caught:
        trip.ask()
    assert isinstance(caught.value.__cause__, Interrupted)


@pytest.mark.parametrize("is_async", [True, False])
def test_what_is_to_be_propagated_ends_the_turn_and_stops_the_other_tools(is_async: bool) -> None:
    stopped: list[bool] = []
    error = Interrupted("a graph waits for its user")

    async def slow(city: str) -> None:
        try:
            await asyncio.sleep(3_600)
        finally:
            stopped.append(True)

    async def ask_later(city: str) -> None:
        await asyncio.sleep(0.01)
        raise error

    def ask_now(city: str) -> None:
        raise error

    asks = ask_later if is_async else ask_now
    calls = Message.assistant(*booking("Dubai", name="slow").calls, ToolCall("9", asks.__name__, '{"city": "x"}'))
    trip = Trip(calls, "never", tools=(slow, asks), propagate=(Interrupted,))
    with pytest.raises(Interrupted) as caught:
        trip.ask()
    assert caught.value is error
    assert stopped == [True] or not is_async  # one that raises at once may do so before the other has begun
    assert len(trip.provider.requests) == 1
    assert trip.capture.open_spans == ()


def test_what_is_not_to_be_propagated_is_a_result_as_ever() -> None:
    def fails(city: str) -> None:
        raise ValueError(city)

    trip = Trip(booking("Dubai", name="fails"), "sorry", tools=(fails,), propagate=(Interrupted,))
    assert trip.ask().text == "sorry"
    assert [result.is_error for result in trip.results] == [True]


@pytest.mark.parametrize("bad", [Interrupted, [Interrupted], ("Interrupted",), (KeyboardInterrupt,), (Interrupted(),)])
def test_what_is_to_be_propagated_must_be_exception_classes(bad: Any) -> None:
    with pytest.raises(WiringError, match="must be a tuple of exception classes") as caught:
        Trip("hi", propagate=bad)
    assert caught.value.parameter == "propagate"
