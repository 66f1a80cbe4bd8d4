"""Compaction left to the provider: the real SDKs over real HTTP, against servers that compact on their side."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from chatstack import (
    CharCounter,
    ChatClient,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ContextWindowGuard,
    Fallback,
    Message,
    NativeCompaction,
    ProviderItem,
    RequestRefusedError,
    Summarizer,
    Telemetry,
    ToolCall,
    ToolResultClearer,
    WiringError,
    from_json,
    to_json,
)
from chatstack.context.requests.services import ContextServices
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.testing import ScriptedClient, TelemetryCapture
from chatstack.testing.provider_server import ScriptedServer
from chatstack.values.native import compaction_in
from tests.providers.editing_servers import Editing, EditingAnthropic, EditingOpenAI, OnLoopback

KEY = "sk-not-to-be-seen"
LIMIT = 50_000
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
COUNTER = CharCounter(4)
SAID = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
FINE = {**SAID, "content": [{"type": "output_text", "text": "fine", "annotations": [], "logprobs": []}]}


def anthropic(server: ScriptedServer) -> AnthropicChatClient:
    return AnthropicChatClient("claude-x", api_key=KEY, base_url=server.base_url, max_retries=0)


def responses(server: ScriptedServer) -> OpenAIResponsesClient:
    return OpenAIResponsesClient("gpt-x", api_key=KEY, base_url=f"{server.base_url}/v1", max_retries=0)


MAKERS: dict[str, Any] = {"anthropic": anthropic, "openai": responses}
BY_BOTH = pytest.mark.parametrize("name", MAKERS)


def server_of(name: str) -> Editing:
    return EditingAnthropic() if name == "anthropic" else EditingOpenAI([[FINE]])


def talk(turns: int, start: int = 0) -> list[Message]:
    found: list[Message] = []
    for number in range(start, start + turns):
        found += [Message.user(f"question {number} " + "q" * 20_000), Message.assistant(f"answer {number}")]
    return found


def question(number: int = 99) -> Message:
    return Message.user(f"question {number}")


def summarizing(inner: ChatClient, telemetry: Telemetry | None = None, **options: Any) -> Summarizer:
    services = ContextServices() if telemetry is None else ContextServices(telemetry=telemetry)
    return Summarizer(inner, services=services, **{"max_tokens": LIMIT, "counter": COUNTER, **options})


async def asked(client: ChatClient, messages: list[Message], *, stream: bool = False, **options: Any) -> ChatResponse:
    found = await client.send(ChatRequest(tuple(messages), ChatOptions(**options), "c-1", stream))
    async with found:
        return await found.response()


def sent(body: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body["messages"] if "messages" in body else body["input"]
    return found


# What is sent, and what comes back


@BY_BOTH
@BOTH_WAYS
def test_the_limit_goes_to_the_api_and_the_compaction_comes_back_as_an_item(name: str, stream: bool) -> None:
    server, capture = server_of(name), TelemetryCapture()

    async def run() -> tuple[ChatResponse, ChatResponse]:
        async with server.running() as running, MAKERS[name](running) as provider:
            layer = summarizing(provider, capture.telemetry, native="on")
            below = await asked(layer, [*talk(2), question()], stream=stream)
            return below, await asked(layer, [*talk(12), question()], stream=stream)

    below, answer = asyncio.run(run())
    if name == "anthropic":
        edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": LIMIT}}
        assert server.bodies[0]["context_management"] == {"edits": [edit]}
        assert server.headers[0]["anthropic-beta"] == "compact-2026-01-12"
        assert answer.overhead_usage.input_tokens > LIMIT
    else:
        assert server.bodies[0]["context_management"] == [{"type": "compaction", "compact_threshold": LIMIT}]
    assert compaction_in(below.messages[0]) is None
    (message,) = answer.messages
    item = compaction_in(message)
    assert item is not None
    assert (item.provider, message.text, answer.text) == (name, "fine", "fine")
    assert len(sent(server.bodies[1])) == 25
    (span,) = capture.spans_named("compact_context summarize")
    assert span.attributes["chatstack.compaction.native"] is True
    assert span.attributes["chatstack.compaction.messages_before"] == 25
    before = span.attributes["chatstack.compaction.tokens_before"]
    assert isinstance(before, int)
    assert before > LIMIT


@BY_BOTH
@BOTH_WAYS
def test_it_is_sent_back_as_it_came_in_the_place_of_what_it_stands_for(name: str, stream: bool) -> None:
    server, capture = server_of(name), TelemetryCapture()

    async def run() -> list[Message]:
        async with server.running() as running, MAKERS[name](running) as provider:
            services = ContextServices(telemetry=capture.telemetry)
            guard = ContextWindowGuard(provider, max_context_tokens=200_000, counter=COUNTER, services=services)
            layer = Summarizer(guard, max_tokens=LIMIT, native="on", counter=COUNTER, services=services)
            history = [Message.system("Be brief."), *talk(12)]
            for number in range(3):
                history.append(question(number))
                history += (await asked(layer, history, stream=stream)).messages
            return history

    history = asyncio.run(run())
    item = compaction_in(history[-5])
    assert item is not None
    for body, length in zip(server.bodies[1:], (3, 5), strict=True):
        asked_last, first, *rest = [each for each in sent(body) if each.get("role") != "system"]
        assert "question 0" in str(asked_last)[:200]
        if name == "anthropic":
            assert first["role"] == "assistant"
            assert first["content"][0] == {"type": "compaction", "content": "Summary of 25 messages."}
        else:
            assert first == {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA=="}
            length += 1  # its text is an item of its own
        assert len(rest) == length - 2
    assert [span.name for span in capture.spans] == ["compact_context summarize"]


@BY_BOTH
def test_without_any_layer_everything_is_sent_back_as_it_came(name: str) -> None:
    server = server_of(name)

    async def run() -> None:
        async with server.running() as running, MAKERS[name](running) as provider:
            history = [*talk(12), question()]
            history += (await asked(summarizing(provider, native="on"), history)).messages
            restored = list(from_json(to_json([*history, question(100)])))
            await asked(provider, restored)

    asyncio.run(run())
    assert len(sent(server.bodies[1])) == (27 if name == "anthropic" else 28)
    assert any("compaction" in str(each)[:200] for each in sent(server.bodies[1]))


def test_a_compaction_that_failed_stands_for_nothing() -> None:
    failed = Message("assistant", (ProviderItem("anthropic", '{"content":null,"type":"compaction"}'),))
    server = EditingAnthropic()

    async def run() -> None:
        async with server.running() as running, anthropic(running) as provider:
            layer = ContextWindowGuard(provider, max_context_tokens=900_000)
            await asked(layer, [*talk(2), Message.user("go on"), failed, question()])

    asyncio.run(run())
    assert len(server.bodies[0]["messages"]) == 7


# Who edits


def test_auto_is_left_to_the_servers_that_are_known_to_have_it() -> None:
    edit = NativeCompaction(trigger_tokens=LIMIT)
    server = EditingAnthropic()

    async def run() -> list[bool]:
        async with server.running() as running, httpx2.AsyncClient(transport=OnLoopback(running)) as http:
            known: list[Any] = [
                AnthropicChatClient("claude-x", api_key=KEY, http_client=http, max_retries=0),
                OpenAIResponsesClient("gpt-x", api_key=KEY),
                OpenAIResponsesClient("gpt-x", api_key=KEY, base_url="https://eu.api.openai.com/v1"),
                anthropic(running),
                responses(running),
            ]
            return [await each.edits_natively(edit) for each in known]

    assert asyncio.run(run()) == [True, True, True, False, False]


def test_auto_summarizes_here_on_a_compatible_server() -> None:
    server, writer = EditingOpenAI([[FINE]]), ScriptedClient(["they spoke"])

    async def run() -> None:
        async with server.running() as running, responses(running) as provider:
            await asked(summarizing(provider, native="auto", summary_client=writer), [*talk(12), question()])

    asyncio.run(run())
    assert "context_management" not in server.bodies[0]
    assert len(writer.requests) > 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_tokens", None),
        ("max_context_items", 9),
        ("keep_recent_turns", 2),
        ("compress_to", 0.5),
        ("summary_client", ScriptedClient()),
        ("summary_prompt", "Be brief."),
        ("summary_timeout_seconds", 5.0),
        ("max_summary_tokens", 900),
    ],
)
def test_an_option_without_a_counterpart_is_an_error(option: str, value: object) -> None:
    provider = OpenAIResponsesClient("gpt-x", api_key=KEY)
    given: dict[str, Any] = {"max_context_items": 9, option: value} if option == "max_tokens" else {option: value}
    with pytest.raises(WiringError) as caught:
        summarizing(provider, native="on", **given)
    assert caught.value.parameter == option
    assert all(word in str(caught.value) for word in ("Summarizer", option, 'native="auto"'))
    summarizing(provider, native="auto", **given)


@pytest.mark.parametrize(
    ("provider", "limit", "why"),
    [
        (AnthropicChatClient("claude-x", api_key=KEY), 49_999, "Anthropic compacts from 50,000 tokens on, not from"),
        (OpenAIResponsesClient("gpt-x", api_key=KEY), 999, "OpenAI compacts from 1,000 tokens on, not from 999"),
        (OpenAIChatClient("gpt-x", api_key=KEY), LIMIT, "no single provider that edits by itself"),
        (Fallback(AnthropicChatClient("x", api_key=KEY), clients=[ScriptedClient()]), LIMIT, "no single provider"),
        (ScriptedClient(), LIMIT, "no single provider"),
    ],
)
def test_a_limit_or_a_provider_that_cannot_is_an_error(provider: ChatClient, limit: int, why: str) -> None:
    with pytest.raises(WiringError, match=why):
        summarizing(provider, native="on", max_tokens=limit)
    summarizing(provider, native="auto", max_tokens=limit)


def test_with_a_pinned_message_it_is_summarized_here() -> None:
    server = EditingAnthropic([[{"type": "text", "text": "they spoke"}], [{"type": "text", "text": "fine"}]])
    pinned = Message("user", Message.user("Never forget: 7.").parts, pinned=True)

    async def run() -> None:
        async with server.running() as running, anthropic(running) as provider:
            await asked(summarizing(provider, native="on"), [pinned, *talk(12), question()])

    asyncio.run(run())
    assert all("context_management" not in each for each in server.bodies)
    assert "Never forget: 7." in str(server.bodies[-1]["messages"])


# Our own layers beside compactions


def compacted(provider: str = "anthropic") -> Message:
    return Message("assistant", (ProviderItem(provider, '{"content":"so far","type":"compaction"}'), *_fine()))


def _fine() -> tuple[Any, ...]:
    return Message.assistant("fine").parts


def test_what_lies_before_a_compaction_is_neither_weighed_nor_sent() -> None:
    server, capture = EditingAnthropic(), TelemetryCapture()

    async def run() -> None:
        async with server.running() as running, anthropic(running) as provider:
            services = ContextServices(telemetry=capture.telemetry)
            guard = ContextWindowGuard(
                provider, max_context_tokens=9_000, prune_on_overflow=True, counter=COUNTER, services=services
            )
            history = [*talk(12), question(), compacted(), question(100)]
            for number in range(3):
                await asked(guard, history)
                history += [Message.assistant("fine"), question(number)]

    asyncio.run(run())
    assert [len(each["messages"]) for each in server.bodies] == [3, 5, 7]
    assert capture.spans == ()


def test_a_compaction_is_never_pruned_cleared_or_summarized() -> None:
    inner, writer, capture = ScriptedClient(), ScriptedClient(["they spoke"]), TelemetryCapture()
    services = ContextServices(telemetry=capture.telemetry)
    call = ToolCall("call-1", "look", '{"at": "' + "x" * 400 + '"}')
    message = compacted().edited(parts=(*compacted().parts, call))
    history = [question(), *talk(3), message, Message.tool("call-1", "y" * 4_000, name="look"), Message.assistant("so")]
    history += [*talk(3, 3), question()]
    layers: list[ChatClient] = [
        ContextWindowGuard(inner, max_context_tokens=3_000, prune_on_overflow=True, counter=COUNTER, services=services),
        ToolResultClearer(
            inner,
            trigger={"tokens": 100},
            keep={"messages": 0},
            clear_tool_inputs=True,
            counter=COUNTER,
            services=services,
        ),
        Summarizer(inner, max_tokens=3_000, summary_client=writer, counter=COUNTER, services=services),
    ]
    for layer in layers:
        asyncio.run(asked(layer, history))
        found = inner.requests[-1].messages
        assert len(found) < len(history) or found != tuple(history)
        assert [compaction_in(each) for each in found if compaction_in(each) is not None] == [compacted().parts[0]]
    assert len(inner.requests[-1].messages) == 5  # the turns on both sides of it are in the summary
    told = [span.attributes.get("chatstack.warning.code") for span in capture.spans]
    assert not {"plan_rejected", "context_irreducible", "summarizer_failed"}.intersection(map(str, told))


def test_another_provider_gets_the_whole_history() -> None:
    inner = ScriptedClient()
    nobody = AnthropicChatClient("x", api_key=KEY, base_url="http://127.0.0.1:9", max_retries=0)
    history = [*talk(1), compacted(), question()]
    for client in (inner, Fallback(nobody, clients=[inner])):
        asyncio.run(asked(ContextWindowGuard(client, max_context_tokens=900_000), history))
        assert inner.requests[-1].messages == tuple(history)


def test_the_beta_goes_along_with_a_compaction_whoever_asked_for_it() -> None:
    server = EditingAnthropic()
    signed = ProviderItem("anthropic", '{"content":"so far","signature":"s","type":"compaction"}')

    async def run() -> None:
        async with server.running() as running, anthropic(running) as provider:
            await asked(provider, [question(), compacted(), question()])
            with pytest.raises(RequestRefusedError):  # this server does not know it; the header is what counts
                await asked(provider, [question(), Message("assistant", (signed,)), question()])

    asyncio.run(run())
    assert [each["anthropic-beta"] for each in server.headers] == ["compact-2026-01-12", "compact-2026-09-04"]
