"""Every edit in a real stack: its span, the log record, the counters, the root, the listener, and the mark on the call
that was sent edited. It is information, and never counted as a warning."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

import chatstack
from chatstack import (
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindow,
    FunctionInvoker,
    Message,
    Plan,
    ProgressEvent,
    ProgressReporter,
    ServerError,
    Strategy,
    Summarizer,
    ToolCall,
)
from chatstack.context.edits.context import Context
from chatstack.context.strategies.condensing import ClearThenDrop
from chatstack.context.strategies.pruning import OldestFirst
from chatstack.context.strategies.truncating import Truncate
from chatstack.testing import CapturedSpan, MetricPoint, ScriptedClient, TelemetryCapture
from tests.telemetry.scenarios import (
    CALL,
    FRONTS,
    ID,
    WORDS,
    Front,
    Scenario,
    Told,
    clearing,
    guarded,
    look,
    model,
    of_edits,
    said,
    scenarios,
    told,
    user,
)

RESULT = Message.tool("call-1", look(), name="look")
COMPACTED = "gen_ai.conversation.compacted"


@dataclass(frozen=True)
class Custom(Strategy):
    """A plugin's strategy that gives itself no name."""

    quotes_nothing = True

    def plan(self, context: Context) -> Plan | None:
        return Plan(strategy=self.name, reason="not needed", drop=(1,)) if context.tokens > 10 else None


OF_TOOLS = {"text": (9, 9), "calls": (7, 7), "results": (18, 7)}
"""Tokens before and after, by kind."""
DONE = {
    "clear_tool_results": "cleared 1 result",
    "summarize": "summarized 5 messages",
    "clear_then_drop": "pruned 2 messages",
    "truncate": "pruned 1 message",
    "truncate, oldest first": "pruned 1 message",
    "truncate, by a guard": "pruned 1 message",
    "truncate, by a window": "pruned 7 messages",
    "custom": "pruned 1 message",
}
"""What the cells of lists begin with."""


def edit(
    strategy: str,
    stack: ChatStack,
    asked: list[Message],
    sizes: tuple[int, int],
    reason: str,
    left: int,
    kinds: dict[str, tuple[int, int]] | None = None,
    **more: int,
) -> Scenario:
    """An edit, and what is told of it: tokens before and after, why, how many messages are left, tokens by kind (all of
    them text, unless told otherwise), cleared results."""
    for kind, (before, after) in (kinds or {"text": sizes}).items():
        more |= {f"{kind}_tokens_before": before, f"{kind}_tokens_after": after}
    about = of_edits(
        strategy,
        reason=reason,
        messages_before=len(asked),
        messages_after=left,
        tokens_before=sizes[0],
        tokens_after=sizes[1],
        **more,
    )
    message = f"{reason}: {sizes[0]} tokens became {sizes[1]}"
    return Scenario("", stack, message, about, [asked], f"compact_context {strategy}", edits=1)


def edits() -> dict[str, Scenario]:
    """By strategy, and who applies it."""
    talk, looked = [user(3), said(9), user(3)], [user(3), CALL, RESULT, said(3), user(3)]
    long, writer = [user(3), *[said(9), user(3)] * 4], ScriptedClient(["short"], counter=WORDS)
    down = ContextWindow(max_context_items=4, summary_client=ScriptedClient([ServerError("no")]))
    clearer, due = clearing(30, keep={"messages": 0}), "34 tokens in 5 messages, the trigger is 30"
    summarizer = model().use(Summarizer, max_context_items=8, summary_client=writer, counter=WORDS)
    folded, over = "9 items, more than 8; 5 messages into one summary", "15 tokens, more than 10"

    def applied(strategy: Strategy) -> ChatStack:
        return model().use(strategy, counter=WORDS)

    oldest, pruning = applied(OldestFirst(10, 8)), guarded(prune_on_overflow=True)
    return {
        "clear_tool_results": edit(
            "clear_tool_results", clearer, looked, (34, 23), due, 5, OF_TOOLS, tool_results_cleared=1
        ),
        "summarize": replace(edit("summarize", summarizer, long, (51, 30), folded, 5), inside=("chat script",)),
        "clear_then_drop": edit(
            "clear_then_drop",
            applied(ClearThenDrop(30, mentions=0.05)),
            looked,
            (34, 9),
            "forced (34 tokens, more than 30)",
            3,
            {"text": (9, 9), "calls": (7, 0), "results": (18, 0)},
        ),
        "truncate": edit("truncate", applied(Truncate(10)), talk, (15, 6), over, 2),
        "truncate, oldest first": edit("truncate", oldest, talk, (15, 6), over, 2),
        "truncate, by a guard": replace(
            edit("truncate", pruning, talk, (15, 6), over, 2), codes=("context_window_exceeded",)
        ),
        "truncate, by a window": replace(
            edit("truncate", applied(down), long, (51, 6), "6 items, more than 4", 2), codes=("summarizer_failed",)
        ),
        "custom": edit("custom", applied(Custom()), talk, (15, 6), "not needed", 2),
    }


every_edit = pytest.mark.parametrize("name", [*edits()])
both_fronts = pytest.mark.parametrize("front", FRONTS)


def built_in() -> Iterator[str]:
    """The names of all strategies of the package."""
    for folder in ("context", "layers"):
        for module in pkgutil.walk_packages([f"{chatstack.__path__[0]}/{folder}"], f"chatstack.{folder}."):
            for each in vars(importlib.import_module(module.name)).values():
                if isinstance(each, type) and issubclass(each, Strategy):
                    yield each.name


def check_edit(heard: Told, name: str, scenario: Scenario, above: tuple[str, ...], **whose: str) -> CapturedSpan:
    """The span of an edit, its place, its log record and its counts. Gives the span."""
    capture, strategy = heard.capture, {"chatstack.compaction.strategy": scenario.span.split()[1]}
    (span,) = (each for each in capture.spans if each.attributes.get("chatstack.severity") == "INFO")
    assert (span.name, span.kind, heard.path(span.span_id)) == (scenario.span, "INTERNAL", (*above, scenario.span))
    assert tuple(each.name for each in capture.spans if each.parent_id == span.span_id) == scenario.inside
    assert (span.status, span.events) == ("unset", ())
    said_of_it = {**scenario.attributes, **whose, "chatstack.severity": "INFO"}
    hints = {"openinference.span.kind": "CHAIN", "output.value": f"{DONE[name]}: {scenario.message}"}
    assert dict(span.attributes) == {**said_of_it, **hints}
    (log,) = (each for each in capture.logs if each.event_name == "chatstack.edit")
    assert (log.severity, log.body, dict(log.attributes)) == ("INFO", scenario.message, said_of_it)
    assert (log.trace_id, log.span_id) == (span.trace_id, span.span_id)
    before, after = (scenario.attributes[f"chatstack.compaction.tokens_{when}"] for when in ("before", "after"))
    assert isinstance(before, int)
    assert isinstance(after, int)
    assert capture.metric("chatstack.edits") == (MetricPoint(strategy, 0, 1),)
    assert capture.metric("chatstack.compaction.tokens_removed") == (MetricPoint(strategy, 0, before - after),)
    assert capture.warnings == scenario.codes
    return span


def above_of(name: str) -> tuple[str, ...]:
    return ("context_guard",) if name == "truncate, by a guard" else ()


def compacted_calls(heard: Told) -> list[tuple[tuple[str, ...], object]]:
    """The calls to a model, where they were made, and whether they say that what they were sent was edited."""
    calls = (each for each in heard.capture.spans if each.attributes.get("gen_ai.operation.name") == "chat")
    return [(heard.path(each.span_id)[:-1], each.attributes.get(COMPACTED)) for each in calls]


# Whoever adds a strategy has to show what is said of it


def test_every_strategy_is_shown_here() -> None:
    assert {each.span for each in edits().values()} | {"compact_context context_window"} == {
        f"compact_context {name}" for name in (*built_in(), "summarize")
    }


# In a turn


@every_edit
@both_fronts
def test_an_edit_is_seen_everywhere_and_is_no_warning(name: str, front: Front) -> None:
    scenario = edits()[name]
    heard = told(scenario, front)
    span = check_edit(heard, name, scenario, ("invoke_agent chat", *above_of(name)), **{"gen_ai.conversation.id": ID})
    root = heard.capture.span("invoke_agent chat")
    assert root.trace_id == span.trace_id
    assert root.attributes["chatstack.edit.count"] == 1
    assert root.attributes.get("chatstack.warnings", ()) == scenario.codes
    assert root.attributes.get("chatstack.warning.count", 0) == len(scenario.codes)
    assert ("langfuse.observation.level" in root.attributes) == bool(scenario.codes)
    sizes = {each: scenario.attributes[f"chatstack.compaction.tokens_{each}"] for each in ("before", "after")}
    story = f"{DONE[name]}: {sizes['before']} -> {sizes['after']} tokens ({span.name.split()[1]})"
    assert story in str(root.attributes["output.value"])
    (event,) = (each for each in heard.heard if each.kind == "edit")
    assert (event.name, event.message, event.error) == (span.name.split()[1], scenario.message, "")
    assert (event.round, event.conversation_id) == (0, ID)
    assert dict(event.numbers) == {
        attribute.rsplit(".", 1)[-1]: value
        for attribute, value in scenario.attributes.items()
        if isinstance(value, int)
    }
    assert heard.heard[-1].numbers["edits"] == 1


@every_edit
def test_streaming_tells_exactly_the_same(name: str) -> None:
    assert told(edits()[name], "streamed").everything() == told(edits()[name], "whole").everything()


@pytest.mark.sampled(3)
@every_edit
@both_fronts
@pytest.mark.parametrize("foreign", [False, True])
def test_without_a_root_of_ours_an_edit_is_said_and_rolls_up_to_nothing(name: str, front: Front, foreign: bool) -> None:
    scenario = edits()[name]
    heard = told(scenario, front, root="none", foreign=foreign)
    check_edit(heard, name, scenario, (*(("foreign",) if foreign else ()), *above_of(name)))
    assert not [each for each in heard.capture.spans if "chatstack.edit.count" in each.attributes]
    assert not [each for each in heard.capture.spans_named("foreign") if each.attributes or each.events]


@every_edit
@both_fronts
def test_without_a_reporter_an_edit_rolls_up_to_the_outermost_call(name: str, front: Front) -> None:
    scenario = edits()[name]
    heard = told(scenario, front, root="tracer")
    check_edit(heard, name, scenario, ("chat script", *above_of(name)), **{"gen_ai.conversation.id": ID})
    (root,) = (each for each in heard.capture.spans if each.parent_id is None)
    assert root.attributes["chatstack.edit.count"] == 1


# The mark on what was sent edited


@every_edit
@both_fronts
def test_the_call_that_is_sent_edited_says_so_and_no_other(name: str, front: Front) -> None:
    *others, (place, mark) = compacted_calls(told(edits()[name], front))
    assert (place, mark) == (("invoke_agent chat",), True)
    assert not [each for each in others if each[1] is not None]


@both_fronts
def test_the_rounds_before_an_edit_and_what_tools_ask_are_not_marked(front: Front) -> None:
    capture, heard = TelemetryCapture(), list[ProgressEvent]()
    helper = ChatStack(ScriptedClient(["sun " * 30])).build(capture.resolve)

    async def ask() -> str:
        return (await helper.get_response("hi")).text

    asking = [Message.assistant(ToolCall(f"{number}", "ask")) for number in range(3)]
    stack = model(*asking, "fine").use(ProgressReporter, on_progress=heard.append).use(FunctionInvoker, tools=[ask])
    client = clearing(60, stack, keep={"messages": 1}).build(capture.resolve)

    async def run() -> None:
        async with client:
            await (client.get_response("hi") if front == "whole" else client.get_streaming_response("hi").response())

    asyncio.run(run())
    turn, tool = ("invoke_agent chat",), ("invoke_agent chat", "execute_tool ask")
    assert compacted_calls(Told(capture, heard)) == [
        (turn, None),
        (tool, None),
        (turn, None),
        (tool, None),
        (turn, True),
        (tool, None),
        (turn, True),
    ]
    assert [each.round for each in heard if each.kind == "edit"] == [2]
    assert capture.span("invoke_agent chat").attributes["chatstack.edit.count"] == 1


@every_edit
def test_an_edit_that_is_made_again_on_a_later_call_is_marked_and_not_said_again(name: str) -> None:
    scenario = edits()[name]
    (asked,) = scenario.asked
    heard = told(replace(scenario, asked=[asked, [*asked, Message.assistant("fine"), user(1)]]), "whole")
    assert [mark for _, mark in compacted_calls(heard)] == [True]
    assert not [each for each in heard.capture.spans if each.attributes.get("chatstack.severity") == "INFO"]
    assert "chatstack.edit.count" not in heard.capture.span("invoke_agent chat").attributes
    assert heard.capture.metric("chatstack.edits") == ()
    assert [each.kind for each in heard.heard if each.kind == "edit"] == []


@both_fronts
def test_a_repair_is_a_warning_and_no_edit(front: Front) -> None:
    heard = told(scenarios()["repaired"], front)
    root = heard.capture.span("invoke_agent chat").attributes
    assert (root.get("chatstack.edit.count"), root["chatstack.warnings"]) == (None, ("messages_repaired",))
    assert heard.capture.metric("chatstack.edits") == ()
    assert compacted_calls(heard) == [(("invoke_agent chat",), None)]


@both_fronts
def test_a_plan_that_is_refused_is_no_edit(front: Front) -> None:
    heard = told(scenarios()["plan"], front)
    assert "chatstack.edit.count" not in heard.capture.span("invoke_agent chat").attributes
    assert [log.event_name for log in heard.capture.logs] == ["chatstack.warning"]
    assert compacted_calls(heard) == [(("invoke_agent chat",), None)]


# An edit that takes time


@both_fronts
@pytest.mark.parametrize("name", ["summarize", "truncate, by a window"])
def test_listeners_hear_when_a_summary_begins_and_that_it_has_ended(name: str, front: Front) -> None:
    heard = [(each.kind, each.name, each.error) for each in told(edits()[name], front).heard]
    begun = heard.index(("edit_started", "summarize", ""))
    came_of_it = ("edit", "summarize", "") if name == "summarize" else ("warning", "summarizer_failed", "ServerError")
    error = "" if name == "summarize" else "ServerError"
    assert heard[begun : begun + 5] == [
        ("edit_started", "summarize", ""),
        ("model_call_started", "script", ""),
        ("model_call_ended", "script", error),
        came_of_it,
        ("edit_ended", "summarize", ""),
    ]
    assert [each for each in heard if each[0] == "edit_started"] == [heard[begun]]


def test_a_summary_that_is_cancelled_has_ended_for_listeners_too() -> None:
    heard, capture = list[ProgressEvent](), TelemetryCapture()
    begun = asyncio.Event()

    class Stuck(ScriptedClient):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

    stack = model().use(ProgressReporter, on_progress=heard.append)
    stack = stack.use(Summarizer, max_context_items=6, summary_client=Stuck(), counter=WORDS)

    async def run() -> None:
        async with stack.build(capture.resolve) as client:
            asked = asyncio.create_task(client.get_response([user(3), *[said(9), user(3)] * 4]))
            await begun.wait()
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(run())
    assert [(each.name, each.error) for each in heard if each.kind == "edit_ended"] == [("summarize", "cancelled")]
    assert capture.open_spans == ()
