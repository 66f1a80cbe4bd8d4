"""Service tiers: what was served faster or slower than usual has a price of its own, told with the answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Any

import pytest

from chatstack import (
    Budget,
    ChatFronts,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    FunctionInvoker,
    Message,
    Spending,
    ToolCall,
    Usage,
)
from chatstack.client.protocol import ProviderInfo
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.testing import TelemetryCapture
from chatstack.tokens.prices import price_of
from chatstack.values.responses import FinishReason
from tests.servers import answering_with

GIVEN, SAID = 1_000, 100
MODEL = "gpt-5"
CLAUDE = "claude-opus-4-8"


def cost_at(model: str, tier: str) -> Decimal:
    price = price_of(model, tier=tier)
    assert price is not None
    cost = price.of_usage(Usage(GIVEN, SAID))
    assert cost is not None
    return cost


def test_a_tier_has_its_price_and_one_without_the_usual() -> None:
    usual = cost_at(MODEL, "")
    assert cost_at(MODEL, "flex") == usual / 2
    assert cost_at(MODEL, "priority") == cost_at(MODEL, "fast") == usual * 2
    assert cost_at(MODEL, "default") == cost_at(MODEL, "scale") == cost_at(MODEL, "of later years") == usual
    assert cost_at(CLAUDE, "fast") > cost_at(CLAUDE, "standard") == cost_at(CLAUDE, "")


def lines(*events: dict[str, Any], end: str = "") -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + end


def chat(tier: str, *, streaming: bool) -> str:
    about = {"id": "c", "model": MODEL, "service_tier": tier}
    usage = {"prompt_tokens": GIVEN, "completion_tokens": SAID, "total_tokens": GIVEN + SAID}
    text = {"role": "assistant", "content": "fine"}
    if not streaming:
        choice = {"index": 0, "message": text, "finish_reason": "stop"}
        return json.dumps({**about, "object": "chat.completion", "choices": [choice], "usage": usage})
    chunk = {**about, "object": "chat.completion.chunk"}
    choices = ({"index": 0, "delta": text}, {"index": 0, "delta": {}, "finish_reason": "stop"})
    told = [{**chunk, "choices": [choice]} for choice in choices]
    return lines(*told, {**chunk, "choices": [], "usage": usage}, end="data: [DONE]\n\n")


def responses(tier: str, *, streaming: bool) -> str:
    content = [{"type": "output_text", "text": "fine", "annotations": []}]
    item = {"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": content}
    usage = {"input_tokens": GIVEN, "output_tokens": SAID, "total_tokens": GIVEN + SAID}
    whole: dict[str, Any] = {
        "id": "r",
        "object": "response",
        "model": MODEL,
        "status": "completed",
        "service_tier": tier,
    }
    whole |= {"output": [item], "usage": usage}
    return lines({"type": "response.completed", "response": whole}) if streaming else json.dumps(whole)


def messages(tier: str, *, streaming: bool) -> str:
    about = {"id": "m", "type": "message", "role": "assistant", "model": CLAUDE}
    usage = {"input_tokens": GIVEN, "output_tokens": SAID, "service_tier": "standard", "speed": tier}
    text = {"type": "text", "text": "fine"}
    if not streaming:
        return json.dumps({**about, "content": [text], "stop_reason": "end_turn", "usage": usage})
    return lines(
        {"type": "message_start", "message": {**about, "content": [], "stop_reason": None, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": SAID}},
        {"type": "message_stop"},
    )


APIS = {
    "chat completions": (OpenAIChatClient, MODEL, "flex", chat),
    "responses": (OpenAIResponsesClient, MODEL, "priority", responses),
    "messages": (AnthropicChatClient, CLAUDE, "fast", messages),
}


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_an_answer_tells_its_tier_and_costs_what_that_does(api: str, streaming: bool) -> None:
    kind, model, tier, body = APIS[api]
    spending, capture = Spending(), TelemetryCapture()
    form = "text/event-stream" if streaming else "application/json"
    http = answering_with(body(tier, streaming=streaming).encode(), form, of_openai=kind is not AnthropicChatClient)

    async def run() -> ChatResponse:
        client: Any = kind(model, api_key="k", max_retries=0, http_client=http)
        stack = ChatStack(client).use(Budget, max_cost=100, per="conversation", spending=spending)
        stream = stack.build(capture.resolve).get_streaming_response("hi", conversation_id="c")
        if streaming:
            return await stream.response()
        return await stack.build(capture.resolve).get_response("hi", conversation_id="c")

    answer = asyncio.run(run())
    assert answer.service_tier == tier
    assert answer.usage == Usage(GIVEN, SAID)
    assert spending.of("c").cost == cost_at(model, tier) != cost_at(model, "")
    (metric,) = capture.metric("chatstack.cost")
    assert metric.total == pytest.approx(float(cost_at(model, tier)))


class Served(ChatFronts):
    """A model that is served in these tiers, one round after the other; it calls a tool in all but the last."""

    def __init__(self, *tiers: str, provider: str = "openai") -> None:
        self.info = ProviderInfo(name=provider, model=MODEL)
        self._tiers = [*tiers]

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._play())

    async def _play(self) -> AsyncGenerator[ChatUpdate, None]:
        tier, message = self._tiers.pop(0), Message.assistant("fine")
        if self._tiers:
            message = Message.assistant(ToolCall("a", "look", "{}"))
        reason: FinishReason = "tool_calls" if self._tiers else "stop"
        usage = Usage(GIVEN, SAID)
        yield ChatUpdate(message_done=message, usage=usage, finish_reason=reason, model=MODEL, service_tier=tier)


def test_each_round_costs_what_its_own_tier_does_and_the_turn_tells_the_last() -> None:
    def look() -> str:
        """Look."""
        return "sunny"

    spending = Spending()
    stack = ChatStack(Served("flex", "default")).use(Budget, max_cost=100, per="conversation", spending=spending)
    asked = stack.use(FunctionInvoker, tools=[look]).build().get_response("hi", conversation_id="c")
    assert asyncio.run(asked).service_tier == "default"
    assert spending.of("c").cost == cost_at(MODEL, "flex") + cost_at(MODEL, "")


@pytest.mark.parametrize(("provider", "is_told"), [("openai", True), ("anthropic", False)])
def test_a_span_tells_the_tier_that_was_asked_for_and_the_one_that_served(provider: str, is_told: bool) -> None:
    capture = TelemetryCapture()
    model = Served("default", provider=provider)
    asked = ChatOptions(extra={"service_tier": "flex"})
    asyncio.run(ChatStack(model).build(capture.resolve).get_response("hi", options=asked))
    (chat_span,) = [span for span in capture.spans if span.name.startswith("chat ")]
    tiers = {name: value for name, value in (chat_span.attributes or {}).items() if name.endswith("service_tier")}
    told = {"openai.request.service_tier": "flex", "openai.response.service_tier": "default"}
    assert tiers == (told if is_told else {})
