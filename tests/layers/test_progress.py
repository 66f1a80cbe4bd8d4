"""The reporter: one root span per turn, and news of it for whoever listens."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

from chatstack import (
    BuiltClient,
    ChatStack,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ProgressEvent,
    ProgressReporter,
    ServerError,
    ToolCall,
    WiringError,
    agent_turn,
    tool,
)
from chatstack.telemetry.delivery import ProgressDelivery
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from chatstack.testing.leftovers import complaints


@tool
def look(city: str) -> str:
    """Looks."""
    if city == "nowhere":
        raise ValueError("hunter2")
    return "sunny"


def looking(city: str = "Dubai") -> Message:
    return Message.assistant(ToolCall("1", "look", f'{{"city": "{city}"}}'))


class Reported:
    """A whole stack with a listener."""

    def __init__(
        self, *answers: Answer, on_progress: Callable[[ProgressEvent], object] | None = None, limit: int = 10_000
    ) -> None:
        self.heard: list[ProgressEvent] = []
        self.capture = TelemetryCapture()
        self.client: BuiltClient = (
            ChatStack(ScriptedClient(answers or ("fine",)))
            .use(ProgressReporter, on_progress=on_progress or self.heard.append, agent_name="travel")
            .use(FunctionInvoker, tools=[look])
            .use(ContextWindowGuard, max_context_tokens=limit)
            .build(self.capture.resolve)
        )

    def ask(self, *, streaming: bool = False, **options: Any) -> list[ProgressEvent]:
        async def run() -> None:
            async with self.client:
                if streaming:
                    await self.client.get_streaming_response("hello", **options).response()
                else:
                    await self.client.get_response("hello", **options)

        asyncio.run(run())
        return self.heard


# The root span


def test_a_turn_is_one_root_span_with_everything_inside() -> None:
    reported = Reported(looking(), "sunny")
    reported.ask(conversation_id="c-42")
    assert reported.capture.tree() == [
        (
            "invoke_agent travel",
            [("chat script", []), ("execute_tool look", []), ("chat script", [])],
        )
    ]
    span = reported.capture.span("invoke_agent travel")
    attributes = dict(span.attributes)
    tokens = (attributes.pop("gen_ai.usage.input_tokens"), attributes.pop("gen_ai.usage.output_tokens"))
    largest = max(event.numbers["utilization"] for event in reported.heard if event.kind == "context_weighed")
    assert attributes.pop("chatstack.context.utilization") == largest > 0
    assert attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "travel",
        "gen_ai.conversation.id": "c-42",
        "input.value": "c-42, 1 message",
    }
    rounds = reported.capture.spans_named("chat script")
    assert tokens == tuple(
        sum(each.attributes[f"gen_ai.usage.{kind}_tokens"] for each in rounds)  # type: ignore[misc]
        for kind in ("input", "output")
    )
    assert (span.kind, span.status) == ("INTERNAL", "unset")
    (point,) = reported.capture.metric("gen_ai.invoke_agent.duration")
    assert (dict(point.labels), point.count) == ({"gen_ai.agent.name": "travel"}, 1)


def test_warnings_of_the_layers_below_roll_up_to_it() -> None:
    reported = Reported("fine", limit=5)
    reported.ask()
    attributes = reported.capture.span("invoke_agent travel").attributes
    assert attributes["chatstack.warnings"] == ("context_window_exceeded",)
    assert attributes["chatstack.warning.count"] == 1


def test_a_failed_turn_is_an_error_span_without_the_text_of_the_error() -> None:
    reported = Reported(ServerError("hunter2"))
    with pytest.raises(ServerError):
        reported.ask()
    span = reported.capture.span("invoke_agent travel")
    assert (span.status, span.status_text, span.events) == ("error", "ServerError", ())
    (point,) = reported.capture.metric("gen_ai.invoke_agent.duration")
    assert point.labels["error.type"] == "ServerError"


def test_it_works_without_a_listener() -> None:
    capture = TelemetryCapture()
    client = ChatStack(ScriptedClient()).use(ProgressReporter).build(capture.resolve)
    assert asyncio.run(client.get_response("hello")).text == "fine"
    assert capture.tree() == [("invoke_agent chat", [("chat script", [])])]


# Progress


@pytest.mark.parametrize("streaming", [False, True])
def test_the_listener_hears_of_every_step_in_order(streaming: bool) -> None:
    reported = Reported(looking(), "sunny")
    heard = reported.ask(streaming=streaming, conversation_id="c-42")
    assert [(event.kind, event.name, event.round) for event in heard] == [
        ("turn_started", "travel", 0),
        ("context_weighed", "", 0),
        ("model_call_started", "script", 0),
        ("model_call_ended", "script", 0),
        ("tool_started", "look", 0),
        ("tool_ended", "look", 0),
        ("context_weighed", "", 1),
        ("model_call_started", "script", 1),
        ("model_call_ended", "script", 1),
        ("turn_ended", "travel", 1),
    ]
    assert {event.conversation_id for event in heard} == {"c-42"}
    assert [event.at for event in heard] == sorted(event.at for event in heard)


def test_a_tool_that_asks_a_model_itself_does_not_disturb_the_count_of_rounds() -> None:
    async def run() -> list[tuple[str, int]]:
        helper = ChatStack(ScriptedClient(["helped"])).use(FunctionInvoker).build()

        async def ask_helper() -> str:
            return (await helper.get_response("help")).text

        heard: list[ProgressEvent] = []
        call = Message.assistant(ToolCall("1", "ask_helper"))
        stack = ChatStack(ScriptedClient([call, call, "done"])).use(ProgressReporter, on_progress=heard.append)
        async with stack.use(FunctionInvoker, tools=[ask_helper]).build() as client:
            await client.get_response("hello")
        return [(event.kind, event.round) for event in heard if event.kind in ("tool_ended", "turn_ended")]

    assert asyncio.run(run()) == [("tool_ended", 0), ("tool_ended", 1), ("turn_ended", 2)]


def test_the_last_event_sums_the_turn_up() -> None:
    reported = Reported(looking(), "sunny", limit=8)
    heard = reported.ask()
    numbers = dict(heard[-1].numbers)
    assert numbers.pop("seconds") > 0
    calls = [event.numbers for event in heard if event.kind == "model_call_ended"]
    assert numbers == {
        "input_tokens": sum(each["input_tokens"] for each in calls),
        "output_tokens": sum(each["output_tokens"] for each in calls),
        "rounds": 2,
        "warnings": len(reported.capture.warnings),
        "edits": 0,
    }
    assert numbers["warnings"] > 0


def test_errors_are_told_by_type_never_by_text() -> None:
    reported = Reported(looking("nowhere"), ServerError("hunter2"))
    with pytest.raises(ServerError):
        reported.ask()
    errors = [(event.kind, event.error) for event in reported.heard if event.error]
    assert errors == [
        ("tool_ended", "ValueError"),
        ("model_call_ended", "ServerError"),
        ("turn_ended", "ServerError"),
    ]
    assert "hunter2" not in repr(reported.heard)


def test_no_event_holds_text_of_the_conversation() -> None:
    reported = Reported(looking(), "it is sunny")
    assert not [event for event in reported.ask() if "hello" in repr(event) or "sunny" in repr(event)]


def test_progress_needs_no_telemetry_at_all() -> None:
    async def run() -> list[str]:
        heard: list[ProgressEvent] = []
        stack = ChatStack(ScriptedClient(["fine"])).use(ProgressReporter, on_progress=heard.append)
        async with stack.build() as client:
            await client.get_response("hello")
        return [event.kind for event in heard]

    assert asyncio.run(run()) == ["turn_started", "model_call_started", "model_call_ended", "turn_ended"]


def test_a_slow_listener_does_not_hold_up_a_call() -> None:
    go, heard = threading.Event(), list[bool]()

    async def run() -> None:
        reported = Reported("fine", on_progress=lambda event: heard.append(go.wait(300)))
        await reported.client.get_response("hello")
        assert heard == []  # the listener is still at the first event
        go.set()
        await reported.client.aclose()

    asyncio.run(run())
    assert heard


def test_a_failing_listener_never_fails_a_call_and_is_warned_of() -> None:
    def listen(event: ProgressEvent) -> None:
        raise RuntimeError("hunter2")

    reported = Reported("fine", on_progress=listen)
    reported.ask()
    assert set(reported.capture.warnings) == {"progress_dropped"}
    warned = reported.capture.spans_named("progress")
    dropped = sum(int(str(span.attributes["chatstack.progress.dropped"])) for span in warned)
    told = [span for span in warned if span.parent_id is not None]  # a warning inside the turn is an event as well
    assert dropped == 5 + len(told)
    assert "hunter2" not in repr([dict(span.attributes) for span in reported.capture.spans])


def test_what_was_missed_in_an_earlier_turn_is_rolled_up_to_the_next_one() -> None:
    heard_of_turns: list[str] = []
    second_began = threading.Event()

    def listen(event: ProgressEvent) -> None:
        if event.kind == "turn_ended":
            raise RuntimeError("no")
        if event.kind == "turn_started":
            heard_of_turns.append(event.name)
            if len(heard_of_turns) == 2:
                second_began.set()

    async def run() -> TelemetryCapture:
        reported = Reported("fine", on_progress=listen)
        await reported.client.get_response("hello")
        async with reported.client.get_streaming_response("hello") as stream:
            await asyncio.to_thread(second_began.wait, 5)  # events come in order: the first turn's have been tried
            await stream.response()
        return reported.capture

    first, second = asyncio.run(run()).spans_named("invoke_agent travel")
    assert "chatstack.warnings" not in first.attributes
    assert second.attributes["chatstack.warnings"] == ("progress_dropped",)


def test_closing_waits_until_everything_was_delivered() -> None:
    heard: list[str] = []

    def listen(event: ProgressEvent) -> None:
        time.sleep(0.02)
        heard.append(event.kind)

    Reported("fine", on_progress=listen).ask()
    assert heard[-1] == "turn_ended"


@pytest.mark.parametrize("root", ["reporter", "agent_turn"])
def test_a_task_that_outlives_the_turn_tells_nothing_of_it_and_adds_nothing_to_its_span(root: str) -> None:
    capture, heard = TelemetryCapture(), list[ProgressEvent]()
    late = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=5).build(capture.resolve)
    tasks = list[asyncio.Task[object]]()
    is_over = asyncio.Event()

    async def ask_later() -> None:
        await is_over.wait()
        await late.get_response("x" * 36)

    @tool
    async def start() -> str:
        """Start something."""
        tasks.append(asyncio.create_task(ask_later()))
        return "started"

    async def run() -> None:
        stack = ChatStack(ScriptedClient([Message.assistant(ToolCall("1", "start")), "fine"]))
        if root == "reporter":
            stack = stack.use(ProgressReporter, on_progress=heard.append)
        of_agent = agent_turn("chat", on_progress=heard.append, telemetry=capture.telemetry)
        with of_agent if root == "agent_turn" else nullcontext():
            async with stack.use(FunctionInvoker, tools=[start]).open(capture.resolve) as client:
                await client.get_response("hello")
        is_over.set()
        await asyncio.gather(*tasks)

    with complaints() as told:
        asyncio.run(run())
    assert capture.warnings[-1] == "context_window_exceeded"
    assert (told, heard[-1].kind) == ([], "turn_ended")
    assert "chatstack.warnings" not in capture.span("invoke_agent chat").attributes


async def listens(event: ProgressEvent) -> None: ...


class AsyncListener:
    async def __call__(self, event: ProgressEvent) -> None: ...


@pytest.mark.parametrize("bad", [listens, functools.partial(listens), AsyncListener(), "print", 5])
def test_a_listener_that_is_no_plain_function_fails_at_build(bad: Any) -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(ScriptedClient()).use(ProgressReporter, on_progress=bad).build()
    assert str(caught.value) == (
        f"ProgressReporter: on_progress={type(bad).__name__} must be a plain function of one event"
    )
    assert (caught.value.layer, caught.value.parameter) == ("ProgressReporter", "on_progress")


def test_what_could_not_be_delivered_until_the_end_is_counted_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    capture, gate = TelemetryCapture(), threading.Event()
    client = (
        ChatStack(ScriptedClient())
        .use(ProgressReporter, on_progress=lambda event: gate.wait(300))
        .build(capture.resolve)
    )
    flush = ProgressDelivery.flush
    monkeypatch.setattr(ProgressDelivery, "flush", lambda self: flush(self, 0.05))

    async def talk() -> None:
        async with client:
            await client.get_response("hello")

    asyncio.run(talk())
    gate.set()
    assert capture.warnings == ("progress_dropped",)
    assert capture.span("progress").attributes["chatstack.progress.dropped"] == 3


def test_what_a_listener_raises_is_named_by_its_type_and_line_and_not_by_its_text() -> None:
    def listen(event: ProgressEvent) -> None:
        raise KeyError("hunter2")

    reported = Reported(on_progress=listen)
    reported.ask()

    line = listen.__code__.co_firstlineno + 1
    told = {str(span.attributes["chatstack.warning.message"]) for span in reported.capture.spans_named("progress")}
    assert told
    assert all(each.endswith(f"the listener raised KeyError (test_progress.py:{line})") for each in told)
