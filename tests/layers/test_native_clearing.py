"""Clearing left to the provider: the real SDK over real HTTP, against a server that clears on its side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from chatstack import (
    AppliedEdit,
    CharCounter,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    Context,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    Message,
    ModelTracer,
    NativeClearing,
    Plan,
    ProgressReporter,
    Telemetry,
    ToolCall,
    ToolResult,
    ToolResultClearer,
    WiringError,
    tool,
)
from chatstack.context.requests.services import ContextServices
from chatstack.context.strategies.clearing import ClearToolResults
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.testing import CapturedSpan, ScriptedClient, TelemetryCapture
from chatstack.testing.provider_server import ScriptedServer
from chatstack.values.native import NativeEdit
from tests.providers.editing_servers import EditingAnthropic, OnLoopback

KEY = "sk-ant-not-to-be-seen"
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
CLEARED = "compact_context clear_tool_results"
SET: dict[str, Any] = {"trigger": {"tokens": 2_000}, "keep": {"messages": 2}, "counter": CharCounter(4)}


def history(rounds: int = 6, size: int = 2_000, *, pinned: bool = False) -> list[Message]:
    found = [Message.user("Which way does the valve turn?")]
    for number in range(rounds):
        call = ToolCall(f"call-{number}", "ping" if number == 1 else "read_page", f'{{"number": {number}}}')
        result = ToolResult(call.id, call.name, f"{number} " + "x" * size)
        found += [Message.assistant(call), Message("tool", (result,), pinned=pinned)]
    return found


def client_of(server: ScriptedServer, **settings: Any) -> AnthropicChatClient:
    return AnthropicChatClient("claude-x", api_key=KEY, base_url=server.base_url, max_retries=0, **settings)


@asynccontextmanager
async def as_anthropic(server: ScriptedServer) -> AsyncIterator[AnthropicChatClient]:
    """A client that takes the server for Anthropic's own."""
    async with httpx2.AsyncClient(transport=OnLoopback(server)) as http:
        yield AnthropicChatClient("claude-x", api_key=KEY, max_retries=0, http_client=http)


async def asked(
    client: ChatClient, messages: list[Message], *, stream: bool = False, conversation_id: str = "c-1", **options: Any
) -> ChatResponse:
    found = await client.send(ChatRequest(tuple(messages), ChatOptions(**options), conversation_id, stream))
    async with found:
        return await found.response()


def clearing(inner: ChatClient, telemetry: Telemetry | None = None, **options: Any) -> ToolResultClearer:
    services = ContextServices() if telemetry is None else ContextServices(telemetry=telemetry)
    return ToolResultClearer(inner, services=services, **{**SET, **options})


def guarding(inner: ChatClient, services: ContextServices) -> ContextWindowGuard:
    return ContextWindowGuard(
        inner, max_context_tokens=6_000, prune_on_overflow=True, counter=SET["counter"], services=services
    )


def number_of(span: CapturedSpan, name: str) -> int:
    value = span.attributes[f"chatstack.compaction.{name}"]
    assert isinstance(value, int)
    return value


def was_cleared(body: dict[str, Any]) -> bool:
    return "[cleared]" in str(body["messages"])


# What is sent


@BOTH_WAYS
def test_the_same_options_go_to_the_api_and_the_messages_as_they_are(stream: bool) -> None:
    server = EditingAnthropic()

    async def run() -> None:
        async with server.running() as running, client_of(running) as provider:
            layer = clearing(
                provider,
                native="on",
                exclude_tools=["ping", "health", "ping"],
                clear_tool_inputs=["read_page"],
                clear_at_least=500,
            )
            await asked(layer, history(), stream=stream)

    asyncio.run(run())
    (body,), (headers,) = server.bodies, server.headers
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 2_000},
        "keep": {"type": "tool_uses", "value": 2},
        "clear_at_least": {"type": "input_tokens", "value": 500},
        "exclude_tools": ["health", "ping"],
        "clear_tool_inputs": ["read_page"],
    }
    assert body["context_management"] == {"edits": [edit]}
    assert "betas" not in body
    assert headers["anthropic-beta"] == "context-management-2025-06-27"
    assert not was_cleared(body)
    assert sum(block["type"] == "tool_result" for each in body["messages"] for block in each["content"]) == 6


def test_options_left_at_their_defaults_are_left_to_the_api() -> None:
    server = EditingAnthropic()

    async def run() -> None:
        async with server.running() as running, client_of(running) as provider:
            await asked(clearing(provider, native="on", clear_tool_inputs=True), history())

    asyncio.run(run())
    (edit,) = server.bodies[0]["context_management"]["edits"]
    assert edit.keys() == {"type", "trigger", "keep", "clear_tool_inputs"}
    assert edit["clear_tool_inputs"] is True


def test_a_fraction_of_a_stated_window_is_a_number_of_tokens() -> None:
    layer = clearing(EditsHere(), native="on", trigger={"fraction": 0.5}, max_context_tokens=9_001)
    request = asyncio.run(sent_by(layer))
    assert request.options.native_edits == (NativeClearing(trigger_tokens=4_500, keep_results=2),)


def test_edits_of_the_callers_stay_and_one_that_clears_thinking_is_first() -> None:
    server = EditingAnthropic()
    thinking = {"type": "clear_thinking_20251015", "keep": "all"}
    uses = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 9},
        "keep": {"type": "tool_uses", "value": 4},
    }

    async def run() -> None:
        async with server.running() as running, client_of(running) as provider:
            layer = clearing(provider, native="on")
            await asked(layer, history(), extra={"context_management": {"edits": [thinking]}, "betas": ["a-beta"]})
            await asked(layer, history(), extra={"context_management": {"edits": [uses]}})

    asyncio.run(run())
    first, second = (each["context_management"]["edits"] for each in server.bodies)
    assert [each["type"] for each in first] == ["clear_thinking_20251015", "clear_tool_uses_20250919"]
    assert second == [uses]
    assert server.headers[0]["anthropic-beta"] == "a-beta,context-management-2025-06-27"


# What comes back


@BOTH_WAYS
def test_what_the_provider_says_that_it_cleared_is_an_edit(stream: bool) -> None:
    server, capture = EditingAnthropic(), TelemetryCapture()

    async def run() -> ChatResponse:
        async with server.running() as running, client_of(running) as provider:
            layer = clearing(ModelTracer(provider, telemetry=capture.telemetry), capture.telemetry, native="on")
            return await asked(ProgressReporter(layer, telemetry=capture.telemetry), history(), stream=stream)

    answer = asyncio.run(run())
    (edit,) = answer.applied_edits
    assert edit == AppliedEdit("clear_tool_uses_20250919", edit.cleared_tokens, cleared_results=4)
    assert edit.cleared_tokens > 1_900
    attributes = capture.span(CLEARED).attributes
    assert attributes["chatstack.compaction.native"] is True
    assert attributes["chatstack.compaction.strategy"] == "clear_tool_results"
    assert attributes["chatstack.compaction.tool_results_cleared"] == 4
    assert attributes["chatstack.compaction.tokens_after"] == answer.usage.input_tokens
    assert attributes["chatstack.compaction.tokens_before"] == answer.usage.input_tokens + edit.cleared_tokens
    call = capture.span("chat claude-x").attributes
    assert call["gen_ai.conversation.compacted"] is True
    assert call["chatstack.context.tokens_left_out"] == edit.cleared_tokens
    root = capture.span("invoke_agent chat").attributes
    assert root["chatstack.edit.count"] == 1
    (removed,) = capture.metric("chatstack.compaction.tokens_removed")
    assert removed.total == edit.cleared_tokens


def test_what_was_cleared_before_is_no_news() -> None:
    server, capture = EditingAnthropic(), TelemetryCapture()

    async def run() -> list[ChatResponse]:
        async with server.running() as running, client_of(running) as provider:
            layer = clearing(provider, capture.telemetry, native="on")
            first = await asked(layer, history(6))
            again = await asked(layer, history(6))
            return [first, again, await asked(layer, history(8))]

    answers = asyncio.run(run())
    cleared = [each.applied_edits[0].cleared_tokens for each in answers]
    spans = capture.spans_named(CLEARED)
    assert cleared[0] == cleared[1] < cleared[2]
    said = [
        (span.attributes["chatstack.compaction.tokens_before"], span.attributes["chatstack.compaction.tokens_after"])
        for span in spans
    ]
    inputs = [each.usage.input_tokens for each in answers]
    assert said == [(inputs[0] + cleared[0], inputs[0]), (inputs[2] + cleared[2] - cleared[0], inputs[2])]


def test_below_the_trigger_nothing_is_cleared_and_nothing_said() -> None:
    server, capture = EditingAnthropic(), TelemetryCapture()

    async def run() -> ChatResponse:
        async with server.running() as running, client_of(running) as provider:
            return await asked(clearing(provider, capture.telemetry, native="on"), history(2))

    assert asyncio.run(run()).applied_edits == ()
    assert not capture.spans_named(CLEARED)


def asked_for_by_the_caller(*, trigger: int, keep: int) -> dict[str, object]:
    """The options by which a caller has the API clear, without a layer."""
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": trigger},
        "keep": {"type": "tool_uses", "value": keep},
    }
    return {"context_management": {"edits": [edit]}, "betas": ["context-management-2025-06-27"]}


def test_edits_that_only_the_caller_asked_for_are_in_the_response_and_on_the_call() -> None:
    server, capture = EditingAnthropic(), TelemetryCapture()
    extra = asked_for_by_the_caller(trigger=9, keep=4)

    async def run() -> ChatResponse:
        async with server.running() as running, client_of(running) as provider:
            return await asked(ModelTracer(provider, telemetry=capture.telemetry), history(), extra=extra)

    (applied,) = asyncio.run(run()).applied_edits
    assert applied.cleared_results == 2
    call = capture.span("chat claude-x").attributes
    assert call["chatstack.context.tokens_left_out"] == applied.cleared_tokens


def test_all_rounds_of_a_turn_add_up() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "read_page", "input": {"number": 1}}
    server = EditingAnthropic([[call], [{"type": "text", "text": "left"}]])

    @tool
    def read_page(number: int) -> str:
        """A page."""
        return "left " * number

    async def run() -> ChatResponse:
        async with server.running() as running, client_of(running) as provider:
            return await asked(FunctionInvoker(clearing(provider, native="on"), tools=[read_page]), history())

    answer = asyncio.run(run())
    assert (answer.text, [each.cleared_results for each in answer.applied_edits]) == ("left", [4, 5])
    assert [len(each["context_management"]["edits"]) for each in server.bodies] == [1, 1]


# Who edits


def test_auto_is_the_api_where_its_own_server_says_that_the_model_can_and_it_is_asked_once() -> None:
    server = EditingAnthropic()

    async def run() -> None:
        async with server.running() as running, as_anthropic(running) as provider:
            layer = clearing(provider, native="auto")
            await asyncio.gather(*(asked(layer, history()) for _ in range(5)))
            await asked(layer, history(), model="claude-y")

    asyncio.run(run())
    assert [each.rpartition("/")[2] for each in server.asked] == ["claude-x", "claude-y"]
    assert all("context_management" in each and not was_cleared(each) for each in server.bodies)


@pytest.mark.parametrize("capable", [(), ("clear_thinking_20251015", "compact_20260112")], ids=["no card", "not it"])
def test_auto_edits_here_where_the_model_is_not_said_to_have_it(capable: tuple[str, ...]) -> None:
    server = EditingAnthropic(capable=capable)

    async def run() -> None:
        async with server.running() as running, as_anthropic(running) as provider:
            await asked(clearing(provider, native="auto"), history())
            await asked(clearing(provider, native="auto"), history())

    asyncio.run(run())
    assert len(server.asked) == 1
    assert all("context_management" not in each and was_cleared(each) for each in server.bodies)
    assert all("anthropic-beta" not in each for each in server.headers)


def test_auto_edits_here_on_a_compatible_server_which_is_not_asked() -> None:
    server = EditingAnthropic()

    async def run() -> None:
        async with server.running() as running, client_of(running) as provider:
            await asked(clearing(provider, native="auto"), history())

    asyncio.run(run())
    assert (server.asked, was_cleared(server.bodies[0])) == ([], True)


def others() -> dict[str, ChatClient]:
    return {
        "a client of somebody else's": ScriptedClient(),
        "chat completions": OpenAIChatClient("gpt-5-mini", api_key=KEY),
        "responses": OpenAIResponsesClient("gpt-5-mini", api_key=KEY),
        "a fallback": Fallback(AnthropicChatClient("claude-x", api_key=KEY), clients=[ScriptedClient()]),
    }


@pytest.mark.parametrize("name", others())
def test_on_is_an_error_where_the_provider_cannot(name: str) -> None:
    with pytest.raises(WiringError, match=r"ToolResultClearer: native='on' must be \"off\" or \"auto\": \w+"):
        clearing(others()[name], native="on")


def test_auto_edits_here_before_a_client_of_somebody_elses_and_before_a_fallback() -> None:
    for inner in (ScriptedClient(), Fallback(EditsHere(), clients=[ScriptedClient()])):
        request = asyncio.run(sent_by(clearing(inner, native="auto")))
        assert request.options.native_edits == ()
        assert any(result.text == "[cleared]" for each in request.messages for result in each.results)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("trigger", {"messages": 8}),
        ("trigger", {"fraction": 0.5}),
        ("keep", {"tokens": 8}),
        ("keep", {"fraction": 0.1}),
        ("placeholder", "[gone: {tool}]"),
        ("clear_at_least", "pays"),
    ],
)
def test_an_option_without_a_counterpart_is_an_error_with_on_and_edited_here_with_auto(option: str, value: Any) -> None:
    with pytest.raises(WiringError) as caught:
        clearing(EditsHere(), native="on", **{option: value})
    assert caught.value.parameter == option
    assert all(word in str(caught.value) for word in ("ToolResultClearer", option, 'native="auto"'))
    request = asyncio.run(sent_by(clearing(EditsHere(), native="auto", **{option: value})))
    assert request.options.native_edits == ()


def test_a_request_with_pinned_results_is_edited_here() -> None:
    inner = EditsHere()
    layer = clearing(inner, native="on")
    pinned = history(1, pinned=True)
    longer = [*pinned, *history()[1:]]
    asyncio.run(asked(layer, longer))
    asyncio.run(asked(layer, history()))
    (ours, theirs) = inner.requests
    assert (ours.options.native_edits, len(theirs.options.native_edits)) == ((), 1)
    assert ours.messages[2] == pinned[2]
    assert any(result.text == "[cleared]" for each in ours.messages for result in each.results)


def test_where_the_history_lies_at_the_provider_nothing_is_asked() -> None:
    inner = EditsHere()
    asyncio.run(asked(clearing(inner, native="on"), history(), extra={"previous_response_id": "resp_1"}))
    assert inner.requests[0].options.native_edits == ()


# Beside other layers


class EditsHere(ScriptedClient):
    """A client of somebody else's that edits natively. Of conversation ``c-7`` it clears 7 tokens."""

    def native_problem(self, edit: NativeEdit, /) -> str:
        return ""

    async def edits_natively(self, edit: NativeEdit, model: str = "") -> bool:
        return True

    async def send(self, request: ChatRequest, /) -> ChatStream:
        inner = await ScriptedClient.send(self, request)

        async def updates() -> AsyncGenerator[ChatUpdate, None]:
            async for update in inner:
                if update.finish_reason is None:
                    yield update
                else:
                    await asyncio.sleep(0)
                    cleared = int((request.conversation_id or "c-0").removeprefix("c-"))
                    yield msgspec.structs.replace(update, applied_edits=(AppliedEdit("theirs", cleared, 1),))

        stream = await ChatStream.primed(updates())
        stream.sent = request
        return stream


async def sent_by(layer: ToolResultClearer) -> ChatRequest:
    stream = await layer.send(ChatRequest(tuple(history())))
    await stream.response()
    bottom: Any = layer
    while hasattr(bottom, "inner"):
        bottom = bottom.inner
    found: ChatRequest = bottom.requests[0]
    return found


@pytest.mark.parametrize("resumed", [False, True], ids=["grown here", "resumed"])
def test_a_guard_behind_weighs_what_the_provider_leaves(resumed: bool) -> None:
    server, capture = EditingAnthropic(), TelemetryCapture()

    async def run() -> None:
        async with server.running() as running, client_of(running) as provider:
            services = ContextServices(telemetry=capture.telemetry)
            guard = guarding(provider, services)
            layer = ToolResultClearer(guard, native="on", services=services, **SET)
            for rounds in (60,) if resumed else range(2, 61):
                await asked(layer, history(rounds))

    asyncio.run(run())
    assert len(server.bodies[-1]["messages"]) == 121
    assert [span.name for span in capture.spans if span.name != CLEARED] == []


def test_a_guard_weighs_what_is_left_of_edits_that_the_caller_asks_for() -> None:
    server, capture = EditingAnthropic(), TelemetryCapture()
    extra = asked_for_by_the_caller(trigger=2_000, keep=2)

    async def run() -> None:
        async with server.running() as running, client_of(running) as provider:
            guard = guarding(provider, ContextServices(telemetry=capture.telemetry))
            for rounds in range(2, 61):
                await asked(guard, history(rounds), extra=extra)

    asyncio.run(run())
    assert len(server.bodies[-1]["messages"]) == 121
    assert capture.spans == ()


def test_of_a_provider_that_clears_nothing_the_size_is_estimated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[int] = []
    plan = ClearToolResults.plan

    def counted(self: ClearToolResults, context: Context) -> Plan | None:
        planned.append(len(context.messages))
        return plan(self, context)

    monkeypatch.setattr(ClearToolResults, "plan", counted)
    layer, talk = clearing(EditsHere(), native="on"), history()

    async def run() -> None:
        for _ in range(5):
            talk.extend((await asked(layer, talk, conversation_id="c-0")).messages)
            talk.append(Message.user("go on"))

    asyncio.run(run())
    assert planned == [13]


def test_a_guard_behind_still_prunes_what_does_not_fit() -> None:
    server, capture = EditingAnthropic(), TelemetryCapture()

    async def run() -> None:
        async with server.running() as running, client_of(running) as provider:
            services = ContextServices(telemetry=capture.telemetry)
            guard = guarding(provider, services)
            layer = ToolResultClearer(guard, native="on", services=services, **SET)
            talk = [Message.user("a"), Message.assistant("b" * 30_000), *history(20)[1:], Message.user("so?")]
            await asked(layer, talk)

    asyncio.run(run())
    assert "b" * 30_000 not in str(server.bodies[0]["messages"])
    assert capture.spans_named("compact_context truncate")


def test_a_built_stack_reports_it_to_its_root() -> None:
    server = EditingAnthropic()

    async def run() -> ChatResponse:
        async with server.running() as running, client_of(running) as provider:
            stack = ChatStack(provider).use(ToolResultClearer, native="on", trigger={"tokens": 2_000})
            async with stack.open() as client:
                return await client.get_response(history())

    assert asyncio.run(run()).applied_edits[0].cleared_results == 3


@pytest.mark.slow
def test_a_thousand_conversations_at_once_get_their_own_edits_reported() -> None:
    capture, inner = TelemetryCapture(), EditsHere()
    layer = ProgressReporter(clearing(inner, capture.telemetry, native="auto"), telemetry=capture.telemetry)

    async def one(number: int) -> int:
        first = Message.user(f"conversation {number}")
        stream = await layer.send(ChatRequest((first, *history(3)[1:]), conversation_id=f"c-{number}"))
        return (await stream.response()).applied_edits[0].cleared_tokens

    async def run() -> list[int]:
        return await asyncio.gather(*map(one, range(1, 1_001)))

    assert asyncio.run(run()) == [*range(1, 1_001)]
    assert all(len(each.options.native_edits) == 1 and len(each.messages) == 7 for each in inner.requests)
    told = {
        span.attributes["gen_ai.conversation.id"]: number_of(span, "tokens_before") - number_of(span, "tokens_after")
        for span in capture.spans_named(CLEARED)
    }
    assert told == {f"c-{number}": number for number in range(1, 1_001)}


def test_a_cancelled_call_leaves_no_report_and_the_next_one_has_its_own() -> None:
    capture = TelemetryCapture()
    layer = clearing(EditsHere(), capture.telemetry, native="on")

    async def run() -> None:
        stream = await layer.send(ChatRequest(tuple(history()), conversation_id="c-5", stream=True))
        async with stream:
            await anext(stream)
        assert not capture.spans_named(CLEARED)
        await (await layer.send(ChatRequest(tuple(history()), conversation_id="c-5"))).response()

    asyncio.run(run())
    assert len(capture.spans_named(CLEARED)) == 1
