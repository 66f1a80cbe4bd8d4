"""What a run says: its spans and what stands on them, its duration, its warnings, its events; and never a text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Unpack

import pytest

from chatstack import (
    ChatStack,
    ContextWindowGuard,
    FunctionInvoker,
    IterativeContext,
    ModelTracer,
    ProgressEvent,
    ProviderInfo,
    ServerError,
    semconv,
    tool,
)
from chatstack.loop.iterative import IterativeLoop
from chatstack.loop.settings import Prompt
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from chatstack.tools.tool import Tool
from tests.loop.runs import Options, call, fresh, look, looped, numbered, run

SECRET = "hunter2"


def traced(
    answers: list[Answer],
    capture: TelemetryCapture,
    prompt: Prompt = numbered,
    tools: Sequence[Tool[..., Any]] = (look,),
    **options: Unpack[Options],
) -> IterativeLoop:
    client = ChatStack(ScriptedClient(answers)).build(capture.resolve)
    options.update({"name": "research", "telemetry": capture.telemetry})
    return looped(client, prompt, tools, **options)


def test_the_spans_are_a_workflow_of_agent_calls_of_model_and_tool_calls() -> None:
    capture = TelemetryCapture()
    two = [call("look", "1", what="a"), call("look", "2", what="b")]
    run(traced([two, "one", "two"], capture, is_complete=lambda context: context.iteration == 1))
    assert capture.tree() == [
        (
            "invoke_workflow research",
            [
                (
                    "invoke_agent research",
                    [("chat script", []), ("execute_tool look", []), ("execute_tool look", []), ("chat script", [])],
                ),
                ("invoke_agent research", [("chat script", [])]),
            ],
        )
    ]
    assert capture.open_spans == ()


def test_the_spans_say_whose_they_are_which_iteration_what_was_used_and_why_it_ended() -> None:
    capture = TelemetryCapture()
    answers: list[Answer] = [[call("look", what="a")], "one", [call("look", what="a")], "two"]
    loop = traced(answers, capture, is_complete=lambda context: context.iteration == 1)
    result = run(loop, fresh(run_id="r1"))
    root = capture.span("invoke_workflow research")
    assert dict(root.attributes) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "research",
        "gen_ai.conversation.id": "r1",
        "chatstack.loop.end_reason": "completed",
        "gen_ai.usage.input_tokens": result.usage.input_tokens,
        "gen_ai.usage.output_tokens": result.usage.output_tokens,
        "input.value": "r1, at most 25 iterations",
        "output.value": "completed, 2 iterations",
    }
    assert [dict(span.attributes) for span in capture.spans_named("invoke_agent research")] == [
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "research",
            "gen_ai.conversation.id": "r1",
            "chatstack.iteration": record.iteration,
            "gen_ai.usage.input_tokens": record.usage.input_tokens,
            "gen_ai.usage.output_tokens": record.usage.output_tokens,
        }
        for record in result.iterations
    ]
    assert [span.attributes["chatstack.iteration"] for span in capture.spans_named("chat script")] == [0, 0, 1, 1]
    assert all(span.attributes.get("gen_ai.conversation.id") == "r1" for span in capture.spans)
    assert len({span.trace_id for span in capture.spans}) == 1


def test_the_duration_of_the_workflow_is_measured_by_name_and_error() -> None:
    capture = TelemetryCapture()
    run(traced(["done"], capture))
    run(traced([ServerError("down")], capture))
    points = {
        str(point.labels.get("error.type")): (point.count, dict(point.labels))
        for point in capture.metric("gen_ai.invoke_workflow.duration")
    }
    assert points == {
        "None": (1, {"gen_ai.workflow.name": "research"}),
        "ServerError": (1, {"gen_ai.workflow.name": "research", "error.type": "ServerError"}),
    }


@pytest.mark.parametrize(
    ("reason", "error", "status", "iteration_error"),
    [
        ("answered", None, "unset", None),
        ("error", "ServerError", "error", "ServerError"),
        ("cancelled", "cancelled", "unset", "cancelled"),
        ("max_iterations", None, "unset", None),
    ],
)
def test_only_what_failed_is_an_error(reason: str, error: str | None, status: str, iteration_error: str | None) -> None:
    capture = TelemetryCapture()
    scripts: dict[str, list[Answer]] = {"answered": ["done"], "error": [ServerError("down")]}
    answers: list[Answer] = scripts.get(reason, [[call("look", what="a")]])
    loop = traced(
        answers,
        capture,
        max_iterations=1,
        on_tool_call=lambda call, context: context.cancellation.cancel() if reason == "cancelled" else None,
    )
    assert run(loop).reason == reason
    root, iteration = capture.span("invoke_workflow research"), capture.span("invoke_agent research")
    assert (root.attributes["chatstack.loop.end_reason"], root.attributes.get("error.type")) == (reason, error)
    assert (root.status, iteration.status, iteration.attributes.get("error.type")) == (status, status, iteration_error)


def test_the_limit_of_iterations_is_warned_of_on_the_root() -> None:
    capture = TelemetryCapture()
    run(traced(["one"], capture, is_complete=lambda context: False, max_iterations=2, max_stalled_iterations=9))
    assert capture.warnings == ("iteration_limit_reached",)
    root, warning = capture.span("invoke_workflow research"), capture.span("iterative_loop")
    assert warning.parent_id == root.span_id
    assert warning.attributes[semconv.WARNING_MESSAGE] == "2 iterations, and not complete"
    assert root.attributes[semconv.WARNINGS] == ("iteration_limit_reached",)
    assert root.attributes[semconv.WARNING_COUNT] == 1


def test_why_it_ended_comes_first_in_its_cell_and_what_was_warned_of_behind_it() -> None:
    capture = TelemetryCapture()
    run(traced(["one"], capture, is_complete=lambda context: False, max_iterations=2, max_stalled_iterations=9))
    run(traced([ServerError("down")], capture))
    assert [span.attributes["output.value"] for span in capture.spans_named("invoke_workflow research")] == [
        "max_iterations, 2 iterations; WARN 2 iterations, and not complete (iteration_limit_reached)",
        "error (ServerError), 1 iteration",
    ]


def test_its_input_and_output_are_shown_where_text_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    capture = TelemetryCapture()
    answers: list[Answer] = [[call("look", what="a")], "one", "two"]
    run(traced(answers, capture, is_complete=lambda context: context.iteration == 1))
    shown = capture.span("invoke_workflow research").attributes
    assert shown["input.value"] == "iteration 0"
    assert shown["output.value"] == "completed, 2 iterations\n\ntwo"
    assert "iteration 0" in str(shown["gen_ai.input.messages"])
    assert "two" in str(shown["gen_ai.output.messages"])
    assert shown["chatstack.loop.end_reason"] == "completed"


@pytest.mark.parametrize("is_traced_already", [False, True])
def test_the_calls_of_a_bare_provider_are_traced_and_measured_once(is_traced_already: bool) -> None:
    capture, provider = TelemetryCapture(), ScriptedClient([[call("look", "1", what="a")], "done"])
    client = ModelTracer(provider, telemetry=capture.telemetry) if is_traced_already else provider
    run(looped(client, numbered, (look,), telemetry=capture.telemetry))
    inside: list[tuple[str, list[object]]] = [("chat script", []), ("execute_tool look", []), ("chat script", [])]
    assert capture.tree() == [("invoke_workflow loop", [("invoke_agent loop", inside)])]
    assert [point.count for point in capture.metric("gen_ai.client.operation.duration")] == [2]


def test_what_a_layer_of_the_client_warns_of_rolls_up_to_the_root_of_the_run() -> None:
    capture = TelemetryCapture()
    stack = ChatStack(ScriptedClient(["one", "done"])).use(
        ContextWindowGuard, max_context_tokens=100, warning_threshold=0.2
    )
    loop = looped(
        stack.build(capture.resolve),
        lambda context: "long " * 40 if context.iteration else "short",
        [],
        telemetry=capture.telemetry,
        is_complete=lambda context: context.iteration == 1,
    )
    run(loop)
    assert capture.warnings == ("context_window_near_limit",)
    warning = capture.span("context_guard")
    assert warning.parent_id == capture.spans_named("invoke_agent loop")[1].span_id
    assert capture.span("invoke_workflow loop").attributes[semconv.WARNINGS] == ("context_window_near_limit",)


def followed(loop: IterativeLoop, run_id: str | None = "r1") -> list[ProgressEvent]:
    async def main() -> list[ProgressEvent]:
        async with loop.feed.events() as events:
            await loop.run(fresh(run_id=run_id))
        return [event async for event in events]

    return asyncio.run(main())


def test_the_feed_tells_of_iterations_and_of_all_that_happens_in_them() -> None:
    events = followed(
        traced(
            [[call("look", what="a")], "one", "two"],
            TelemetryCapture(),
            is_complete=lambda context: context.iteration == 1,
            max_tokens=1_000,
        )
    )
    assert [(event.kind, event.name, event.round) for event in events] == [
        ("turn_started", "research", 0),
        ("iteration_started", "research", 0),
        ("model_call_started", "script", 0),
        ("model_call_ended", "script", 0),
        ("tool_started", "look", 0),
        ("tool_ended", "look", 0),
        ("model_call_started", "script", 0),
        ("model_call_ended", "script", 0),
        ("iteration_ended", "research", 0),
        ("iteration_started", "research", 1),
        ("model_call_started", "script", 1),
        ("model_call_ended", "script", 1),
        ("iteration_ended", "research", 1),
        ("turn_ended", "research", 1),
    ]
    assert {event.conversation_id for event in events} == {"r1"}
    ended = [event.numbers for event in events if event.kind == "iteration_ended"]
    assert [(numbers["iteration"], numbers["tool_calls"]) for numbers in ended] == [(0, 1), (1, 0)]
    used = sum(numbers["input_tokens"] + numbers["output_tokens"] for numbers in ended)
    assert ended[-1]["budget"] == used / 1_000
    assert (events[-1].message, events[-1].numbers["iterations"]) == ("completed", 2)


def test_the_round_of_events_and_spans_is_the_iteration_also_behind_a_later_round_of_tools() -> None:
    capture = TelemetryCapture()
    looks: list[Answer] = [[call("look", what=str(number))] for number in range(6)]
    events = followed(traced(looks, capture, mode="multi_round", max_tool_rounds=3, max_iterations=2))
    started = [event for event in events if event.kind in ("model_call_started", "tool_started", "tool_ended")]
    assert [event.round for event in started] == [0] * 9 + [1] * 9
    assert [span.attributes["chatstack.iteration"] for span in capture.spans_named("chat script")] == [0] * 3 + [1] * 3


def test_a_prompt_and_a_completion_that_ask_a_model_themselves_change_no_number_of_an_iteration() -> None:
    capture = TelemetryCapture()
    another = ScriptedClient([[call("look", what="a")], "yes"], info=ProviderInfo(name="scripted", model="another"))
    helper = ChatStack(another).use(FunctionInvoker, tools=[look]).build(capture.resolve)

    async def prompt(context: IterativeContext) -> str:
        return (await helper.get_response("what next?")).text

    async def is_complete(context: IterativeContext) -> bool:
        await helper.get_response("is it complete?")
        return context.iteration == 2

    events = followed(traced(["done"], capture, prompt, is_complete=is_complete))
    mine = [event for event in events if event.kind in ("iteration_started", "iteration_ended")]
    assert [event.round for event in mine] == [0, 0, 1, 1, 2, 2]
    assert [span.attributes["chatstack.iteration"] for span in capture.spans_named("chat script")] == [0, 1, 2]


def test_an_iteration_that_fails_has_ended_for_the_feed_as_well() -> None:
    events = followed(traced([ServerError("down")], TelemetryCapture()))
    ended = [(event.kind, event.error) for event in events if event.kind in ("iteration_ended", "turn_ended")]
    assert ended == [("iteration_ended", "ServerError"), ("turn_ended", "ServerError")]


def test_those_who_follow_another_run_hear_nothing() -> None:
    async def main() -> list[ProgressEvent]:
        loop = looped(["done"])
        async with loop.feed.events("another") as events:
            await loop.run(fresh(run_id="r1"))
        return [event async for event in events]

    assert asyncio.run(main()) == []


def test_no_text_of_a_prompt_an_answer_a_tool_or_a_file_is_told() -> None:
    @tool
    def leak(text: str) -> str:
        """Leaks."""
        return f"{SECRET} {text}"

    def prompt(context: Any) -> str:
        context.state["word"] = SECRET
        context.workspace.write(f"{SECRET}.md", SECRET)
        return SECRET

    capture = TelemetryCapture()
    answers: list[Answer] = [[f"{SECRET} ", call("leak", text=SECRET)], SECRET, ServerError(SECRET)]
    loop = traced(answers, capture, prompt=prompt, tools=[leak], is_complete=lambda context: False)
    events = followed(loop)
    assert SECRET not in capture.said()
    assert SECRET not in repr(events)
    assert "ServerError" in capture.said()


def test_without_an_sdk_and_without_anybody_who_follows_it_runs_the_same() -> None:
    assert run(looped([[call("look", what="a")], "done"], numbered)).reason == "answered"
