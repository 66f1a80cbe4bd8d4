"""Every warning, provoked in a real stack: its span and the span's place, the root, the log record, the counter, and
the listener; streamed or not, in a later round, without a root of ours, and inside of somebody else's span."""

from __future__ import annotations

import asyncio
import threading
import typing
from collections.abc import AsyncGenerator
from contextlib import nullcontext
from dataclasses import replace

import pytest
from msgspec.structs import replace as replaced

from chatstack import (
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    ContextMemory,
    ContextWindow,
    ContextWindowGuard,
    FunctionInvoker,
    IterativeContext,
    IterativeLoop,
    Message,
    ProgressEvent,
    ProgressReporter,
    ToolCall,
    Usage,
)
from chatstack.loop.workspace import MemoryWorkspace
from chatstack.semconv import WarningCode
from chatstack.stack.recipe import LayerOrderWarning
from chatstack.testing import Answer, CapturedSpan, MetricPoint, ScriptedClient, TelemetryCapture
from tests.telemetry.scenarios import (
    CALL,
    CLEAR,
    FRONTS,
    GREEDY,
    ID,
    INEFFECTIVE,
    NO_SUMMARY,
    REPLAY,
    STORE_FAILS,
    SUMMARIZE,
    Front,
    Greedy,
    Root,
    Scenario,
    Told,
    broken_store,
    clearing,
    guarded,
    look,
    model,
    of_edits,
    said,
    scenarios,
    shortening,
    summarizing,
    told,
    user,
    weighed,
)

CODES: tuple[WarningCode, ...] = typing.get_args(WarningCode)
BY_THEMSELVES: set[WarningCode] = {"cache_missed", "iteration_limit_reached", "layer_order", "usage_implausible"}
"""Provoked at the end of this file: outside of a stack, or inside of a model call."""
FIRST_ROUND_ONLY: set[WarningCode] = {
    "cache_missed",  # the rounds of a turn have one head, and no pause between them
    "context_irreducible",  # what a round adds may go
    "context_layers_bypassed",
    "iteration_limit_reached",
    "layer_order",
    "messages_repaired",  # the loop adds no orphan
    "prefix_unstable",
    "token_count_estimated",  # by then a report is known
    "usage_implausible",
    "window_unknown",
}


PRUNED = ("compact_context truncate",)
GREEDILY = "compact_context greedy"
MISPLACED = (
    "layer 'ContextWindowGuard' is outside the tool loop 'FunctionInvoker': it sees a turn's first request only, so a "
    "long loop can still overflow; add it after 'FunctionInvoker'"
)
IMPLAUSIBLE = (
    "the provider reported what cannot be true (input_tokens -7, output_tokens of 100 bits): it counts as not told, in "
    "budgets too"
)
AGAIN = "look is called for the third time in this turn with the same arguments"
UNWRITABLE = (
    "locked was run, but the model cannot be given its result. In the result, a lock cannot be written as JSON; the "
    "tool must return text or plain values instead."
)
ROUNDS = {"tool limit": 0, "repeated": 2, "unwritable": 0}
"""The loop speaks at the end of a round; what is inside of it, at the beginning of the second."""


class Misreporting:
    """A model whose last round reports what cannot be true."""

    def __init__(self, answers: list[Answer], usage: Usage, rounds: int) -> None:
        self.inner = ScriptedClient(answers)
        self.usage, self.rounds = usage, rounds

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await self.inner.send(request)
        is_last = len(self.inner.requests) % self.rounds == 0

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            async for update in stream:
                yield replaced(update, usage=self.usage) if is_last and update.usage is not None else update

        return await ChatStream.primed(updates())


def locked() -> list[object]:
    """Locks."""
    return [threading.Lock()]


def looping(*answers: Answer, memory: ContextMemory | None = None, **options: typing.Any) -> ChatStack:
    """A tool loop around a model that calls once, and then answers."""
    return model(*(answers or (CALL, "fine")), memory=memory).use(FunctionInvoker, tools=[look], **options)


def later() -> dict[str, Scenario]:
    """Warnings that come in the second round: when streaming, inside of the ``__anext__`` of whoever reads."""
    near: WarningCode = "context_window_near_limit"
    over: WarningCode = "context_window_exceeded"
    limit: WarningCode = "tool_loop_limit_reached"
    share = "{} at {}: about {} of {} tokens"
    loose, two_turns = [[user(3), said(9), user(3)]], [[*[user(3), said(9)] * 2, user(3)]]
    pruning = guarded(looping(), max_context_tokens=35, prune_on_overflow=True)
    at_117 = share.format("pruned", "117%", 41, 35)
    wide, narrow = guarded(looping(), max_context_tokens=34), guarded(looping(), max_context_tokens=25)
    store = guarded(looping(memory=ContextMemory(store=broken_store(2), scope="tenant-1")), max_context_tokens=99)
    greedy, left = looping().use(Greedy(2)), of_edits("clear_tool_results", tokens_after=29)
    failed = of_edits("summarize", messages_before=7, tokens_before=53)
    ours, of_window = looping(CALL, "fine", max_tool_calls_per_turn=1), ContextWindow(max_tool_calls_per_turn=1)
    sealed = model([ToolCall("call-1", "locked")], "fine").use(FunctionInvoker, tools=[locked])
    calls = {"chatstack.tools.calls": 1, "chatstack.tools.limit": 1}
    again = {"gen_ai.tool.name": "look", "chatstack.tools.calls": 3}
    no_more = "1 tool calls {}, the limit is 1: the model is asked to answer without more"
    this, since = no_more.format("in this turn"), no_more.format("since the last user message")
    found = {
        "near": Scenario(near, wide, share.format("fits", "85%", 29, 34), weighed(29, 34, "warn")),
        "exceeded": Scenario(over, narrow, share.format("sent as it is", "116%", 29, 25), weighed(29, 25, "warn")),
        "pruned": Scenario(over, pruning, at_117, weighed(41, 35, "prune"), loose, inside=PRUNED),
        "ineffective": Scenario("edit_ineffective", clearing(20, looping()), INEFFECTIVE.format(29), left, span=CLEAR),
        "plan": Scenario("plan_rejected", greedy, GREEDY, of_edits("greedy"), span=GREEDILY, error="plan_rejected"),
        "store": Scenario("store_unavailable", store, STORE_FAILS, of_edits("replay"), span=REPLAY),
        "no summary": Scenario(
            "summarizer_failed", summarizing(6, looping()), NO_SUMMARY, failed, two_turns, SUMMARIZE, ("chat script",),
            "ServerError",
        ),
        "repeated": Scenario("repeated_tool_call", looping(CALL, CALL, CALL, "fine"), AGAIN, again, span="tool_loop"),
        "shortened": shortening(looping(), [user(3)]),
        "unwritable": Scenario(
            "tool_result_unwritable", sealed, UNWRITABLE, {"gen_ai.tool.name": "locked"}, span="tool_loop"
        ),
        "tool limit": Scenario(limit, ours, this, calls, span="tool_loop"),
        "tool limit of a window": Scenario(limit, looping().use(of_window), since, calls, span="tool_loop"),
    }  # fmt: skip
    return {
        f"later: {name}": replace(
            each,
            asked=[[user(3)]] if each.asked is Scenario.asked else each.asked,
            edits=each.edits or (len(each.inside) if each.inside == PRUNED else 0),
            round=ROUNDS.get(name, 1),
        )
        for name, each in found.items()
    }


def fresh(name: str) -> Scenario:
    return {**scenarios(), **later()}[name]


NAMES = [*scenarios(), *later()]
every_scenario = pytest.mark.parametrize("name", NAMES)
every_one_of_a_layer = pytest.mark.parametrize("name", [each for each in NAMES if each != "progress"])
both_fronts = pytest.mark.parametrize("front", FRONTS)


def check_span(heard: Told, scenario: Scenario, above: tuple[str, ...], **whose: str) -> CapturedSpan:
    """The span of a warning, its place, its event, its log record and its count. Gives the span."""
    span, code, message = heard.warned(scenario.code), scenario.code, scenario.message
    capture, about = heard.capture, {"chatstack.warning.code": code, "chatstack.warning.message": message}
    failed = {"error.type": scenario.error} if scenario.error else {}
    assert (span.name, span.kind, heard.path(span.span_id)) == (scenario.span, "INTERNAL", (*above, scenario.span))
    assert tuple(each.name for each in capture.spans if each.parent_id == span.span_id) == scenario.inside
    assert (span.status, span.status_text) == (("error", scenario.error) if scenario.error else ("unset", ""))
    assert dict(span.attributes) == {
        **scenario.attributes,
        **about,
        **whose,
        **failed,
        "chatstack.severity": "WARN",
        "openinference.span.kind": "GUARDRAIL" if scenario.span == "context_guard" else "CHAIN",
        "output.value": f"WARN {message} ({code})",
        "langfuse.observation.level": "WARNING",
        "langfuse.observation.status_message": message,
        "logfire.level_num": 13,
    }
    assert span.events == (("chatstack.warning", about),)
    (log,) = (each for each in capture.logs if each.attributes.get("chatstack.warning.code") == code)
    assert (log.event_name, log.severity, log.body) == ("chatstack.warning", "WARN", message)
    assert dict(log.attributes) == {"chatstack.warning.code": code, **scenario.attributes, **whose}
    assert (log.trace_id, log.span_id) == (span.trace_id, span.span_id)
    counted = {str(each.labels["chatstack.warning.code"]): each for each in capture.metric("chatstack.warnings")}
    assert counted == {each: MetricPoint({"chatstack.warning.code": each}, 0, 1) for each in scenario.codes or (code,)}
    return span


def check_root(root: CapturedSpan, scenario: Scenario) -> None:
    """What lists of traces show of the turn."""
    codes = scenario.codes or (scenario.code,)
    assert root.attributes["chatstack.warnings"] == codes
    assert root.attributes["chatstack.warning.count"] == len(codes)
    assert root.attributes.get("chatstack.edit.count", 0) == scenario.edits
    story = str(root.attributes["output.value"])
    assert f"WARN {scenario.message} ({scenario.code})" in story
    assert (" tokens (truncate)" in story) == bool(scenario.edits)
    assert scenario.message in str(root.attributes["langfuse.observation.status_message"])
    assert root.attributes["langfuse.observation.level"] == "WARNING"
    assert root.attributes["logfire.level_num"] == 13
    raised = "" if scenario.raises is None else scenario.raises.__name__
    assert (root.status, root.attributes.get("error.type", "")) == ("error" if raised else "unset", raised)


# Whoever adds a code has to show how it comes about


def test_every_code_is_provoked_here() -> None:
    provoked = {each.code for each in (*scenarios().values(), *later().values())}
    assert provoked | BY_THEMSELVES == set(CODES)


def test_every_code_that_a_later_round_can_bring_is_provoked_in_one() -> None:
    assert {each.code for each in later().values()} | {"progress_dropped"} == set(CODES) - FIRST_ROUND_ONLY


# In a turn


@every_scenario
@both_fronts
def test_a_warning_is_seen_everywhere(name: str, front: Front) -> None:
    scenario = fresh(name)
    heard = told(scenario, front)
    whose = {"gen_ai.conversation.id": ID}
    check_span(heard, scenario, ("invoke_agent chat",), **whose)
    check_root(heard.capture.span("invoke_agent chat"), scenario)
    assert len(heard.traces) == 1
    (event,) = (each for each in heard.heard if each.name == scenario.code)
    assert (event.kind, event.message, event.error) == ("warning", scenario.message, scenario.error)
    assert (event.round, event.conversation_id) == (scenario.round, ID)
    assert dict(event.numbers) == {
        name.rsplit(".", 1)[-1]: value for name, value in scenario.attributes.items() if isinstance(value, int | float)
    }


@every_scenario
def test_streaming_tells_exactly_the_same(name: str) -> None:
    assert told(fresh(name), "streamed").everything() == told(fresh(name), "whole").everything()


@every_one_of_a_layer
@both_fronts
def test_without_a_reporter_it_rolls_up_to_the_outermost_call(name: str, front: Front) -> None:
    scenario = fresh(name)
    heard = told(scenario, front, root="tracer")
    check_span(heard, scenario, ("chat script",), **{"gen_ai.conversation.id": ID})
    check_root(next(each for each in heard.capture.spans if each.parent_id is None), scenario)


@pytest.mark.sampled(3)
@every_one_of_a_layer
@both_fronts
@pytest.mark.parametrize("foreign", [False, True])
def test_without_a_root_of_ours_it_is_said_and_rolls_up_to_nothing(name: str, front: Front, foreign: bool) -> None:
    scenario = fresh(name)
    heard = told(scenario, front, root="none", foreign=foreign)
    check_span(heard, scenario, ("foreign",) if foreign else ())
    assert not [each for each in heard.capture.spans if "chatstack.warnings" in each.attributes]
    assert heard.heard == []


@pytest.mark.sampled(5)
@every_scenario
@both_fronts
@pytest.mark.parametrize("root", ["reporter", "tracer", "none"])
def test_a_span_of_somebody_else_is_never_written_to(name: str, front: Front, root: Root) -> None:
    heard = told(fresh(name), front, root=root, foreign=True)
    span = heard.capture.span("foreign")
    assert (dict(span.attributes), span.events, span.status, span.parent_id) == ({}, (), "unset", None)
    assert heard.traces == {span.trace_id}


@both_fronts
def test_a_warning_inside_a_tool_rolls_up_to_the_turn(front: Front) -> None:
    async def ask() -> str:
        return (await guarded().build(capture.resolve).get_response([user(9)])).text

    heard, capture = list[ProgressEvent](), TelemetryCapture()
    stack = ChatStack(ScriptedClient([[ToolCall("1", "ask")], "fine"])).use(ProgressReporter, on_progress=heard.append)
    client = stack.use(FunctionInvoker, tools=[ask]).build(capture.resolve)

    async def run() -> None:
        async with client:
            await (client.get_response("hi") if front == "whole" else client.get_streaming_response("hi").response())

    asyncio.run(run())
    scenario = fresh("near")
    check_span(Told(capture, heard), scenario, ("invoke_agent chat", "execute_tool ask"))
    check_root(capture.span("invoke_agent chat"), scenario)
    assert [each.name for each in heard if each.kind == "warning"] == [scenario.code]


@both_fronts
def test_turns_that_run_at_once_have_their_own_warnings(front: Front) -> None:
    capture = TelemetryCapture()
    stack = ChatStack(ScriptedClient(delay_seconds=0.001)).use(ProgressReporter)
    client = stack.use(ContextWindowGuard, max_context_tokens=100).build(capture.resolve)

    async def ask(number: int) -> None:
        text = "sun " * (200 if number % 2 else 1)
        if front == "whole":
            await client.get_response(text, conversation_id=f"{number}")
        else:
            await client.get_streaming_response(text, conversation_id=f"{number}").response()

    async def run() -> None:
        await asyncio.gather(*map(ask, range(20)))

    asyncio.run(run())
    counts = {
        each.attributes["gen_ai.conversation.id"]: each.attributes.get("chatstack.warning.count", 0)
        for each in capture.spans_named("invoke_agent chat")
    }
    assert counts == {str(number): number % 2 for number in range(20)}


# Outside of any turn of a stack


@pytest.mark.parametrize("foreign", [False, True])
def test_iterations_that_do_not_get_there_are_said_on_the_loop(foreign: bool) -> None:
    capture, asking = TelemetryCapture(), ScriptedClient([CALL])
    client, context = ChatStack(asking).build(capture.resolve), IterativeContext(workspace=MemoryWorkspace(), run_id=ID)
    options: dict[str, typing.Any] = {"max_iterations": 2, "mode": "single_call", "telemetry": capture.telemetry}
    loop = IterativeLoop(client, "Look.", lambda _: "go on", [look], **options)
    with capture.telemetry.tracer.start_as_current_span("foreign") if foreign else nullcontext():
        asyncio.run(loop.run(context))
    stack, message = model(), "2 iterations, and not complete"
    scenario = Scenario("iteration_limit_reached", stack, message, {"chatstack.iteration": 2}, span="iterative_loop")
    above = (*(("foreign",) if foreign else ()), "invoke_workflow loop")
    check_span(Told(capture, []), scenario, above, **{"gen_ai.conversation.id": ID})
    check_root(capture.span("invoke_workflow loop"), scenario)
    assert not [each for each in capture.spans_named("foreign") if each.attributes or each.events]


@pytest.mark.parametrize("foreign", [False, True])
def test_an_order_that_is_hardly_meant_is_said_when_the_stack_is_built(foreign: bool) -> None:
    capture = TelemetryCapture()
    stack = guarded().use(FunctionInvoker, tools=[look])
    with (
        pytest.warns(LayerOrderWarning) as warned,
        capture.telemetry.tracer.start_as_current_span("foreign") if foreign else nullcontext(),
    ):
        stack.build(capture.resolve)
    assert [str(each.message) for each in warned] == [MISPLACED]
    scenario = Scenario("layer_order", stack, MISPLACED, {}, span="build_stack")
    check_span(Told(capture, []), scenario, ("foreign",) if foreign else ())
    assert not [each for each in capture.spans_named("foreign") if each.attributes or each.events]


def test_events_that_are_lost_after_the_turn_are_said_when_the_client_is_closed() -> None:
    def listen(event: ProgressEvent) -> None:
        raise ValueError(event.name)

    capture = TelemetryCapture()
    client = model().use(ProgressReporter, on_progress=listen).build(capture.resolve)

    async def run() -> None:
        async with client:
            await client.get_response("hi")

    asyncio.run(run())
    spans = capture.spans_named("progress")
    assert sum(int(str(each.attributes["chatstack.progress.dropped"])) for each in spans) >= 4
    assert spans[-1].parent_id is None
    assert [(each.trace_id, each.span_id) for each in capture.logs] == [(each.trace_id, each.span_id) for each in spans]


@both_fronts
@pytest.mark.parametrize("reporter", [False, True])
@pytest.mark.parametrize("later", [False, True])
def test_usage_that_cannot_be_true_is_said_inside_of_the_call_that_reported_it(
    later: bool, reporter: bool, front: Front
) -> None:
    scenario = Scenario("usage_implausible", model(), IMPLAUSIBLE, {}, [[user(3)]], "usage")
    provider = Misreporting([CALL, "fine"] if later else ["fine"], Usage(-7, 10**30), rounds=1 + later)
    stack = ChatStack(provider).use(FunctionInvoker, tools=[look])
    heard = told(replace(scenario, stack=stack), front, root="reporter" if reporter else "none")
    root = heard.capture.spans[0]
    calls = heard.capture.spans_named("chat script")
    above = ("invoke_agent chat", "chat script") if reporter else ("chat script",)
    check_span(heard, scenario, above, **{"gen_ai.conversation.id": ID})
    check_root(root if reporter else calls[-1], scenario)
    assert heard.warned("usage_implausible").parent_id == calls[-1].span_id


@both_fronts
@pytest.mark.parametrize("reporter", [False, True])
def test_a_missed_cache_is_said_inside_of_the_call_that_missed_it(reporter: bool, front: Front) -> None:
    """Told of the second call: the first one wrote what its head does not let the second one read."""
    usage = Usage(9_000, 5, cache_write_tokens=9_000)
    stack = ChatStack(Misreporting(["fine"], usage, rounds=1))
    capture = TelemetryCapture()
    client = (stack.use(ProgressReporter) if reporter else stack).build(capture.resolve)

    async def ask(head: str, *history: Message) -> None:
        messages = [Message.system(head), user(1), *history]
        if front == "whole":
            await client.get_response(messages, conversation_id=ID)
            return
        async with client.get_streaming_response(messages, conversation_id=ID) as stream:
            await stream.response()

    async def run() -> None:
        await ask("one")
        await ask("two", Message.assistant("fine"), user(2))

    asyncio.run(run())
    message = (
        "9,000 tokens were not read from the prompt cache, where they had been: the system prompt or the instructions "
        "are not those of the call before"
    )
    heard = Told(capture, ())
    attributes = {"chatstack.cache.missed_tokens": 9_000, "chatstack.cache.miss_reason": "head"}
    scenario = Scenario("cache_missed", stack, message, attributes, [[user(3)]], "prompt_cache")
    check_span(
        heard,
        scenario,
        ("invoke_agent chat", "chat script") if reporter else ("chat script",),
        **{"gen_ai.conversation.id": ID},
    )
    roots = capture.spans_named("invoke_agent chat" if reporter else "chat script")
    check_root(roots[-1], scenario)
