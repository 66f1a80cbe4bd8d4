"""Turns of the tool loop that another worker goes on with, and those that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path

from test_runs import in_worker

from chatstack import (
    Budget,
    ChatClient,
    ChatRequest,
    ChatStack,
    ChatUpdate,
    FunctionInvoker,
    Message,
    ToolCall,
    ToolResult,
    Usage,
    tool,
)
from chatstack.client.fronts import ChatFronts
from chatstack.client.stream import ChatStream
from chatstack.testing import Answer, ScriptedClient
from chatstack.tools.turn import OVER_LIMIT
from chatstack_dbos import DurableRuns, DurableTurn, RunEnded
from chatstack_dbos.execution import Served


def paying(*names: str) -> Message:
    return Message.assistant(*(ToolCall(name, "pay", f'{{"to": "{name}"}}') for name in names))


def outputs(ended: RunEnded) -> list[object]:
    return [result.output for message in ended.messages for result in message.results]


class Stuck(ScriptedClient):
    """Never comes to its last answer; ``is_stuck`` is set when it is asked for it."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        super().__init__(answers)
        self.is_stuck = asyncio.Event()

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if len(self.requests) == len(self.answers) - 1:
            self.is_stuck.set()
            await asyncio.Event().wait()
        return await super().send(request)


class Payments:
    """What a tool has paid, and turns that call it."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def served(self, model: ChatClient, most_calls: int, max_tokens: int = 100_000) -> dict[str, Served]:
        @tool
        def pay(to: str) -> str:
            self.paid.append(to)
            return f"paid {to}"

        stack = ChatStack(model).use(Budget, max_tokens=max_tokens)
        stack = stack.use(FunctionInvoker, tools=[pay], max_tool_calls_per_turn=most_calls)
        return {"turn": DurableTurn(stack.build())}


def test_calls_that_have_run_are_not_cut_by_a_limit_that_is_lower_after_an_upgrade(tmp_path: Path) -> None:
    database, payments = f"sqlite:///{tmp_path}/runs.db", Payments()
    old = Stuck([paying("Ann", "Bob", "Cem"), paying("Dan", "Eve"), "never"])

    async def first(runs: DurableRuns) -> None:
        await runs.start("turn", "run-1", "Pay them.")
        await old.is_stuck.wait()

    async def second(runs: DurableRuns) -> None:
        outcome = await runs.result("run-1", timeout_seconds=60)
        assert (outcome.reason, outcome.text) == ("answered", "done")
        assert outputs(outcome) == [f"paid {name}" for name in ("Ann", "Bob", "Cem", "Dan", "Eve")]

    in_worker(database, payments.served(old, 10), first)
    in_worker(database, payments.served(ScriptedClient(["done"]), 1), second)
    assert payments.paid == ["Ann", "Bob", "Cem", "Dan", "Eve"]


def test_a_turn_that_fails_tells_of_calls_beyond_the_limit_and_of_those_that_the_provider_answered(
    tmp_path: Path,
) -> None:
    payments = Payments()
    by_itself = ToolCall("s", "search", "{}"), ToolResult("s", "search", "found")
    searched = Message.assistant(*by_itself, *paying("Ann").parts)
    model = ScriptedClient([searched, paying("Bob", "Cem"), ConnectionError("no network")])

    async def story(runs: DurableRuns) -> None:
        await runs.start("turn", "run-1", "Pay them.")
        outcome = await runs.result("run-1", timeout_seconds=60)
        assert (outcome.reason, outcome.error) == ("error", "ConnectionError: no network")
        assert outputs(outcome) == ["found", "paid Ann", "paid Bob", OVER_LIMIT]
        assert [each.role for each in outcome.messages] == ["assistant", "tool", "assistant", "tool", "tool"]

    in_worker(f"sqlite:///{tmp_path}/runs.db", payments.served(model, 2), story)


class Summarized(ChatFronts):
    """A model before each of whose answers a summary is written, which calls a tool on and on."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._answer())

    async def _answer(self) -> AsyncGenerator[ChatUpdate, None]:
        yield ChatUpdate(overhead_usage=Usage(100))
        message = paying("Ann")
        yield ChatUpdate(part=message.parts[0])
        yield ChatUpdate(message_done=message, usage=Usage(1), finish_reason="tool_calls")


def test_a_budget_counts_the_summaries_of_a_recorded_turn(tmp_path: Path) -> None:
    @tool
    def pay(to: str) -> str:
        return f"paid {to}"

    stack = ChatStack(Summarized()).use(Budget, max_tokens=250).use(FunctionInvoker, tools=[pay])

    async def go(runs: DurableRuns) -> None:
        await runs.start("turn", "run-1", "Pay.")
        outcome = await runs.result("run-1", timeout_seconds=60)
        assert (outcome.reason, outcome.overhead_usage, outcome.usage) == ("error", Usage(300), Usage(3))
        assert outcome.error == "BudgetExceeded: Budget: 303 tokens used in this turn, max_tokens=250"

    in_worker(f"sqlite:///{tmp_path}/runs.db", {"turn": DurableTurn(stack.build())}, go)


class BreaksOff(ChatFronts):
    """Tells what the input costs as its first answer begins, which then fails, or never ends."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked = 0
        self.has_begun = asyncio.Event()

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.asked += 1
        return await ChatStream.primed(self._answer())

    async def _answer(self) -> AsyncGenerator[ChatUpdate, None]:
        yield ChatUpdate(text="so", usage=Usage(1_000))
        if self.asked == 1:
            self.has_begun.set()
            if self.error is not None:
                raise self.error
            await asyncio.Event().wait()
        yield ChatUpdate(message_done=Message.assistant("so"), usage=Usage(0, 10), finish_reason="stop")


def breaking_off(model: BreaksOff) -> dict[str, Served]:
    return {"turn": DurableTurn(ChatStack(model).use(FunctionInvoker, tools=[]).build())}


def test_a_turn_tells_what_an_answer_has_cost_that_failed_or_was_cancelled(tmp_path: Path) -> None:
    async def fails(runs: DurableRuns) -> None:
        await runs.start("turn", "run-1", "go")
        outcome = await runs.result("run-1", timeout_seconds=60)
        assert (outcome.reason, outcome.usage) == ("error", Usage(1_000))

    stuck = BreaksOff()

    async def is_cancelled(runs: DurableRuns) -> None:
        await runs.start("turn", "run-2", "go")
        await stuck.has_begun.wait()
        await runs.cancel("run-2")
        outcome = await runs.result("run-2", timeout_seconds=60)
        assert (outcome.reason, outcome.usage) == ("cancelled", Usage(1_000))

    in_worker(f"sqlite:///{tmp_path}/runs.db", breaking_off(BreaksOff(ConnectionError("cut"))), fails)
    in_worker(f"sqlite:///{tmp_path}/runs.db", breaking_off(stuck), is_cancelled)


def test_a_turn_that_another_worker_goes_on_with_tells_what_the_first_one_has_paid(tmp_path: Path) -> None:
    database, model = f"sqlite:///{tmp_path}/runs.db", BreaksOff()

    async def first(runs: DurableRuns) -> None:
        await runs.start("turn", "run-1", "go")
        await model.has_begun.wait()

    async def second(runs: DurableRuns) -> None:
        outcome = await runs.result("run-1", timeout_seconds=60)
        assert (outcome.reason, outcome.text, outcome.usage) == ("answered", "so", Usage(2_000, 10))

    in_worker(database, breaking_off(model), first)
    in_worker(database, breaking_off(model), second)


class CallsAfterwards(BreaksOff):
    """Breaks off, then calls a tool on and on."""

    async def _answer(self) -> AsyncGenerator[ChatUpdate, None]:
        yield ChatUpdate(text="so", usage=Usage(1_000))
        if self.asked == 1:
            self.has_begun.set()
            await asyncio.Event().wait()
        yield ChatUpdate(message_done=paying("Ann"), finish_reason="tool_calls")


def test_a_budget_counts_what_an_answer_that_broke_off_had_cost(tmp_path: Path) -> None:
    database, payments, model = f"sqlite:///{tmp_path}/runs.db", Payments(), CallsAfterwards()

    async def first(runs: DurableRuns) -> None:
        await runs.start("turn", "run-1", "go")
        await model.has_begun.wait()

    async def second(runs: DurableRuns) -> None:
        outcome = await runs.result("run-1", timeout_seconds=60)
        assert (outcome.reason, outcome.usage) == ("error", Usage(2_000))
        assert outcome.error == "BudgetExceeded: Budget: 2,000 tokens used in this turn, max_tokens=2,000"

    served = payments.served(model, 10, max_tokens=2_000)
    in_worker(database, served, first)
    in_worker(database, served, second)
    assert payments.paid == ["Ann"]
