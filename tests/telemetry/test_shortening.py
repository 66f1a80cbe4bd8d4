"""As long as an edit is in force, chat span and root tell how many of how many messages were sent and how many tokens
were left out: with layers stacked, with those of others in between, and on calls that only make the edit again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from opentelemetry import context as otel

from chatstack import (
    AgentState,
    ChatClient,
    ChatFronts,
    ChatNode,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindowGuard,
    FunctionInvoker,
    IterativeContext,
    IterativeLoop,
    Message,
    MessageContextManager,
    ModelTracer,
    ProgressEvent,
    ProgressReporter,
    Summarizer,
    ToolCall,
    ToolResultClearer,
)
from chatstack.context.strategies.truncating import Truncate
from chatstack.loop.workspace import MemoryWorkspace
from chatstack.telemetry.shortening import compacted, left_out_of
from chatstack.telemetry.turns import attached
from chatstack.testing import CapturedSpan, ScriptedClient, TelemetryCapture
from tests.telemetry.scenarios import FRONTS, WORDS, Front, read, said, user

Numbers = tuple[int, int, int]
NAMES = tuple(f"chatstack.context.{name}" for name in ("messages", "messages_sent", "tokens_left_out"))


def numbers_of(span: CapturedSpan) -> Numbers | None:
    """How many messages came, how many were sent, how many tokens were left out."""
    found = [span.attributes.get(name) for name in NAMES]
    return None if found == [None] * 3 else tuple(found)  # type: ignore[return-value]


class Told:
    """A stack that is asked, and what its spans say."""

    def __init__(self, stack: ChatStack) -> None:
        self.provider = stack.provider
        self.capture = TelemetryCapture()
        self.client = stack.build(self.capture.resolve)

    def ask(self, messages: Sequence[Message], front: Front = "whole") -> tuple[list[Message], list[Numbers | None]]:
        """What the turn adds, and what its chat spans tell."""
        self.capture.clear()

        async def run() -> Sequence[Message]:
            if front == "whole":
                return (await self.client.get_response(messages, conversation_id="c")).messages
            stream = self.client.get_streaming_response(messages, conversation_id="c")
            await read(stream)
            return (await stream.response()).messages

        added = asyncio.run(run())
        return [*added], [numbers_of(each) for each in self.capture.spans_named("chat script")]

    @property
    def requests(self) -> Sequence[ChatRequest]:
        """What the model was sent."""
        assert isinstance(self.provider, ScriptedClient)
        return self.provider.requests

    def left_out(self, came: Sequence[Message]) -> Numbers:
        """What has really been left out of messages, by what the model was sent last."""
        sent = self.requests[-1].messages
        assert len(sent) < len(came)
        return len(came), len(sent), size(came) - size(sent)

    @property
    def root(self) -> CapturedSpan:
        return self.capture.span("invoke_agent chat")


def number_of(span: CapturedSpan, name: str) -> int:
    found = span.attributes[name]
    assert isinstance(found, int)
    return found


def talk(turns: int) -> list[Message]:
    """Five tokens a message, and a question."""
    return [*[message for _ in range(turns) for message in (user(5), said(5))], user(5)]


def model(*answers: Any) -> ChatStack:
    return ChatStack(ScriptedClient(answers or ["fine"], counter=WORDS))


def pruning(stack: ChatStack, limit: int = 60) -> ChatStack:
    return stack.use(ContextWindowGuard, max_context_tokens=limit, prune_on_overflow=True, counter=WORDS)


def at_the_cut() -> Numbers:
    """What a pruning guard alone leaves out of ``talk(10)``."""
    told = Told(pruning(model()))
    told.ask(talk(10))
    return told.left_out(talk(10))


# One layer


@pytest.mark.parametrize("front", FRONTS)
def test_it_is_told_at_the_cut_and_on_every_turn_after_it(front: Front) -> None:
    told = Told(pruning(model().use(ProgressReporter)))
    history = talk(10)
    for turn in range(3):
        added, (numbers,) = told.ask(history, front)
        assert numbers == told.left_out(history)
        assert numbers_of(told.root) == numbers
        (mark,) = [each.attributes["gen_ai.conversation.compacted"] for each in told.capture.spans_named("chat script")]
        assert mark is True
        shown = str(told.root.attributes["output.value"])
        came, sent, tokens = numbers
        assert shown.endswith(f"{sent} of {came} messages sent, about {tokens} tokens left out")
        assert shown.startswith("WARN pruned at" if turn == 0 else f"{sent} of ")
        history += [*added, user(1)]


def test_what_is_sent_as_it_came_says_nothing() -> None:
    told = Told(pruning(model().use(ProgressReporter)))
    assert told.ask(talk(3))[1] == [None]
    assert numbers_of(told.root) is None
    assert "output.value" not in told.root.attributes


def test_without_a_reporter_the_chat_span_tells_it() -> None:
    told = Told(pruning(model()))
    assert told.ask(talk(10))[1] == [told.left_out(talk(10))]
    assert [each.name for each in told.capture.spans if numbers_of(each)] == ["chat script"]


def test_a_reporter_tells_it_also_where_model_calls_are_left_to_another_tracer() -> None:
    told = Told(pruning(model().use(ProgressReporter)).use(ModelTracer, nested="defer"))
    told.ask(talk(10))
    assert numbers_of(told.root) == told.left_out(talk(10))


def test_listeners_hear_it_when_the_call_begins() -> None:
    heard: list[ProgressEvent] = []
    told = Told(pruning(model().use(ProgressReporter, on_progress=heard.append)))
    told.ask(talk(10))
    asyncio.run(told.client.aclose())
    (started,) = (dict(each.numbers) for each in heard if each.kind == "model_call_started")
    assert tuple(started.items()) == tuple(
        zip(("messages", "messages_sent", "tokens_left_out"), told.left_out(talk(10)), strict=True)
    )


# Several layers


def looking(times: int) -> list[Message]:
    """A question, calls with results of forty tokens, and another question."""
    found = [user(5)]
    for number in range(times):
        call = ToolCall(f"c{number}", "look", json.dumps({"n": number}))
        found += [Message.assistant(call), Message.tool(call.id, "sun " * 40, name="look"), said(5), user(5)]
    return found


def size(messages: Sequence[Message]) -> int:
    return sum(map(WORDS.count_message, messages))


def stacked(provider: ScriptedClient) -> ChatStack:
    """All three, each with something to do."""
    writer = ScriptedClient(["short"], counter=WORDS)
    return (
        ChatStack(provider)
        .use(ProgressReporter)
        .use(ToolResultClearer, trigger={"tokens": 300}, keep={"messages": 2}, counter=WORDS)
        .use(Summarizer, max_tokens=220, keep_recent_turns=2, summary_client=writer, counter=WORDS)
        .use(ContextWindowGuard, max_context_tokens=150, prune_on_overflow=True, counter=WORDS)
    )


def test_what_stacked_layers_leave_out_is_added_up_and_counted_once() -> None:
    provider = ScriptedClient(["fine"], counter=WORDS)
    told, history = Told(stacked(provider)), looking(12)
    strategies: set[object] = set()
    for _ in range(4):
        added, calls = told.ask(history)
        sent = provider.requests[-1].messages
        assert calls[-1] == (len(history), len(sent), size(history) - size(sent))
        assert numbers_of(told.root) == calls[-1]
        edits = (each for each in told.capture.spans if each.attributes.get("chatstack.severity") == "INFO")
        strategies |= {each.attributes["chatstack.compaction.strategy"] for each in edits}
        history += [*added, *looking(1)]
    assert strategies == {"clear_tool_results", "summarize", "truncate"}


def test_the_call_that_writes_a_summary_has_nothing_left_out() -> None:
    told = Told(stacked(ScriptedClient(["fine"], counter=WORDS)))
    told.ask(looking(12))
    (fold,) = told.capture.spans_named("compact_context summarize")
    (written,) = (each for each in told.capture.spans if each.parent_id == fold.span_id)
    assert (written.name, numbers_of(written)) == ("chat script", None)


def test_a_root_tells_every_edit_and_not_the_last_of_each_strategy() -> None:
    def look(n: int) -> str:
        """Looks."""
        return "sun " * 40

    calls = [Message.assistant(ToolCall(f"c{n}", "look", f'{{"n": {n}}}')) for n in range(6)]
    stack = model(*calls, "fine").use(ProgressReporter).use(FunctionInvoker, tools=[look])
    told = Told(stack.use(ToolResultClearer, trigger={"tokens": 60}, keep={"messages": 1}, counter=WORDS))
    told.ask([user(5)])
    sizes = [
        f"{each.attributes['chatstack.compaction.tokens_before']!r} -> "
        f"{each.attributes['chatstack.compaction.tokens_after']!r} tokens (clear_tool_results)"
        for each in told.capture.spans_named("compact_context clear_tool_results")
        if each.attributes["chatstack.severity"] == "INFO"
    ]
    shown = str(told.root.attributes["output.value"])
    assert told.root.attributes["chatstack.edit.count"] == len(sizes) >= 3
    told_of = [each.split(": ")[1] for each in shown.split("; ") if each.startswith("cleared ")]
    assert told_of == sizes


@pytest.mark.parametrize("front", FRONTS)
def test_each_round_of_a_tool_loop_tells_its_own_and_the_root_the_last(front: Front) -> None:
    def look() -> str:
        """Looks."""
        return "sun"

    asking = [Message.assistant(ToolCall(f"{n}", "look")) for n in range(2)]
    told = Told(pruning(model(*asking, "fine").use(ProgressReporter).use(FunctionInvoker, tools=[look]), 90))
    added, calls = told.ask(talk(10), front)
    came = [[*talk(10), *added[: 2 * turn]] for turn in range(3)]
    sent = [request.messages for request in told.requests]
    assert calls == [(len(one), len(other), size(one) - size(other)) for one, other in zip(came, sent, strict=True)]
    assert numbers_of(told.root) == calls[-1]


# Those of others


class Layer(ChatFronts):
    """A stranger's layer that sends on what a function makes of the messages, and says nothing of it."""

    def __init__(self, inner: ChatClient, *, make: Callable[[tuple[Message, ...]], Sequence[Message]]) -> None:
        self.inner = inner
        self.make = make

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(ChatRequest(tuple(self.make(request.messages)), request.options))


def newest(count: int) -> Callable[[tuple[Message, ...]], Sequence[Message]]:
    return lambda messages: messages[-count:]


def rebuilt(messages: tuple[Message, ...]) -> list[Message]:
    return [Message(each.role, each.parts) for each in messages]


def noted(messages: tuple[Message, ...]) -> list[Message]:
    return [Message.system("a note " * 50), *messages]


def estimated(tokens: int) -> int:
    """Of that many messages of five words by four characters to a token, and a frame of four."""
    return tokens * (len("sun sun sun sun sun") // 4 + 4)


def test_what_only_a_stranger_leaves_out_is_counted_and_estimated() -> None:
    told = Told(model().use(ProgressReporter).use(Layer, make=newest(7)))
    assert told.ask(talk(10))[1] == [(21, 7, estimated(14))]
    assert numbers_of(told.root) == (21, 7, estimated(14))
    assert "gen_ai.conversation.compacted" not in told.capture.span("chat script").attributes


def test_a_stranger_outside_of_ours_is_added() -> None:
    told = Told(pruning(model().use(ProgressReporter).use(Layer, make=newest(15))))
    numbers = told.ask(talk(10))[1]
    _, sent, tokens = told.left_out(talk(10)[-15:])
    assert numbers == [(21, sent, estimated(6) + tokens)]


def test_a_stranger_inside_of_ours_is_added() -> None:
    told = Told(pruning(model().use(ProgressReporter)).use(Layer, make=newest(5)))
    _, sent, tokens = at_the_cut()
    assert told.ask(talk(10))[1] == [(21, 5, tokens + estimated(sent - 5))]


def test_without_a_reporter_a_stranger_inside_of_ours_is_added() -> None:
    told = Told(pruning(model()).use(Layer, make=newest(5)))
    _, sent, tokens = at_the_cut()
    assert told.ask(talk(10))[1] == [(21, 5, tokens + estimated(sent - 5))]


def test_a_stranger_between_two_of_ours_is_added() -> None:
    stack = model().use(ProgressReporter).use(Truncate(90, truncate_to=0.9), counter=WORDS)
    told = Told(pruning(stack.use(Layer, make=newest(14))))
    came, sent, tokens = told.ask(talk(10))[1][0] or (0, 0, 0)
    first, second = (
        (number_of(each, "chatstack.compaction.tokens_before"), number_of(each, "chatstack.compaction.tokens_after"))
        for each in told.capture.spans_named("compact_context truncate")
    )
    ours = sum(before - after for before, after in (first, second))
    assert (came, sent) == told.left_out(talk(10))[:2]
    assert tokens == ours + estimated(first[1] // 5 - 14)


@pytest.mark.parametrize("make", [rebuilt, noted])
def test_a_stranger_that_leaves_nothing_out_is_not_told_of(make: Any) -> None:
    told = Told(model().use(ProgressReporter).use(Layer, make=make))
    assert told.ask(talk(3))[1] == [None]
    assert numbers_of(told.root) is None


def test_what_a_stranger_puts_in_does_not_hide_what_is_left_out() -> None:
    told = Told(pruning(model().use(ProgressReporter)).use(Layer, make=noted))
    came, sent, tokens = at_the_cut()
    assert told.ask(talk(10))[1] == [(came + 1, sent + 1, tokens)]


# Other calls meanwhile


@pytest.mark.parametrize("front", FRONTS)
def test_a_model_that_a_tool_asks_is_told_nothing_of_the_turn(front: Front) -> None:
    capture = TelemetryCapture()
    helper = ChatStack(ScriptedClient(["helped"], counter=WORDS)).build(capture.resolve)

    async def ask() -> str:
        return (await helper.get_response([user(5)])).text  # the very words of the turn's own question

    asking = Message.assistant(ToolCall("1", "ask"))
    told = Told(pruning(model(asking, "fine").use(ProgressReporter).use(FunctionInvoker, tools=[ask]), 90))
    added, _ = told.ask(talk(10), front)
    (asked,) = capture.spans_named("chat script")
    assert numbers_of(asked) is None
    assert numbers_of(told.root) == told.left_out([*talk(10), *added[:-1]])


def test_a_model_that_a_layer_asks_on_the_way_down_is_told_nothing_of_the_turn() -> None:
    capture = TelemetryCapture()
    helper = ChatStack(ScriptedClient(["fast"])).build(capture.resolve)

    class Routing(ChatFronts):
        def __init__(self, inner: ChatClient) -> None:
            self.inner = inner

        async def send(self, request: ChatRequest, /) -> ChatStream:
            await helper.get_response("which model?")
            return await self.inner.send(request)

    told = Told(pruning(model().use(ProgressReporter)).use(Routing))
    assert told.ask(talk(10))[1] == [at_the_cut()]
    (asked,) = capture.spans_named("chat script")
    assert (numbers_of(asked), asked.attributes.get("gen_ai.conversation.compacted")) == (None, None)
    assert numbers_of(told.root) == at_the_cut()


def test_what_an_edit_in_a_tools_own_stack_leaves_out_is_not_the_turns() -> None:
    capture = TelemetryCapture()
    helper = pruning(model()).build(capture.resolve)

    async def ask() -> str:
        return (await helper.get_response(talk(10))).text

    asking = Message.assistant(ToolCall("1", "ask"))
    told = Told(model(asking, "fine").use(ProgressReporter).use(FunctionInvoker, tools=[ask]))
    told.ask([user(5)])
    assert numbers_of(capture.span("chat script")) == at_the_cut()
    assert numbers_of(told.root) is None


# In nodes and loops


def test_what_a_context_manager_of_a_node_trims_is_told() -> None:
    capture = TelemetryCapture()
    client = model().use(ProgressReporter).build(capture.resolve)
    node = ChatNode(client, context_manager=MessageContextManager(max_messages=3))
    asyncio.run(node(AgentState(talk(10))))
    assert numbers_of(capture.span("chat script")) == (21, 5, estimated(16))
    assert numbers_of(capture.span("invoke_agent chat")) == (21, 5, estimated(16))


def test_the_rounds_of_a_trimmed_node_count_what_the_turn_has_added() -> None:
    def look() -> str:
        """Looks."""
        return "sun"

    capture = TelemetryCapture()
    stack = model(Message.assistant(ToolCall("1", "look")), "fine").use(ProgressReporter)
    client = stack.use(FunctionInvoker, tools=[look]).build(capture.resolve)
    node = ChatNode(client, context_manager=MessageContextManager(max_messages=3))
    asyncio.run(node(AgentState(talk(10))))
    assert [numbers_of(each) for each in capture.spans_named("chat script")] == [
        (21, 5, estimated(16)),
        (23, 7, estimated(16)),
    ]


def test_what_a_strategy_of_a_node_leaves_out_is_told_in_every_round() -> None:
    def look() -> str:
        """Looks."""
        return "sun"

    capture = TelemetryCapture()
    stack = model(Message.assistant(ToolCall("1", "look")), "fine").use(ProgressReporter)
    client = stack.use(FunctionInvoker, tools=[look]).build(capture.resolve)
    asyncio.run(ChatNode(client, context_manager=Truncate(max_context_items=10))(AgentState(talk(10))))
    first, second = (numbers_of(each) or (0, 0, 0) for each in capture.spans_named("chat script"))
    assert first[0] == 21 > first[1]
    assert second == (23, first[1] + 2, first[2])
    assert numbers_of(capture.span("invoke_agent chat")) == second


def test_an_iterative_loop_tells_it_on_its_root() -> None:
    capture = TelemetryCapture()
    client = pruning(model()).build(capture.resolve)
    loop = IterativeLoop(client, "", lambda _: talk(10), telemetry=capture.telemetry)
    asyncio.run(loop.run(IterativeContext(workspace=MemoryWorkspace())))
    assert numbers_of(capture.span("invoke_workflow loop")) == at_the_cut()


# The mark itself


def test_a_request_that_was_edited_is_marked_on_its_way_down() -> None:
    came = tuple(talk(3))
    assert left_out_of(came[2:], ()) is None
    with attached(compacted(came, came[2:], 10)):
        told = left_out_of(came[2:], ())
        assert told is not None
        assert (told.messages_came, told.messages_sent, told.tokens) == (len(came), len(came) - 2, 10)
    assert left_out_of(came[2:], ()) is None


def test_nothing_of_a_mark_is_left_in_the_context_of_the_caller() -> None:
    async def run() -> bool:
        before = otel.get_current()
        await pruning(model()).build(TelemetryCapture().resolve).get_response(talk(10))
        return otel.get_current() == before

    assert asyncio.run(run())
