"""A budget of a turn stops one that has used it up; one that ends by itself is not disturbed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from decimal import Decimal
from typing import Any

import pytest

from chatstack import (
    Budget,
    BudgetExceeded,
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    FunctionInvoker,
    Message,
    ProgressReporter,
    ToolCall,
    ToolDeclaration,
    ToolLoopError,
    Usage,
    WiringError,
)
from chatstack.stack.recipe import LayerOrderWarning
from chatstack.testing import TelemetryCapture
from tests.layers.budgets import BOTH, Metered, Round, ask, calls, look, pairs_are_whole, stack_of

# A turn


@BOTH
def test_a_turn_is_stopped_behind_the_tools_of_the_round_that_used_it_up(stream: bool) -> None:
    provider, stack = stack_of(Round(calls("a"), 60), Round(calls("b", "c"), Usage(30, 20)), max_tokens=100)
    with pytest.raises(BudgetExceeded, match="110 tokens used in this turn, max_tokens=100") as caught:
        ask(stack, stream=stream)
    assert len(provider.requests) == 2
    assert caught.value.usage == Usage(90, 20)
    assert caught.value.overhead_usage == Usage()
    assert caught.value.cost is None
    assert [message.role for message in caught.value.messages] == ["assistant", "tool", "assistant", "tool", "tool"]
    assert pairs_are_whole(caught.value.messages)
    assert provider.open == 0


@BOTH
def test_a_turn_that_ends_by_itself_is_not_disturbed_however_much_it_used(stream: bool) -> None:
    provider, stack = stack_of(Round(calls("a"), 99), Round("done", 1_000), max_tokens=100)
    response = ask(stack, stream=stream)
    assert response.text == "done"
    assert response.usage == Usage(1_099)
    assert len(provider.requests) == 2


class ToldBefore(Metered):
    """Tells the cost of a summary, or of the input, before each answer."""

    def __init__(self, told: ChatUpdate, *rounds: Round) -> None:
        super().__init__(*rounds)
        self.told = told

    async def _play(self, now: Round) -> AsyncGenerator[ChatUpdate, None]:
        yield self.told
        async for update in super()._play(now):
            yield update


@BOTH
@pytest.mark.parametrize("told", [ChatUpdate(overhead_usage=Usage(100)), ChatUpdate(usage=Usage(100))])
def test_an_answer_whose_request_has_been_sent_is_read_to_its_end_and_counted(told: ChatUpdate, stream: bool) -> None:
    provider = ToldBefore(told, Round(calls("a"), 60))
    stack = ChatStack(provider).use(Budget, max_tokens=250).use(FunctionInvoker, tools=[look])
    with pytest.raises(BudgetExceeded, match="320 tokens used in this turn") as caught:
        ask(stack, stream=stream)
    assert len(provider.requests) == 2
    assert caught.value.usage is not None
    assert caught.value.overhead_usage is not None
    assert caught.value.usage + caught.value.overhead_usage == Usage(320)
    assert [message.role for message in caught.value.messages] == ["assistant", "tool"] * 2


class Watched:
    """A client whose stream says when it was closed."""

    def __init__(self) -> None:
        self.closed = 0
        self._updates = iter(
            [
                ChatUpdate(message_done=calls("a"), usage=Usage(100), finish_reason="tool_calls"),
                ChatUpdate(message_done=Message.tool("a", "sunny", name="look")),
                ChatUpdate(text="never"),
            ]
        )

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return ChatStream(self)

    async def __anext__(self) -> ChatUpdate:
        return next(self._updates)

    async def aclose(self) -> None:
        self.closed += 1


def test_what_is_below_is_closed_before_the_turn_is_stopped() -> None:
    below = Watched()

    async def run() -> None:
        stream = await Budget(below, max_tokens=100).send(ChatRequest((Message.user("go"),)))
        with pytest.raises(BudgetExceeded):
            async for _ in stream:
                pass

    asyncio.run(run())
    assert below.closed == 1


def test_each_turn_has_a_budget_of_its_own() -> None:
    provider, stack = stack_of(Round("done", 150), max_tokens=100)
    for _ in range(3):
        assert ask(stack, conversation_id="c").text == "done"
    assert len(provider.requests) == 3


def test_everything_up_to_the_end_of_the_tools_is_streamed() -> None:
    _, stack = stack_of(Round(calls("a", "b"), 100), max_tokens=100)
    seen: list[ChatUpdate] = []

    async def read() -> None:
        async with stack.build().get_streaming_response("go") as stream:
            async for update in stream:
                seen.append(update)

    with pytest.raises(BudgetExceeded) as caught:
        asyncio.run(read())
    done = tuple(update.message_done for update in seen if update.message_done is not None)
    assert done == caught.value.messages
    assert len(done) == 3


CUT_OFF = Round(calls("a"), 100, finish="length")
BESIDE = Message.assistant(ToolCall("a", "look", "{}"), ToolCall("b", "ask_user", "{}"))


@pytest.mark.parametrize(
    ("rounds", "loop", "options"),
    [
        pytest.param([CUT_OFF], {}, {}, id="calls of an answer that was cut off"),
        pytest.param([Round(calls("a", "b"), 100)], {}, {"tool_choice": "none"}, id="no calls are allowed"),
        pytest.param([Round(calls("a", name="ask_user"), 100)], {}, {}, id="a call that the caller runs"),
        pytest.param([Round(BESIDE, 100)], {}, {}, id="a call that the caller runs beside one of ours"),
    ],
)
@BOTH
def test_a_turn_that_ends_with_its_calls_is_not_disturbed(
    rounds: list[Round], loop: dict[str, Any], options: dict[str, Any], stream: bool
) -> None:
    given = ChatOptions(tools=(ToolDeclaration("ask_user", "", "{}"),), **options)
    without = ask(stack_of(*rounds, loop=loop, max_tokens=10_000)[1], options=given, stream=stream)
    provider, stack = stack_of(*rounds, loop=loop, max_tokens=100)
    assert ask(stack, options=given, stream=stream) == without
    assert len(provider.requests) == len(rounds)


@BOTH
def test_a_model_that_calls_beyond_the_limit_ends_its_turn_by_itself(stream: bool) -> None:
    for most in (10_000, 100):
        provider, stack = stack_of(Round(calls("a"), 50), loop={"max_tool_calls_per_turn": 1}, max_tokens=most)
        with pytest.raises(ToolLoopError) as caught:
            ask(stack, stream=stream)
        assert (caught.value.usage, len(provider.requests)) == (Usage(100), 2)


def test_calls_that_share_an_id_are_answered_before_the_turn_is_stopped() -> None:
    _, stack = stack_of(Round(calls("same", "same"), 100), max_tokens=100)
    with pytest.raises(BudgetExceeded) as caught:
        ask(stack)
    assert [message.role for message in caught.value.messages] == ["assistant", "tool", "tool"]


def test_a_turn_is_stopped_where_a_pause_would_have_gone_on() -> None:
    provider, stack = stack_of(Round("thinking", 100, finish="paused"), Round("done"), max_tokens=100)
    with pytest.raises(BudgetExceeded) as caught:
        ask(stack)
    assert caught.value.messages == (Message.assistant("thinking"),)
    assert len(provider.requests) == 1


def test_a_pause_that_nobody_goes_on_after_is_the_end() -> None:
    stack = ChatStack(Metered(Round("thinking", 100, finish="paused"))).use(Budget, max_tokens=100)
    assert ask(stack).finish_reason == "paused"


def test_what_is_not_reported_is_not_counted() -> None:
    provider, stack = stack_of(*[Round(calls("a"), None)] * 3, Round("done", None), max_tokens=1)
    assert ask(stack).text == "done"
    assert len(provider.requests) == 4


# Where it belongs


def test_inside_the_tool_loop_it_is_said_to_bound_no_turn() -> None:
    capture = TelemetryCapture()
    stack = ChatStack(Metered(Round("done"))).use(FunctionInvoker, tools=[look]).use(Budget, max_tokens=1)
    with pytest.warns(LayerOrderWarning, match="'Budget' is inside the tool loop.*add it before 'Func"):
        stack.build(capture.resolve)
    assert capture.warnings == ("layer_order",)


def test_a_turn_that_was_stopped_shows_on_its_root_with_what_it_used() -> None:
    capture = TelemetryCapture()
    stack = ChatStack(Metered(Round(calls("a"), 100))).use(ProgressReporter).use(Budget, max_tokens=100)
    client = stack.use(FunctionInvoker, tools=[look]).build(capture.resolve)
    with pytest.raises(BudgetExceeded):
        asyncio.run(client.get_response("go"))
    (root,) = [span for span in capture.spans if span.parent_id is None]
    assert root.status == "error"
    assert root.attributes["error.type"] == "BudgetExceeded"
    assert root.attributes["gen_ai.usage.input_tokens"] == 100
    assert capture.open_spans == ()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "Budget: give max_tokens or max_cost"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": 1.5}, "max_tokens=1.5"),
        ({"max_cost": 0}, "max_cost=0"),
        ({"max_cost": -0.5}, "max_cost=-0.5"),
        ({"max_cost": float("nan")}, "max_cost=nan"),
        ({"max_cost": Decimal("nan")}, "max_cost=Decimal('NaN')"),
        ({"max_cost": True}, "max_cost=True"),
        ({"max_cost": "1"}, "max_cost='1'"),
        ({"max_tokens": 9, "per": "day"}, "per='day' must be 'turn' or 'conversation'"),
        ({"max_tokens": 9, "price": 3}, "price=3 must be a Price"),
    ],
)
def test_bad_values_fail_at_build_with_the_value(options: dict[str, Any], said: str) -> None:
    with pytest.raises(WiringError) as caught:
        ChatStack(Metered(Round("done"))).use(Budget, **options).build()
    assert said in str(caught.value)
    assert caught.value.layer == "Budget"
