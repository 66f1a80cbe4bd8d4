"""A budget in dollars: whose prices count, and what happens where nobody knows them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from chatstack import (
    Budget,
    BudgetExceeded,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    Fallback,
    FunctionInvoker,
    Message,
    RateLimitError,
    Spending,
    Summarizer,
    ToolCall,
    Usage,
    WiringError,
    find,
)
from chatstack.client.protocol import ProviderInfo
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.testing import ScriptedClient
from chatstack.tokens import prices
from chatstack.tokens.prices import Price, Rate, price_of
from tests.servers import answering_with

MILLION = 1_000_000
WORK = "x" * 4 * MILLION
"""A request of a million tokens: so much usage would not be believed of a short one."""
CALL = Message.assistant(ToolCall("a", "look", "{}"))
EVEN = Price("m", "p", Rate(Decimal(1)), Rate(Decimal("0.1")), Rate(Decimal("1.25")), output=Rate(Decimal(10)))
"""Dollars for a million tokens: input 1, read 0.1, written 1.25, output 10."""


def look() -> str:
    """Looks."""
    return "sunny"


class Priced:
    """A provider that calls a tool on and on; each round uses the same."""

    def __init__(self, used: Usage | None, *, model: str = "gpt-4o", says: str = "", answer: Message = CALL) -> None:
        self.used = used
        self.says = says
        self.answer = answer
        self.info = ProviderInfo(name="priced", model=model)
        self.requests: list[ChatRequest] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.requests.append(request)
        return await ChatStream.primed(self._play())

    async def _play(self) -> AsyncGenerator[ChatUpdate, None]:
        yield ChatUpdate(message_done=self.answer, usage=self.used, finish_reason="tool_calls", model=self.says)


class ToldInParts(Priced):
    """A provider that tells the input's usage as its answer begins."""

    async def _play(self) -> AsyncGenerator[ChatUpdate, None]:
        assert self.used is not None
        yield ChatUpdate(part=CALL.calls[0], usage=Usage(self.used.input_tokens), model=self.says)
        rest = Usage(0, self.used.output_tokens)
        yield ChatUpdate(message_done=CALL, usage=rest, finish_reason="tool_calls", model=self.says)


def ask(provider: Any, *, options: ChatOptions | None = None, **budget: Any) -> ChatResponse:
    stack = ChatStack(provider).use(Budget, **budget).use(FunctionInvoker, tools=[look], max_tool_calls_per_turn=50)
    return asyncio.run(stack.build().get_response(WORK, options=options))


def spent(provider: Any, **options: Any) -> Decimal:
    """What a turn has cost when it was stopped by a budget of one dollar."""
    with pytest.raises(BudgetExceeded, match="dollars used in this turn, max_cost=1") as caught:
        ask(provider, max_cost=1, **options)
    assert isinstance(caught.value.cost, Decimal)
    return caught.value.cost


@pytest.mark.parametrize(
    ("used", "cost", "rounds"),
    [
        pytest.param(Usage(MILLION), "1", 1, id="input"),
        pytest.param(Usage(0, 60_000), "1.2", 2, id="output"),
        pytest.param(Usage(MILLION, 0, 400_000), "1.28", 2, id="read from the cache"),
        pytest.param(Usage(MILLION, 0, 0, 400_000), "1.1", 1, id="written to the cache"),
        pytest.param(Usage(400_000, 20_000, 200_000, 100_000), "1.335", 3, id="all of them"),
    ],
)
def test_a_turn_costs_what_its_rounds_cost_to_the_last_decimal(used: Usage, cost: str, rounds: int) -> None:
    provider = Priced(used)
    assert spent(provider, price=EVEN) == Decimal(cost)
    assert len(provider.requests) == rounds


@pytest.mark.parametrize("most", [2, 2.0, Decimal(2)])
def test_a_budget_may_be_any_number(most: Any) -> None:
    provider = Priced(Usage(MILLION))
    with pytest.raises(BudgetExceeded):
        ask(provider, max_cost=most, price=EVEN)
    assert len(provider.requests) == 2


def test_prices_are_those_that_are_published_for_the_model() -> None:
    # gpt-4o: input 2.50 dollars for a million tokens, cached input 1.25, output 10
    assert spent(Priced(Usage(200_000, 50_000, 100_000), model="gpt-4o")) == Decimal("1.75")


@pytest.mark.parametrize("says", ["", "openai/gpt-oss-20b"])
def test_prices_are_those_of_the_provider_that_serves_the_model(says: str) -> None:
    """By the name alone they would be another provider's, and a quarter of these."""
    used = Usage(MILLION, 100_000)
    provider = Priced(used, model="openai/gpt-oss-120b", says=says)
    provider.info = replace(provider.info, server_address="api.groq.com")
    price, named = (price_of(says or provider.info.model, at) for at in ("groq", ""))
    assert price is not None
    assert price != named
    with pytest.raises(BudgetExceeded) as caught:
        ask(provider, max_cost=0.01)
    assert caught.value.cost == price.of_usage(used)


def test_the_model_that_a_request_names_is_the_one_that_is_paid_for() -> None:
    named = ChatOptions(model="gpt-4o-mini")  # input 0.15
    assert spent(Priced(Usage(4 * MILLION)), options=named) == Decimal("1.2")


def test_the_model_that_answered_is_the_one_that_is_paid_for() -> None:
    assert spent(Priced(Usage(4 * MILLION), says="gpt-4o-mini-2024-07-18")) == Decimal("1.2")
    assert spent(Priced(Usage(MILLION), says="an-alias-of-a-router")) == Decimal("2.5")
    assert spent(Priced(Usage(MILLION), says="gpt-4o-mini"), price=EVEN) == 1


def test_where_another_client_answered_its_own_price_counts() -> None:
    cheaper = Priced(Usage(4 * MILLION), model="gpt-4o-mini", says="gpt-4o-mini")
    down = ScriptedClient([RateLimitError("no")], info=ProviderInfo(name="openai", model="gpt-4o"))
    stack = ChatStack(down).use(Budget, max_cost=1).use(FunctionInvoker, tools=[look])
    with pytest.raises(BudgetExceeded) as caught:
        asyncio.run(stack.use(Fallback, clients=[cheaper]).build().get_response(WORK))
    assert caught.value.cost == Decimal("1.2")


@pytest.mark.parametrize("writes", ["gpt-4o-mini", "gpt-4o", "no-such-model-9"])
def test_a_summary_costs_what_the_model_that_wrote_it_costs_or_else_the_one_that_is_asked(writes: str) -> None:
    writer = ScriptedClient(["They talked."], info=ProviderInfo(name="openai", model=writes))
    model = ScriptedClient(["fine"], info=ProviderInfo(name="openai", model="gpt-4o"))
    stack = ChatStack(model).use(Budget, max_cost=1, per="conversation")
    client = stack.use(Summarizer, max_tokens=300, keep_recent_turns=1, summary_client=writer).build()
    history = [Message.user("x " * 300) if at % 2 == 0 else Message.assistant("y " * 300) for at in range(9)]
    answer = asyncio.run(client.get_response(history, conversation_id="c"))
    budget = find(client, Budget)
    assert budget is not None
    costs = [
        found.of_usage(usage)
        for name, usage in (("gpt-4o", answer.usage), (writes, answer.overhead_usage))
        if (found := prices.price_of(name) or prices.price_of("gpt-4o")) is not None
    ]
    assert answer.overhead_usage.total_tokens > 100
    assert answer.model != writes or writes == "gpt-4o"
    assert budget.spending.of("c").cost == sum(cost for cost in costs if cost is not None)


@pytest.mark.parametrize("named", [None, "no-such-model-9"])
def test_an_unknown_price_is_said_before_anything_is_sent(named: str | None) -> None:
    provider = Priced(Usage(1), model="no-such-model-9" if named is None else "gpt-4o")
    with pytest.raises(
        WiringError, match=r"the price of 'no-such-model-9' is not known.*price=Price.per_million\("
    ) as caught:
        ask(provider, max_cost=1, options=ChatOptions(model=named))
    assert (caught.value.layer, caught.value.parameter) == ("Budget", "price")
    assert provider.requests == []


def test_without_the_tables_every_price_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(model: str, provider: str) -> list[object]:
        return []

    monkeypatch.setattr(prices, "published", nothing)
    prices.price_of.cache_clear()
    try:
        with pytest.raises(WiringError, match=r"chatstack-core\[prices\]"):
            ask(Priced(Usage(1)), max_cost=1)
    finally:
        prices.price_of.cache_clear()


def test_a_price_without_output_is_no_price() -> None:
    with pytest.raises(WiringError, match="is not known"):
        ask(Priced(Usage(1)), max_cost=1, price=Price("m", "p", Rate(Decimal(1)), Rate(Decimal(1)), None))


def test_a_price_of_ones_own_is_given_in_dollars_for_a_million_tokens() -> None:
    usage = Usage(MILLION, MILLION, 200_000, 100_000)
    price = Price.per_million(input=2, output=Decimal("8"), cache_read=0.5, cache_write=2.5)
    assert spent(Priced(usage, model="no-such-model-9"), price=price) == Decimal("9.75")  # 1.4 + 0.1 + 0.25 + 8
    assert spent(Priced(usage), price=Price.per_million(input=2, output=8)) == 10
    assert spent(Priced(usage), price=Price.per_million(input=0, output=0.1, cache_write=1)) == 1  # in five rounds


@pytest.mark.parametrize("amount", [-1, float("nan"), Decimal("Infinity"), "3", True, None])
def test_a_price_that_is_no_amount_is_refused_where_it_is_given(amount: Any) -> None:
    with pytest.raises(
        WiringError, match=r"Price\.per_million: output=.* must be dollars for a million tokens"
    ) as caught:
        Price.per_million(input=1, output=amount)
    assert caught.value.parameter == "output"


def test_a_number_in_the_place_of_a_rate_is_refused_with_the_way_to_give_one() -> None:
    number: Any = 3.0
    nothing: Any = None
    with pytest.raises(
        WiringError, match=r"Price: read=3.0 must be a Rate; Price.per_million\(input=..., output=...\)"
    ):
        Price("m", "p", Rate(Decimal(1)), number, None)
    with pytest.raises(WiringError, match="Price: input=None"):
        Price("m", "p", nothing, Rate(Decimal(1)), None)


def test_what_nobody_says_the_price_of_writing_is_counted_as_input() -> None:
    price = Price("m", "p", Rate(Decimal(1)), Rate(Decimal("0.1")), None, output=Rate(Decimal(10)))
    assert spent(Priced(Usage(MILLION, 0, 0, 500_000)), price=price) == 1
    assert spent(Priced(Usage(500_000, 0, 0, 100_000), model="grok-4")) == Decimal("1.5")


def test_where_only_tokens_are_bounded_no_price_is_needed() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        ask(Priced(Usage(10), model="no-such-model-9"), max_tokens=10)
    assert caught.value.cost is None


def test_of_two_bounds_the_first_that_is_reached_counts() -> None:
    with pytest.raises(BudgetExceeded, match="10 tokens used"):
        ask(Priced(Usage(10)), max_tokens=10, max_cost=1)
    with pytest.raises(BudgetExceeded, match=r"1\.0000 dollars used"):
        ask(Priced(Usage(MILLION)), max_tokens=10 * MILLION, max_cost=1, price=EVEN)


def test_a_provider_that_reports_nothing_costs_nothing() -> None:
    assert ask(Priced(None, answer=Message.assistant("done")), max_cost=1).text == "done"


def test_the_cost_of_a_conversation_is_kept_with_it() -> None:
    stack = ChatStack(Priced(Usage(600_000), answer=Message.assistant("done"))).use(
        Budget, max_cost=1, per="conversation", price=EVEN
    )
    client = stack.build()
    for _ in range(2):
        asyncio.run(client.get_response(WORK, conversation_id="c"))
    with pytest.raises(BudgetExceeded, match="in this conversation") as caught:
        asyncio.run(client.get_response(WORK, conversation_id="c"))
    assert caught.value.cost == Decimal("1.2")
    budget = find(client, Budget)
    assert budget is not None
    assert "1200000 tokens" in repr(budget.spending.of("c")).replace(",", "")


@pytest.mark.parametrize("lifetimes", [{"ephemeral_5m_input_tokens": 100_000}, {"ephemeral_1h_input_tokens": 100_000}])
@pytest.mark.parametrize("streaming", [False, True])
def test_what_anthropic_wrote_to_a_cache_costs_by_how_long_it_lives(lifetimes: dict[str, int], streaming: bool) -> None:
    usage: dict[str, Any] = {"input_tokens": 10, "cache_creation_input_tokens": 100_000, "cache_creation": lifetimes}
    found = price_of("claude-opus-4-6")
    assert found is not None
    written = found.write_for_an_hour if "ephemeral_1h_input_tokens" in lifetimes else found.write
    assert written is not None
    assert found.output is not None
    expected = (100_000 * written.base + 10 * found.input.base + 10 * found.output.base) / MILLION

    message: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "model": "claude-opus-4-6"}
    begun = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    text = {"type": "text", "text": "done"}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": text},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 10}},
        {"type": "message_stop"},
    ]
    whole = {**message, "content": [text], "stop_reason": "end_turn", "usage": {**usage, "output_tokens": 10}}
    spending = Spending()

    lines = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events]
    body = "".join(lines) if streaming else json.dumps(whole)
    http = answering_with(body.encode(), "text/event-stream" if streaming else "application/json", of_openai=False)

    async def run() -> None:
        client = AnthropicChatClient("claude-opus-4-6", api_key="k", max_retries=0, cache="1h", http_client=http)
        stack = ChatStack(client).use(Budget, max_cost=100, per="conversation", spending=spending).build()
        if streaming:
            async for _ in stack.get_streaming_response(WORK, conversation_id="c"):
                pass
        else:
            await stack.get_response(WORK, conversation_id="c")

    asyncio.run(run())
    assert spending.of("c").cost == expected


TIERED = Price("m", "p", Rate(Decimal(1), ((200_000, Decimal(2)),)), Rate(Decimal(1)), None,
               output=Rate(Decimal(10), ((200_000, Decimal(20)),)))  # fmt: skip


def test_usage_that_is_told_in_parts_costs_what_it_costs_in_one() -> None:
    """Large requests cost more for each token, of the answer, too."""
    used = Usage(MILLION // 4, MILLION // 100)
    costs = [spent(kind(used), price=TIERED) for kind in (Priced, ToldInParts)]
    assert costs == [Decimal("1.4"), Decimal("1.4")]


@pytest.mark.parametrize("kind", [Priced, ToldInParts])
def test_rounds_that_are_large_only_together_cost_what_small_ones_do(kind: type[Priced]) -> None:
    assert spent(kind(Usage(150_000)), price=TIERED) == Decimal("1.05")
