"""Dollars of a run: each answer and each summary costs what the model that wrote it costs, here and after a resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from decimal import Decimal

import pytest

from chatstack import (
    BrokenStreamError,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    Fallback,
    Message,
    RateLimitError,
    ServerError,
    StoreError,
    Summarizer,
    Text,
    Usage,
)
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ProviderInfo
from chatstack.loop.context import IterativeContext
from chatstack.loop.journal import AnswerBrokeOff, Entry, ModelAnswered, histories
from chatstack.loop.results import IterativeResult
from chatstack.testing import Answer, ScriptedClient
from chatstack.tokens.prices import price_of
from chatstack.values.responses import FinishReason
from tests.loop.runs import InMemory, call, fresh, look, looped, run


def model(answers: Sequence[Answer], name: str = "gpt-4o") -> ScriptedClient:
    return ScriptedClient(answers, info=ProviderInfo(name="openai", model=name))


def cost_of(name: str, usage: Usage) -> Decimal:
    price = price_of(name)
    cost = price.of_usage(usage) if price is not None else None
    assert cost is not None
    return cost


def long_prompt(context: IterativeContext) -> list[Message]:
    return [Message.user("x " * 300) if at % 2 == 0 else Message.assistant("y " * 300) for at in range(9)]


def test_a_summary_costs_what_the_model_that_wrote_it_costs() -> None:
    stack = ChatStack(model(["fine"])).use(
        Summarizer, max_tokens=300, keep_recent_turns=1, summary_client=model(["They talked."], "gpt-4o-mini")
    )
    result = run(looped(stack.build(), long_prompt, max_cost=1))
    assert result.overhead_usage.total_tokens > 100
    assert result.cost == cost_of("gpt-4o", result.usage) + cost_of("gpt-4o-mini", result.overhead_usage)


def test_an_answer_of_a_fallback_costs_what_its_own_model_costs() -> None:
    stack = ChatStack(model([RateLimitError("no")])).use(Fallback, clients=[model(["fine"], "gpt-4o-mini")])
    result = run(looped(stack.build(), max_cost=1))
    assert result.cost == cost_of("gpt-4o-mini", result.usage) > 0


def test_after_a_resume_everything_costs_what_it_cost_before() -> None:
    journal = InMemory()

    def lived(answers: Sequence[Answer], writes: str) -> IterativeResult:
        stack = ChatStack(model(answers)).use(
            Summarizer, max_tokens=300, keep_recent_turns=1, summary_client=model(["They talked."], writes)
        )
        loop = looped(stack.build(), long_prompt, [look], max_cost=1, journal=journal)
        return run(loop, fresh(run_id="r"))

    failed = lived([[call("look", what="a")], ServerError("down")], "gpt-4o-mini")
    assert failed.overhead_usage.total_tokens > 100
    resumed = lived(["done"], "gpt-4o")
    first, second = (each for each in journal.written if isinstance(each, ModelAnswered))
    before = cost_of("gpt-4o", first.usage) + cost_of("gpt-4o-mini", first.overhead_usage)
    since = cost_of("gpt-4o", second.usage) + cost_of("gpt-4o", second.overhead_usage)
    assert (failed.cost, resumed.cost) == (before, before + since)


class TellsEarly(ChatFronts):
    """Tells the input of each answer as it begins; the first answer calls a tool, the second breaks off."""

    info = ProviderInfo(name="openai", model="gpt-4o")

    def __init__(self, break_off: Callable[[], None] | None) -> None:
        self.answers = 0
        self.break_off = break_off

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._answer())

    async def _answer(self) -> AsyncGenerator[ChatUpdate, None]:
        self.answers += 1
        yield ChatUpdate(text="so", usage=Usage(1_000), model="gpt-4o-mini")
        if self.answers == 2 and self.break_off is not None:
            self.break_off()
            await asyncio.sleep(60)
        calls = () if self.break_off is None else (call("look", what="a"),)
        finish: FinishReason = "tool_calls" if calls else "stop"
        done = Message("assistant", (Text("so"), *calls))
        yield ChatUpdate(message_done=done, usage=Usage(0, 10), finish_reason=finish, model="gpt-4o-mini")


@pytest.mark.parametrize("ends", ["error", "cancelled"])
def test_what_an_answer_that_broke_off_has_cost_counts_after_a_resume(ends: str) -> None:
    journal, context = InMemory(), fresh(run_id="r")

    def break_off() -> None:
        if ends == "error":
            raise BrokenStreamError("cut")
        context.cancellation.cancel()

    ended = run(looped(TellsEarly(break_off), max_cost=1, journal=journal), context)
    assert (ended.reason, ended.usage) == (ends, Usage(2_000, 10))
    assert isinstance(journal.written[-1], AnswerBrokeOff)  # an older version refuses it, and takes it for no answer
    resumed = run(looped(TellsEarly(None), max_cost=1, journal=journal), fresh(run_id="r"))
    assert (resumed.reason, resumed.text, resumed.usage) == ("answered", "so", Usage(3_000, 20))
    assert resumed.cost == cost_of("gpt-4o-mini", resumed.usage)
    assert [(record.usage, record.model_calls) for record in resumed.iterations] == [(resumed.usage, 2)]
    assert [len(messages) for messages in histories(journal.written)] == [4]  # prompt, call, result, answer


class Unwell(InMemory):
    """A journal that cannot write what an answer has cost that broke off."""

    def __init__(self, trouble: str) -> None:
        super().__init__()
        self.trouble = trouble

    async def append(self, run_id: str, number: int, entry: Entry) -> None:
        if isinstance(entry, AnswerBrokeOff):
            if self.trouble == "fails":
                raise StoreError("the disk is full")
            await asyncio.sleep(60)
        await super().append(run_id, number, entry)


@pytest.mark.parametrize("trouble", ["none", "fails", "hangs"])
def test_a_run_whose_task_is_cancelled_writes_what_its_answer_has_cost_and_stays_cancelled(
    trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chatstack.loop.journal.LAST_WRITE_SECONDS", 0.05)
    journal, has_begun = InMemory() if trouble == "none" else Unwell(trouble), asyncio.Event()

    async def cancelled() -> bool:
        loop = looped(TellsEarly(has_begun.set), max_cost=1, journal=journal)
        running = asyncio.create_task(loop.run(fresh(run_id="r")))
        await has_begun.wait()
        running.cancel()
        await asyncio.wait({running})
        return running.cancelled()

    assert asyncio.run(asyncio.wait_for(cancelled(), 30))
    assert [type(each).__name__ for each in journal.written].count("AnswerBrokeOff") == (trouble == "none")
    resumed = run(looped(TellsEarly(None), max_cost=1, journal=journal), fresh(run_id="r"))
    assert resumed.usage == Usage(3_000 if trouble == "none" else 2_000, 20)
    assert resumed.cost == cost_of("gpt-4o-mini", resumed.usage)
