"""A budget of a conversation: kept between turns, clients, tasks and threads, with all that was paid for in it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator
from contextlib import nullcontext

import pytest

from chatstack import (
    BrokenStreamError,
    Budget,
    BudgetExceeded,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    Fallback,
    FunctionInvoker,
    InputError,
    Message,
    ModelTracer,
    ProgressReporter,
    ServerError,
    Spending,
    Summarizer,
    Telemetry,
    Usage,
    WiringError,
    find,
    named,
)
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture
from tests.layers.budgets import BOTH, Metered, Round, ask, calls, stack_of

# A conversation


@BOTH
def test_a_conversation_that_has_used_it_up_is_refused_before_anything_is_sent(stream: bool) -> None:
    provider, stack = stack_of(Round("done", Usage(30, 30)), max_tokens=100, per="conversation")
    for _ in range(2):
        ask(stack, conversation_id="c", stream=stream)
    with pytest.raises(BudgetExceeded, match="120 tokens used in this conversation") as caught:
        ask(stack, conversation_id="c", stream=stream)
    assert caught.value.usage == Usage(60, 60)
    assert caught.value.messages == ()
    assert len(provider.requests) == 2
    assert ask(stack, conversation_id="another", stream=stream).text == "done"


def test_a_turn_that_uses_up_the_conversation_is_stopped_in_the_middle_and_keeps_what_it_added() -> None:
    provider, stack = stack_of(Round("hello", 60), Round(calls("a"), 60), max_tokens=100, per="conversation")
    ask(stack, conversation_id="c")
    with pytest.raises(BudgetExceeded) as caught:
        ask(stack, conversation_id="c")
    assert caught.value.usage == Usage(120)
    assert [message.role for message in caught.value.messages] == ["assistant", "tool"]
    assert len(provider.requests) == 2


def test_a_conversation_needs_an_id() -> None:
    provider, stack = stack_of(Round("done"), max_tokens=100, per="conversation")
    with pytest.raises(InputError, match="conversation_id"):
        ask(stack)
    assert provider.requests == []


def test_what_was_spent_outlives_the_client_and_is_shared_by_what_is_derived_from_the_stack() -> None:
    provider, stack = stack_of(Round("done", 100), max_tokens=100, per="conversation")
    ask(stack, conversation_id="c")
    for other in (stack, stack.override("Budget", max_tokens=99), stack.use(ModelTracer)):
        with pytest.raises(BudgetExceeded):
            ask(other, conversation_id="c")
    assert len(provider.requests) == 1


def test_a_conversation_that_is_forgotten_starts_anew() -> None:
    _, stack = stack_of(Round("done", 100), max_tokens=100, per="conversation")
    ask(stack, conversation_id="c")
    budget = find(stack.build(), Budget)
    assert budget is not None
    budget.spending.forget("c")
    budget.spending.forget("never heard of")
    assert ask(stack, conversation_id="c").text == "done"


def test_of_too_many_conversations_the_one_not_heard_of_for_longest_is_forgotten() -> None:
    spending = Spending(max_conversations=2)
    first = spending.of("first")
    spending.of("second")
    assert spending.of("first") is first
    spending.of("third")
    assert spending.of("first") is first
    assert "2 conversations" in repr(spending)


def test_two_budgets_never_count_an_answer_twice_in_one_account() -> None:
    spending, apart = Spending(), Spending()
    stack = ChatStack(Metered(Round("fine", 15))).use(Budget, max_tokens=100, per="conversation", spending=spending)
    with pytest.raises(WiringError, match="count each answer in one account"):
        stack.use(named("smaller", Budget), max_tokens=50, per="conversation", spending=spending).build()
    other = ChatStack(Metered()).use(Budget, max_tokens=50, per="conversation", spending=spending).build()
    with pytest.raises(WiringError, match="count each answer in one account"):
        stack.use(Fallback, clients=[other]).build()
    stack = stack.use(named("smaller", Budget), max_tokens=50, per="conversation", spending=apart)
    ask(stack.use(named("of the turn", Budget), max_tokens=50), conversation_id="c")
    assert spending.of("c").usage == apart.of("c").usage == Usage(15)


def test_many_turns_of_one_conversation_at_once_are_all_counted() -> None:
    _, stack = stack_of(Round("done", Usage(7, 3), seconds=0.001), max_tokens=1_000_000, per="conversation")
    client = stack.build()

    async def many() -> None:
        await asyncio.gather(*(client.get_response("go", conversation_id="c") for _ in range(200)))

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    budget = find(client, Budget)
    assert budget is not None
    assert budget.spending.of("c").usage == Usage(5_600, 2_400)


# What is counted


@BOTH
def test_the_cost_of_a_summary_is_counted(stream: bool) -> None:
    def stack_with(most: int) -> ChatStack:
        stack = ChatStack(Metered(Round("done", 50))).use(Budget, max_tokens=most, per="conversation")
        writer = ScriptedClient(["They met, and talked about the weather."])
        return stack.use(Summarizer, max_tokens=200, keep_recent_turns=1, summary_client=writer)

    history = [Message.user("x " * 300) if at % 2 == 0 else Message.assistant("y " * 300) for at in range(9)]

    async def twice(stack: ChatStack) -> ChatResponse:
        client = stack.build()
        if stream:
            async with client.get_streaming_response(history, conversation_id="c") as answer:
                first = await answer.response()
        else:
            first = await client.get_response(history, conversation_id="c")
        await client.get_response("go on", conversation_id="c")
        return first

    paid = asyncio.run(twice(stack_with(1_000_000))).overhead_usage
    assert paid.total_tokens > 50
    with pytest.raises(BudgetExceeded) as caught:
        asyncio.run(twice(stack_with(50 + paid.total_tokens)))
    assert caught.value.usage == Usage(50)
    assert caught.value.overhead_usage == paid
    assert asyncio.run(twice(stack_with(51 + paid.total_tokens))).text == "done"


@pytest.mark.parametrize("how", ["stopped", "broken"])
def test_the_cost_of_a_summary_is_counted_once_whatever_becomes_of_the_answers(how: str) -> None:
    writer = ScriptedClient(["They met, and talked about the weather."])
    answer: Answer = ["half ", BrokenStreamError("cut")] if how == "broken" else ["some ", "words"]
    spending = Spending()
    stack = ChatStack(ScriptedClient([answer])).use(Budget, max_tokens=10**6, per="conversation", spending=spending)
    client = stack.use(Summarizer, max_tokens=200, keep_recent_turns=1, summary_client=writer).build()
    history = [Message.user("x " * 300) if at % 2 == 0 else Message.assistant("y " * 300) for at in range(9)]

    async def until_the_first_word() -> None:
        async with client.get_streaming_response(history, conversation_id="c") as stream:
            async for update in stream:
                if update.text and how == "stopped":
                    break

    for _ in range(3):
        with nullcontext() if how == "stopped" else pytest.raises(BrokenStreamError):
            asyncio.run(until_the_first_word())
    assert len(writer.requests) == 1
    written = asyncio.run(ScriptedClient(["They met, and talked about the weather."]).get_response("x")).usage
    assert spending.of("c").overhead.output_tokens == written.output_tokens


def test_what_a_summary_told_before_it_broke_off_is_counted() -> None:
    class Breaking:
        async def send(self, request: ChatRequest, /) -> ChatStream:
            return await ChatStream.primed(self._half())

        async def _half(self) -> AsyncGenerator[ChatUpdate, None]:
            yield ChatUpdate(text="half", usage=Usage(40))
            raise BrokenStreamError("cut")

    spending = Spending()
    stack = ChatStack(ScriptedClient(["fine"])).use(Budget, max_tokens=10**6, per="conversation", spending=spending)
    client = stack.use(Summarizer, max_tokens=200, keep_recent_turns=1, summary_client=Breaking()).build()
    history = [Message.user("x " * 300), Message.assistant("y " * 300), Message.user("and now?")]
    answer = asyncio.run(client.get_response(history, conversation_id="c"))
    assert answer.overhead_usage == spending.of("c").overhead == Usage(40)


@pytest.mark.parametrize("how", ["cancelled", "closed", "dropped", "failed"])
def test_what_a_turn_saw_is_counted_however_it_ends(how: str) -> None:
    last = Round("never", error=ServerError("down")) if how == "failed" else Round("never", 5, seconds=10)
    provider, stack = stack_of(Round(calls("a"), 60), last, max_tokens=100, per="conversation")
    client = stack.build()

    async def read() -> None:
        stream = client.get_streaming_response("go", conversation_id="c")
        async for update in stream:
            if update.text == "never":
                break
        if how == "closed":
            await stream.aclose()

    async def run() -> None:
        if how == "cancelled":
            asking = asyncio.ensure_future(client.get_response("go", conversation_id="c"))
            await asyncio.sleep(0.05)
            assert len(provider.requests) == 2
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        elif how == "failed":
            with pytest.raises(ServerError):
                await read()
        else:
            await read()
            gc.collect()
        await asyncio.sleep(0.01)
        assert provider.open == 0

    asyncio.run(asyncio.wait_for(run(), 300))
    budget = find(client, Budget)
    assert budget is not None
    assert budget.spending.of("c").usage == Usage(60)


class ToldEarly(Metered):
    """Tells the cost of its input with the first update of each answer."""

    async def _play(self, now: Round) -> AsyncGenerator[ChatUpdate, None]:
        yield ChatUpdate(text="so", usage=Usage(1_000))
        async for update in super()._play(now):
            yield update


@pytest.mark.parametrize("layers", [[], [ProgressReporter], [FunctionInvoker], [ProgressReporter, FunctionInvoker]])
@pytest.mark.parametrize("reads", [0, 1, 2])
def test_a_stream_that_is_closed_early_has_cost_what_was_told_before_however_much_of_it_was_read(
    layers: list[type[FunctionInvoker | ProgressReporter]], reads: int
) -> None:
    spending, capture = Spending(), TelemetryCapture()
    stack = ChatStack(ToldEarly(Round("so it is", 5))).use(Budget, max_tokens=9_000, per="conversation")
    for layer in layers:
        stack = stack.use(layer)

    async def closed() -> None:
        client = stack.build({Spending: spending, Telemetry: capture.telemetry}.get)
        async with client.get_streaming_response("go", conversation_id="c") as stream:
            for _ in range(reads):
                await anext(stream)

    asyncio.run(closed())
    assert spending.of("c").usage == Usage(1_000)
    (span,) = capture.spans_named("chat")
    assert span.attributes["gen_ai.usage.input_tokens"] == 1_000
