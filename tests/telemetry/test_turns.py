"""The turn that is running travels in the OpenTelemetry context."""

from __future__ import annotations

import asyncio
import time

import pytest
from opentelemetry import context as otel
from opentelemetry.trace import INVALID_SPAN

from chatstack import (
    ChatStack,
    ContextWindowGuard,
    FunctionInvoker,
    ProgressEvent,
    ProgressReporter,
    ToolCall,
)
from chatstack.telemetry.turns import Turn, attached, current_turn, with_turn
from chatstack.testing import ScriptedClient, TelemetryCapture


def test_there_is_no_turn_unless_one_runs() -> None:
    assert current_turn() is None
    turn = Turn(INVALID_SPAN, "c-1")
    with attached(with_turn(turn, otel.get_current())):
        assert current_turn() is turn
    assert current_turn() is None


def test_a_context_is_left_when_the_block_fails() -> None:
    with (
        pytest.raises(ValueError, match="no"),
        attached(with_turn(Turn(INVALID_SPAN, None), otel.get_current())),
    ):
        raise ValueError("no")
    assert current_turn() is None


def test_the_inner_turn_hides_the_outer_one_and_gives_it_back() -> None:
    outer, inner = Turn(INVALID_SPAN, "outer"), Turn(INVALID_SPAN, "inner")
    with attached(with_turn(outer, otel.get_current())):
        with attached(with_turn(inner, otel.get_current())):
            assert current_turn() is inner
        assert current_turn() is outer


def test_turns_of_tasks_do_not_mix() -> None:
    async def run(name: str) -> str | None:
        with attached(with_turn(Turn(INVALID_SPAN, name), otel.get_current())):
            await asyncio.sleep(0.001)
            turn = current_turn()
            return turn.conversation_id if turn is not None else None

    async def all_of_them() -> list[str | None]:
        return await asyncio.gather(*(run(str(number)) for number in range(20)))

    assert asyncio.run(all_of_them()) == [str(number) for number in range(20)]


def test_telling_makes_an_event_of_the_turn() -> None:
    heard: list[ProgressEvent] = []
    turn = Turn(INVALID_SPAN, "c-1", heard.append)
    turn.round = 2
    before = time.time()
    turn.tell("tool_ended", "look", error="ValueError", numbers={"seconds": 1.5})
    (event,) = heard
    assert (event.kind, event.name, event.conversation_id, event.round) == ("tool_ended", "look", "c-1", 2)
    assert (event.error, event.message, dict(event.numbers)) == ("ValueError", "", {"seconds": 1.5})
    assert before <= event.at <= time.time()


@pytest.mark.parametrize("has_sdk", [True, False])
def test_a_stack_within_another_turn_tells_that_one_what_it_would_tell_without_a_turn_of_its_own(has_sdk: bool) -> None:
    """An agent that is a tool: its warnings reach the outer root, its progress the outer listener."""
    capture = TelemetryCapture()
    resolve = capture.resolve if has_sdk else None
    heard: list[ProgressEvent] = []
    inner = (
        ChatStack(ScriptedClient(["found"]))
        .use(ProgressReporter, agent_name="researcher")
        .use(ContextWindowGuard, max_context_tokens=100)
        .build(resolve)
    )

    async def research() -> str:
        """Research."""
        return (await inner.get_response("a question " * 33)).text

    async def ask() -> None:
        model = ScriptedClient([[ToolCall("1", "research", "{}")], "done"])
        stack = ChatStack(model).use(ProgressReporter, agent_name="boss", on_progress=heard.append)
        async with stack.use(FunctionInvoker, tools=[research]).open(resolve) as client:
            await client.get_response("hi", conversation_id="o")

    asyncio.run(ask())
    calls = ["model_call_started", "model_call_ended"]
    within = ["tool_started", "context_weighed", "warning", *calls, "tool_ended"]
    assert [event.kind for event in heard] == ["turn_started", *calls, *within, *calls, "turn_ended"]
    assert {event.conversation_id for event in heard} == {"o"}
    assert heard[-1].numbers["warnings"] == 1
    for agent in ("boss", "researcher") if has_sdk else ():
        (root,) = capture.spans_named(f"invoke_agent {agent}")
        assert root.attributes["chatstack.warning.count"] == 1
        assert str(root.attributes["output.value"]).startswith("WARN fits at 94%")
        assert root.attributes["langfuse.observation.level"] == "WARNING"
        assert root.attributes["logfire.level_num"] == 13


def test_turns_of_a_task_that_outlives_the_one_it_began_in_leave_nothing_there() -> None:
    outer = Turn(INVALID_SPAN, "outer")
    with attached(with_turn(outer, otel.get_current())):
        before = Turn(INVALID_SPAN, "begun before its end")
        outer.tell("turn_ended", "chat")
        after = Turn(INVALID_SPAN, "begun after its end")
    for turn in (before, after, outer):
        turn.warned("context_window_near_limit", "fits")
        turn.edited("summarize", "9 messages")
    assert (outer.warning_count, outer.edit_count) == (0, 0)
    assert (after.warning_count, after.edit_count) == (1, 1)


def test_a_turn_with_a_listener_of_its_own_tells_the_outer_one_only_what_rolls_up() -> None:
    outside, inside = list[ProgressEvent](), list[ProgressEvent]()
    outer = Turn(INVALID_SPAN, "outer", outside.append)
    with attached(with_turn(outer, otel.get_current())):
        inner = Turn(INVALID_SPAN, "inner", inside.append)
    inner.tell("edit", "summarize")
    inner.warned("context_window_near_limit", "fits")
    inner.edited("summarize", "9 messages")
    assert (len(outside), len(inside)) == (0, 1)
    assert (outer.warning_count, outer.edit_count) == (1, 1)


def test_the_story_of_a_turn_with_many_edits_stays_short() -> None:
    """An agent may shape a result in each of a thousand rounds: the root is one line in a list of traces."""
    turn = Turn(INVALID_SPAN, None)
    for number in range(1_000):
        turn.edited("shape", f"edit {number}")
    turn.warned("context_irreducible", "too long")
    for number in range(100):
        turn.warned("context_window_exceeded", f"{number} tokens over")
    told = turn.story.split("; ")
    assert told[:2] == ["WARN too long (context_irreducible)", "WARN 0 tokens over (context_window_exceeded)"]
    assert told[19:22] == ["WARN 18 tokens over (context_window_exceeded)", "81 more warnings", "edit 0 (shape)"]
    assert told[40:] == ["edit 19 (shape)", "980 more edits"]
    assert (turn.warning_count, turn.edit_count) == (101, 1_000)
