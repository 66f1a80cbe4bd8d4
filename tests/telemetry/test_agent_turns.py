"""The root span around another framework's agent."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from chatstack import ChatStack, ContextWindowGuard, InputError, Message, ProgressEvent, agent_turn
from chatstack.telemetry.turns import current_turn
from chatstack.testing import ScriptedClient, TelemetryCapture


def test_all_calls_of_an_agent_are_one_tree() -> None:
    capture, events = TelemetryCapture(), list[ProgressEvent]()
    stack = ChatStack(ScriptedClient(["one", "two"])).use(ContextWindowGuard, max_context_tokens=1_000)
    client = stack.build(capture.resolve)

    async def agent() -> None:
        await client.get_response("a")
        await client.get_response("b" * 3_500)

    async def run() -> None:
        with agent_turn("planner", conversation_id="c-1", on_progress=events.append, telemetry=capture.telemetry):
            await agent()

    asyncio.run(run())
    (root,) = [span for span in capture.spans if span.parent_id is None]
    assert root.name == "invoke_agent planner"
    assert root.attributes["gen_ai.conversation.id"] == "c-1"
    assert root.attributes["chatstack.warnings"] == ("context_window_near_limit",)
    chats = [span for span in capture.spans if span.name.startswith("chat ")]
    assert {span.parent_id for span in chats} == {root.span_id}
    assert len(chats) == 2
    assert (events[0].kind, events[-1].kind) == ("turn_started", "turn_ended")
    assert events[-1].numbers["warnings"] == 1


@pytest.mark.parametrize("error", [ValueError("it broke"), asyncio.CancelledError()])
def test_a_failure_ends_the_span_and_surfaces(error: BaseException) -> None:
    capture = TelemetryCapture()
    with pytest.raises(type(error)), agent_turn("planner", telemetry=capture.telemetry):
        raise error
    (root,) = capture.spans
    expected = "cancelled" if isinstance(error, asyncio.CancelledError) else "ValueError"
    assert root.attributes["error.type"] == expected
    assert current_turn() is None


def test_conversations_side_by_side_have_a_root_each() -> None:
    capture = TelemetryCapture()
    client = ChatStack(ScriptedClient(["fine"])).build(capture.resolve)

    async def one(number: int) -> None:
        with agent_turn("planner", conversation_id=f"c-{number}", telemetry=capture.telemetry):
            await asyncio.sleep(0)
            await client.get_response([Message.user("hello")], conversation_id=f"c-{number}")

    async def run() -> None:
        await asyncio.gather(*map(one, range(50)))

    asyncio.run(run())
    roots = {span.span_id: span for span in capture.spans if span.parent_id is None}
    assert len(roots) == 50
    for span in capture.spans:
        if span.parent_id is not None:
            root = roots[span.parent_id]
            assert root.attributes["gen_ai.conversation.id"] == span.attributes["gen_ai.conversation.id"]


def test_without_an_sdk_it_costs_nothing_and_breaks_nothing() -> None:
    with agent_turn():
        assert current_turn() is not None
    assert current_turn() is None


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(InputError, match="name"), agent_turn(cast("Any", 5)):
        pass


async def later(event: ProgressEvent) -> None:
    """A listener that would never run."""


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"on_progress": "x"}, "agent_turn: on_progress=str must be a plain function of one event"),
        ({"on_progress": later}, "agent_turn: on_progress=function must be a plain function of one event"),
        ({"telemetry": "x"}, "agent_turn: telemetry: expected a Telemetry, got str"),
        ({"telemetry": 0}, "agent_turn: telemetry: expected a Telemetry, got int"),
    ],
)
def test_wrong_arguments_are_refused_before_there_is_a_span(wrong: dict[str, Any], told: str) -> None:
    capture = TelemetryCapture()
    given: dict[str, Any] = {"telemetry": capture.telemetry, **wrong}
    with pytest.raises(InputError, match=told), agent_turn("planner", **given):
        pass
    assert (capture.spans, capture.open_spans) == ((), ())


def test_a_listener_that_raises_leaves_no_span_open() -> None:
    def raises(event: ProgressEvent) -> None:
        raise ValueError("it broke")

    capture = TelemetryCapture()
    turn = agent_turn("planner", on_progress=raises, telemetry=capture.telemetry)
    with pytest.raises(ValueError, match="broke"), turn:
        raise AssertionError("not reached")
    assert (capture.open_spans, capture.span("invoke_agent planner").attributes["error.type"]) == ((), "ValueError")
