"""Tokens and dollars of a run: what counts, when the last call is made, and what a budget of the client says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Unpack

import pytest

from chatstack import (
    BrokenStreamError,
    Budget,
    BudgetExceeded,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    Fallback,
    Message,
    ServerError,
    ToolCall,
    Usage,
    WiringError,
)
from chatstack.client.fronts import ChatFronts
from chatstack.loop.context import IterativeContext
from chatstack.loop.results import IterationRecord, IterativeResult
from chatstack.testing import ScriptedClient
from chatstack.tokens.prices import Price, Rate
from tests.loop.runs import Options, asked, call, fresh, look, looped, run

_INPUT = Rate(Decimal(1))
PRICE = Price("m", "p", _INPUT, _INPUT, _INPUT, output=Rate(Decimal(10)))
"""A dollar for a million tokens in, ten for a million out."""


class Metered(ChatFronts):
    """Answers each request as it is told, for as many tokens as it is told; writing summaries costs it extra."""

    def __init__(self, *tokens: int, overhead: int = 0, words_when_final: str = "in short") -> None:
        self.tokens = tokens
        self.overhead = Usage(overhead, 0)
        self.words_when_final = words_when_final
        self.requests: list[ChatRequest] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._answer(request))

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        used = self.tokens[min(len(self.requests), len(self.tokens) - 1)]
        self.requests.append(request)
        if request.options.tool_choice == "none":
            message = Message.assistant(self.words_when_final)
        else:
            message = Message("assistant", (call("look", f"c{len(self.requests)}", what=str(len(self.requests))),))
        for part in message.parts:
            if isinstance(part, ToolCall):
                yield ChatUpdate(part=part)
            else:
                yield ChatUpdate(text=message.text)
        yield ChatUpdate(
            message_done=message, usage=Usage(used - 1, 1), overhead_usage=self.overhead, finish_reason="stop"
        )


def choices(client: Metered) -> list[str | None]:
    return [request.options.tool_choice for request in client.requests]


def budgeted(client: Metered, **options: Unpack[Options]) -> IterativeResult:
    options.setdefault("mode", "single_call")
    return run(looped(client, tools=[look], **options))


def test_near_the_limit_there_is_one_last_call_that_has_its_tools_and_may_not_use_them() -> None:
    client = Metered(100)
    result = budgeted(client, max_tokens=1_000, pressure=0.8)
    assert choices(client) == [None] * 8 + ["none"]
    assert [len(request.options.tools) for request in client.requests] == [1] * 9
    assert (result.reason, result.text) == ("budget", "in short")
    assert [record.is_final for record in result.iterations] == [False] * 8 + [True]
    assert result.usage == Usage(9 * 99, 9)


def test_the_prompt_and_the_hooks_know_that_it_is_the_last_one() -> None:
    client, told = Metered(100), list[tuple[str, bool]]()

    def prompt(context: IterativeContext) -> str:
        told.append(("prompt", context.is_finalizing))
        return "go on"

    def started(context: IterativeContext) -> None:
        told.append(("start", context.is_finalizing))

    def ended(record: IterationRecord, context: IterativeContext) -> None:
        told.append(("end", context.is_finalizing))

    run(
        looped(
            client,
            prompt,
            [look],
            mode="single_call",
            max_tokens=250,
            pressure=0.5,
            on_iteration_start=started,
            on_iteration_end=ended,
        )
    )
    assert told == [(name, last) for last in (False, False, True) for name in ("start", "prompt", "end")]


def test_a_last_call_after_which_the_work_is_complete_has_completed_it() -> None:
    result = budgeted(Metered(100), max_tokens=1_000, is_complete=lambda context: context.is_finalizing)
    assert result.reason == "completed"


def test_a_model_that_calls_tools_in_its_last_call_is_not_obeyed_and_not_asked_again() -> None:
    class Stubborn(Metered):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            return await super().send(request.but(options=request.options.but(tool_choice=None)))

    client = Stubborn(100)
    result = budgeted(client, max_tokens=300, pressure=0.5, mode="multi_round")
    assert (result.reason, len(client.requests)) == ("budget", 3)


def test_who_jumps_over_the_limit_at_once_gets_no_last_call() -> None:
    client = Metered(100, 950)
    result = budgeted(client, max_tokens=1_000)
    assert (result.reason, choices(client)) == ("budget", [None, None])
    assert result.usage.total_tokens == 1_050
    assert not result.iterations[-1].is_partial


def test_within_an_iteration_the_model_is_not_asked_again_once_the_budget_is_used_up() -> None:
    client = Metered(400)
    result = budgeted(client, max_tokens=1_000, mode="multi_round", max_tool_rounds=10)
    assert (result.reason, len(client.requests), result.tool_calls) == ("budget", 3, 3)


def test_an_answer_that_paused_is_not_gone_on_with_once_the_budget_is_used_up() -> None:
    loop = looped([["thinking", "paused"], "never"], max_tokens=1)
    assert (run(loop).reason, asked(loop)) == ("budget", [["iteration 0"]])


def test_completion_goes_before_the_budget() -> None:
    result = budgeted(Metered(5_000), max_tokens=1_000, is_complete=lambda context: True)
    assert result.reason == "completed"


def test_a_loop_without_tools_is_finished_without_a_choice_of_tools() -> None:
    client = Metered(100)
    client.words_when_final = "never"
    loop = looped(client, tools=[], max_tokens=200, pressure=0.5, mode="single_call", is_complete=lambda _: False)
    run(loop)
    assert choices(client)[-1] is None


def test_dollars_are_counted_at_the_price_of_the_model() -> None:
    client = Metered(100)
    result = budgeted(client, max_cost=0.0008, price=PRICE, pressure=0.8)
    each = Decimal(99 + 10) / 1_000_000
    assert (result.reason, result.cost) == ("budget", each * len(client.requests))
    assert choices(client) == [None] * 6 + ["none"]


def test_a_price_that_nobody_knows_fails_before_anything_is_asked() -> None:
    client = Metered(100)
    with pytest.raises(WiringError, match="price"):
        budgeted(client, max_cost=1)
    assert client.requests == []


def test_what_summaries_cost_counts_as_well() -> None:
    client = Metered(100, overhead=100)
    result = budgeted(client, max_tokens=1_000, pressure=0.8)
    assert len(client.requests) == 5
    assert (result.usage, result.overhead_usage) == (Usage(5 * 99, 5), Usage(500, 0))
    assert result.iterations[0].overhead_usage == Usage(100, 0)
    paid = budgeted(Metered(100, overhead=100), max_cost=1, price=PRICE, max_iterations=2)
    assert paid.cost == 2 * Decimal(99 + 10 + 100) / 1_000_000


def test_without_a_budget_there_is_no_last_call() -> None:
    client = Metered(1_000_000)
    assert budgeted(client, max_iterations=5).reason == "max_iterations"
    assert choices(client) == [None] * 5


@pytest.mark.parametrize("is_fallback", [False, True])
def test_a_budget_of_the_client_ends_the_run_and_what_was_paid_is_counted_once(is_fallback: bool) -> None:
    client = Metered(100)
    stack = ChatStack(client).use(Budget, max_tokens=250, per="conversation").build()
    if is_fallback:
        stack = ChatStack(ScriptedClient([ServerError("down")] * 4)).use(Fallback, clients=[stack]).build()
    result = run(looped(stack, tools=[look], mode="single_call"), fresh(run_id="r1"))
    assert (result.reason, type(result.error), len(client.requests)) == ("budget", BudgetExceeded, 3)
    assert result.usage == Usage(3 * 99, 3)
    assert [record.is_partial for record in result.iterations] == [False, False, False, True]


def test_what_an_exceeded_budget_says_was_paid_for_is_in_the_result_and_in_the_record() -> None:
    class Spent(Metered):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            if self.requests:
                raise BudgetExceeded("spent", usage=Usage(50, 5), overhead_usage=Usage(7, 0))
            return await super().send(request)

    result = run(looped(Spent(100), tools=[look], mode="single_call", max_cost=1, price=PRICE))
    assert (result.reason, result.usage, result.overhead_usage) == ("budget", Usage(149, 6), Usage(7, 0))
    assert result.cost == Decimal(149 + 60 + 7) / 1_000_000
    assert (result.iterations[1].usage, result.iterations[1].is_partial) == (Usage(50, 5), True)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BrokenStreamError("cut"), "error"),
        (BudgetExceeded("spent", usage=Usage(40, 0), overhead_usage=Usage(7, 0)), "budget"),
        (None, "cancelled"),
    ],
    ids=["broken", "budget", "cancelled"],
)
def test_what_an_answer_told_before_it_broke_off_is_counted_once(error: Exception | None, reason: str) -> None:
    context = fresh()

    class Breaking(Metered):
        async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
            yield ChatUpdate(text="half", usage=Usage(40, 0), overhead_usage=Usage(7, 0))
            if error is not None:
                raise error
            context.cancellation.cancel()
            await asyncio.sleep(60)

    result = run(looped(Breaking(100), tools=[look], max_cost=1, price=PRICE), context)
    assert (result.reason, result.usage, result.overhead_usage) == (reason, Usage(40, 0), Usage(7, 0))
    assert result.cost == Decimal(40 + 7) / 1_000_000
    assert (result.iterations[0].usage, result.iterations[0].is_partial) == (Usage(40, 0), True)
