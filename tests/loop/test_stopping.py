"""Runs that are stopped, fail or are dropped: what ends them, and that they leave a record and nothing else."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from chatstack import ChatRequest, ChatStream, ChatUpdate, ServerError, ToolCall, tool
from chatstack.loop.context import IterativeContext
from chatstack.loop.results import IterationRecord, IterativeResult
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from chatstack.tools.parameters import Injected
from tests.loop.runs import asked, call, fresh, look, looped, note, numbered, outputs, run

LOOK = [call("look", what="a")]


def noted(number: int) -> list[ToolCall]:
    return [call("note", f"c{number}", text=str(number))]


# Cancelled, cooperatively


@tool
async def stop(context: Injected[IterativeContext]) -> str:
    """Asks for the end."""
    context.cancellation.cancel()
    return "asked"


def stop_in(what: str, context: IterativeContext, at: int = 1) -> None:
    if context.state["stop in"] == what and context.iteration == at:
        context.cancellation.cancel()


def cancelled_in(what: str) -> tuple[IterativeResult, int]:
    def prompt(context: IterativeContext) -> str:
        stop_in("prompt", context)
        return "go on"

    def is_complete(context: IterativeContext) -> bool:
        stop_in("is_complete", context)
        return False

    def ended(record: IterationRecord, context: IterativeContext) -> None:
        stop_in("on_iteration_end", context)

    loop = looped(
        [noted(0), "one", noted(1), "two", noted(2), "three"],
        prompt,
        is_complete=is_complete,
        on_iteration_start=lambda context: stop_in("on_iteration_start", context),
        on_iteration_end=ended,
        on_tool_call=lambda call, context: stop_in("on_tool_call", context),
    )
    result = run(loop, fresh(state={"stop in": what}))
    return result, len(asked(loop))


@pytest.mark.parametrize(
    ("what", "calls", "partial"),
    [
        ("on_iteration_start", 2, [False, True]),
        ("prompt", 2, [False, True]),
        ("on_tool_call", 3, [False, True]),
        ("on_iteration_end", 4, [False, False]),
        ("is_complete", 4, [False, False]),
    ],
)
def test_whoever_asks_for_the_end_gets_it_before_the_next_call(what: str, calls: int, partial: list[bool]) -> None:
    result, made = cancelled_in(what)
    assert (result.reason, result.error, made) == ("cancelled", None, calls)
    assert [record.is_partial for record in result.iterations] == partial
    assert outputs(result)[1] == (["noted 1"] if calls > 2 else [])


def test_a_tool_that_asks_for_the_end_and_those_beside_it_may_end_and_no_other_is_begun() -> None:
    begun: list[str] = []

    @tool
    async def slow(name: str) -> str:
        """Takes a while."""
        begun.append(name)
        await asyncio.sleep(0.01)
        return f"{name} is done"

    calls = [call("slow", "1", name="a"), call("stop", "2"), call("slow", "3", name="b"), call("slow", "4", name="c")]
    result = run(looped([calls], tools=[slow, stop], max_concurrency=2))
    assert (result.reason, begun) == ("cancelled", ["a"])
    stopped = "Error: not run, because somebody has stopped the run."
    assert outputs(result) == [["a is done", "asked", stopped, stopped]]
    assert result.iterations[0].is_partial


def test_a_run_that_was_stopped_before_it_began_asks_nothing() -> None:
    context = fresh()
    context.cancellation.cancel()
    loop = looped(["never"])
    assert run(loop, context).reason == "cancelled"
    assert asked(loop) == []


def test_another_thread_can_stop_it() -> None:
    context = fresh()

    @tool
    def from_a_thread() -> str:
        """Runs in a thread of its own."""
        context.cancellation.cancel()
        return "asked"

    result = run(looped([[call("from_a_thread")]], tools=[from_a_thread], mode="single_call"), context)
    assert (result.reason, outputs(result), result.iterations[0].is_partial) == ("cancelled", [["asked"]], False)


async def in_time(main: Callable[[], Awaitable[None]]) -> None:
    async with asyncio.timeout(30):
        await main()


class Thinks:
    """A model that never comes to its answer: before its first word, or after."""

    def __init__(self, *, has_begun: bool) -> None:
        self.has_begun = has_begun
        self.asked = self.closed = 0
        self.thinking = asyncio.Event()

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.asked += 1
        return await ChatStream.primed(self._think())

    async def _think(self) -> AsyncGenerator[ChatUpdate, None]:
        try:
            if self.has_begun:
                yield ChatUpdate(text="Well, ")
            self.thinking.set()
            await asyncio.Event().wait()
        finally:
            self.closed += 1


@pytest.mark.parametrize("how", ["cancel", "from a thread", "aclose", "twice"])
@pytest.mark.parametrize("has_begun", [False, True])
def test_a_model_call_that_runs_is_ended_at_once(has_begun: bool, how: str) -> None:
    async def main() -> None:
        model, context, capture = Thinks(has_begun=has_begun), fresh(), TelemetryCapture()
        running = looped(model, telemetry=capture.telemetry).iterations(context)
        task = asyncio.create_task(running.result())
        await model.thinking.wait()
        if how == "aclose":
            await running.aclose()
        elif how == "from a thread":
            await asyncio.to_thread(context.cancellation.cancel)
        else:
            for _ in range(2 if how == "twice" else 1):
                context.cancellation.cancel()
        result = await task
        assert (result.reason, result.error, model.asked, model.closed) == ("cancelled", None, 1, 1)
        assert [record.is_partial for record in result.iterations] == [True]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert capture.open_spans == ()
        (call_span,) = capture.spans_named("chat")
        assert (call_span.attributes["error.type"], call_span.status) == ("cancelled", "unset")

    asyncio.run(in_time(main))


def test_a_task_that_is_cancelled_while_the_end_is_asked_for_is_cancelled() -> None:
    async def main() -> None:
        model, context = Thinks(has_begun=True), fresh()
        task = asyncio.create_task(looped(model).run(context))
        await model.thinking.wait()
        context.cancellation.cancel()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (model.asked, model.closed) == (1, 1)

    asyncio.run(in_time(main))


@pytest.mark.parametrize("step", range(0, 40, 2))
def test_asked_for_at_any_step_the_end_leaves_nothing_behind(step: int) -> None:
    client = ScriptedClient([noted(0), LOOK, [*noted(1), *LOOK], "done"], delay_seconds=0)
    capture = TelemetryCapture()

    async def main() -> None:
        context = fresh()
        task = asyncio.create_task(looped(client, mode="multi_round", telemetry=capture.telemetry).run(context))
        for _ in range(step):
            await asyncio.sleep(0)
        context.cancellation.cancel()
        assert (await task).reason in ("cancelled", "answered")
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert (client.open_streams, capture.open_spans) == (0, ())


# Cancelled by its task


def test_cancelling_the_task_passes_through_and_leaves_records_no_task_no_stream_and_no_span() -> None:
    client = ScriptedClient([noted(0), "one", [call("wait")]])
    capture = TelemetryCapture()
    waiting = asyncio.Event()

    @tool
    async def wait() -> str:
        """Waits for ever."""
        waiting.set()
        await asyncio.Event().wait()
        return "never"

    async def main() -> IterativeContext:
        context = fresh()
        loop = looped(client, tools=[note, wait], is_complete=lambda _: False, telemetry=capture.telemetry)
        task = asyncio.create_task(loop.run(context))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return context

    context = asyncio.run(main())
    assert [(record.is_partial, len(record.tool_calls)) for record in context.records] == [(False, 1), (True, 0)]
    assert context.records[1].usage.total_tokens > 0
    assert (client.open_streams, capture.open_spans) == (0, ())
    ends = {name: capture.spans_named(name)[-1] for name in ("invoke_workflow loop", "invoke_agent loop")}
    assert {name: (span.attributes["error.type"], span.status) for name, span in ends.items()} == {
        name: ("cancelled", "unset") for name in ends
    }


@pytest.mark.parametrize("step", range(0, 60, 3))
def test_cancelled_at_any_step_nothing_is_left_behind(step: int) -> None:
    client = ScriptedClient([noted(0), LOOK, [*noted(1), *LOOK], "done"])
    capture = TelemetryCapture()

    async def main() -> None:
        task = asyncio.create_task(looped(client, mode="multi_round", telemetry=capture.telemetry).run(fresh()))
        for _ in range(step):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.result().reason == "answered"
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert (client.open_streams, capture.open_spans) == (0, ())


def test_a_call_of_the_round_that_had_ended_is_in_the_partial_record() -> None:
    @tool
    async def fail() -> str:
        """Fails for good."""
        await asyncio.sleep(0.02)
        raise KeyError("gone")

    result = run(looped([[*LOOK, call("fail", "d")]], tools=[look, fail], propagate=(KeyError,)))
    assert (result.reason, type(result.error)) == ("error", KeyError)
    assert (outputs(result), result.iterations[0].is_partial) == ([["saw a"]], True)


# Errors


class Broken(Exception):
    pass


async def fail_later(*given: object) -> Any:
    await asyncio.sleep(0)
    raise Broken


def fail_now(*given: object) -> Any:
    raise Broken


@pytest.mark.parametrize("fail", [fail_now, fail_later])
@pytest.mark.parametrize(
    "where", ["prompt", "is_complete", "on_iteration_start", "on_iteration_end", "on_tool_call", "approve"]
)
def test_what_a_function_of_the_program_raises_ends_the_run_and_is_in_the_result(
    where: str, fail: Callable[..., Any]
) -> None:
    options: Any = {"prompt": numbered, where: fail}
    result = run(looped([noted(0), "one"], **options))
    assert (result.reason, type(result.error), len(result.iterations)) == ("error", Broken, 1)
    assert result.iterations[0].is_partial is (where not in ("is_complete", "on_iteration_end"))


@pytest.mark.parametrize("error", [StopAsyncIteration(), StopIteration(), Broken(), TimeoutError()])
def test_no_error_is_taken_for_an_end(error: Exception) -> None:
    async def prompt(context: IterativeContext) -> str:
        if context.iteration == 1:
            raise error
        return "go on"

    result = run(looped([noted(0), "one"], prompt, is_complete=lambda _: False))
    assert (result.reason, len(result.iterations)) == ("error", 2)
    assert error in (result.error, getattr(result.error, "__cause__", None))


def test_what_the_model_side_refuses_ends_the_run_and_keeps_what_was_done() -> None:
    result = run(looped([noted(0), ServerError("down")]))
    assert (result.reason, type(result.error)) == ("error", ServerError)
    assert (outputs(result), result.iterations[0].model_calls) == ([["noted 0"]], 2)
    assert result.usage == result.iterations[0].usage
    assert result.usage.total_tokens > 0


def test_a_tool_that_fails_ends_nothing_unless_its_error_is_to_propagate() -> None:
    @tool
    def fail() -> str:
        """Fails."""
        raise Broken

    answers: list[Answer] = [[call("fail")], "I see"]
    result = run(looped(answers, tools=[fail]))
    assert (result.reason, outputs(result)) == ("answered", [["Error: fail failed."]])
    result = run(looped(answers, tools=[fail], propagate=(Broken,)))
    assert (result.reason, type(result.error)) == ("error", Broken)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes_through_and_the_spans_end(error: type[BaseException]) -> None:
    capture = TelemetryCapture()
    context = fresh()

    def prompt(context: IterativeContext) -> str:
        raise error

    with pytest.raises(error):
        run(looped(["never"], prompt, telemetry=capture.telemetry), context)
    assert capture.open_spans == ()
    assert [record.is_partial for record in context.records] == [True]


# The iterator


def test_iterations_come_one_by_one_and_the_result_after_them() -> None:
    async def main() -> tuple[list[int], IterativeResult, IterativeResult]:
        iterations = looped([noted(0), noted(1), noted(2), "done"], mode="single_call").iterations(fresh())
        seen = [record.iteration async for record in iterations]
        return seen, await iterations.result(), await iterations.result()

    seen, result, again = asyncio.run(main())
    assert (seen, result.reason) == ([0, 1, 2, 3], "answered")
    assert result == again


def test_the_result_may_be_asked_for_in_the_middle_and_runs_what_is_left() -> None:
    async def main() -> IterativeResult:
        iterations = looped([noted(0), noted(1), "done"], mode="single_call").iterations(fresh())
        assert (await anext(iterations)).iteration == 0
        assert iterations.reason is None
        return await iterations.result()

    result = asyncio.run(main())
    assert (result.reason, len(result.iterations)) == ("answered", 3)


@pytest.mark.parametrize("how", ["aclose", "async with", "dropped"])
def test_whoever_breaks_out_of_it_stops_it_and_its_spans_end(how: str) -> None:
    capture = TelemetryCapture()
    client = ScriptedClient([noted(0)])

    async def main() -> None:
        iterations = looped(client, telemetry=capture.telemetry, mode="single_call").iterations(fresh())
        if how == "async with":
            async with iterations:
                await anext(iterations)
        else:
            async for _ in iterations:
                break
        if how == "aclose":
            await iterations.aclose()
            await iterations.aclose()
        if how == "dropped":
            assert capture.open_spans == ("invoke_workflow loop",)
            del iterations
        else:
            assert (iterations.reason, (await iterations.result()).reason) == ("cancelled", "cancelled")

    gc.disable()  # a run that is dropped ends without the collector
    try:
        asyncio.run(main())
        for thread in threading.enumerate():  # those of tools hold the run as long as they last
            if thread.name == "chatstack-tool-note":
                thread.join()
        assert capture.open_spans == ()
    finally:
        gc.enable()
    root = capture.span("invoke_workflow loop")
    assert (root.attributes["error.type"], root.status) == ("cancelled", "unset")
    assert len(client.requests) == 1


def test_closing_one_that_has_ended_changes_nothing() -> None:
    async def main() -> IterativeResult:
        async with looped(["done"]).iterations(fresh()) as iterations:
            await iterations.result()
        return await iterations.result()

    assert asyncio.run(main()).reason == "answered"
