"""One iteration: its model calls, its tools, and what an interrupted run has already done of it."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Sequence
from decimal import Decimal
from functools import partial
from typing import Any, cast

from msgspec.structs import replace

from chatstack.client.checks import send_to
from chatstack.errors import BudgetExceeded, InputError
from chatstack.layers.budget import Budget, answering
from chatstack.layers.spending import Account, Meter
from chatstack.loop.calling import called
from chatstack.loop.context import CancelledRun, IterativeContext, PaidOut
from chatstack.loop.journal import AnswerBrokeOff, IterationStarted, Journalled, ModelAnswered, ToolEnded, ToolStarted
from chatstack.loop.results import IterationRecord, ToolCallResult
from chatstack.loop.settings import LoopSettings
from chatstack.loop.workspace import Workspace
from chatstack.telemetry.turns import current_turn
from chatstack.tools.execution import Outcome, ToolRunner
from chatstack.tools.parameters import ToolContext
from chatstack.tools.together import run_together
from chatstack.tools.tool import Tool
from chatstack.tools.turn import OVER_LIMIT, ToolTurn, limits_in, refused
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall, ToolResult
from chatstack.values.requests import ChatRequest, declared_names
from chatstack.values.responses import ChatResponse, ChatUpdate, Usage

INTERRUPTED = (
    "Error: the program stopped while this call was running, so nobody knows whether it took effect. It was not run "
    "again. Look whether it did before you call it again."
)
STOPPED = "Error: not run, because somebody has stopped the run."


class Iteration:
    """Runs one iteration. ``record`` gives its state at any time."""

    def __init__(
        self,
        loop: LoopSettings,
        context: IterativeContext,
        journal: Journalled,
        account: Account,
        calls_left: int,
    ) -> None:
        self._loop = loop
        self._context = context
        self._journal = journal
        self._account = account
        self._calls_left = calls_left
        self._runner = _runner(loop, context)
        self._started_at = time.perf_counter()
        self._done: dict[tuple[int, int], ToolCallResult] = {}
        """Results by round and position, as soon as they are there."""
        self._text = ""
        self._asked = 0
        self._usage = self._overhead = Usage()
        self.pending: tuple[ToolCallResult, ...] = ()
        """Results that the model has not seen."""
        self.spent = Usage()
        """Usage of this process; the record also includes that of an interrupted run."""
        self.ended_in_words = False
        self.first_request: ChatRequest | None = None
        self.last_answer: ChatResponse | None = None

    async def run(self) -> None:
        """Call the model, run its tools, and call again, as often as the mode allows."""
        for broken in self._journal.broken:
            self._count(broken.usage, broken.overhead_usage)
        turn = ToolTurn(await self._request(), self._calls_left, limits_in(self._loop.client))
        request, rounds = turn.request, 0
        self.first_request = request
        while True:
            answer = self.last_answer = await self._answer(request)
            turn.heard(answer, self._journal.begun(turn.round))
            self._text = answer.text or self._text
            if not turn.open_calls:
                self.ended_in_words = turn.is_over(self._runner.tools)
                if self.ended_in_words or self._is_budget_used_up():
                    return
                request = turn.next_request()
                continue
            refusal = turn.refusal(answer)
            outcomes = self._refuse(turn, 0, refusal) if refusal else await self._run(turn)
            turn.add(outcomes)
            rounds += 1
            is_last = refusal or rounds >= self._loop.rounds or turn.limit_reached or turn.waits_for_caller
            if is_last or self._is_budget_used_up():
                self.pending = tuple(self._done[turn.round, position] for position in range(len(outcomes)))
                return
            request = turn.next_request()

    def record(self, digest: str = "", *, is_partial: bool = False) -> IterationRecord:
        """Return the record of the iteration so far."""
        context = self._context
        return IterationRecord(
            iteration=context.iteration,
            text=self._text,
            tool_calls=tuple(self._done[place] for place in sorted(self._done)),
            model_calls=self._asked,
            usage=self._usage,
            overhead_usage=self._overhead,
            seconds=time.perf_counter() - self._started_at,
            workspace_digest=digest,
            is_final=context.is_finalizing,
            is_partial=is_partial,
        )

    async def _request(self) -> ChatRequest:
        """Return the request: with a fresh prompt, or the one that an interrupted run had."""
        loop, context, started = self._loop, self._context, self._journal.started
        if started is not None:
            prompt = started.prompt
        else:
            if loop.on_iteration_start is not None:
                await called(loop.on_iteration_start, context)
            prompt = messages_of(await called(loop.prompt, context))
            state = self._journal.changed(context.state)
            started = IterationStarted(context.iteration, prompt, context.is_finalizing, state, loop.name)
            await self._journal.write(started)
        given = declared_names(loop.options.tools)
        offered = tuple(
            each.declaration() for each in loop.all_tools if each.name not in given and loop.allows(each.name, context)
        )
        tools = (*loop.options.tools, *offered)
        options = loop.options.but(
            instructions=loop.instructions or loop.options.instructions,
            tools=tools,
            tool_choice="none" if context.is_finalizing and tools else loop.options.tool_choice,
        )
        return ChatRequest(prompt, options, context.run_id)

    async def _answer(self, request: ChatRequest) -> ChatResponse:
        known = self._journal.answer(self._asked)
        if known is not None:
            self._asked += 1
            self._count(known.usage, known.overhead_usage)
        else:
            known = await self._ask(request)
            await self._journal.write(known)
        return ChatResponse(messages=known.messages, usage=known.usage, finish_reason=known.finish_reason)

    async def _ask(self, request: ChatRequest) -> ModelAnswered:
        if self._context.cancellation.is_requested:
            raise CancelledRun
        self._asked += 1
        turn = current_turn()
        if turn is not None:
            turn.asked = request.messages
        paid = Account()
        try:
            answer = await self._context.cancellation.ending(self._whole_answer(request, paid))
        except (Exception, asyncio.CancelledError) as error:
            await self._journal.broke_off(AnswerBrokeOff(paid.usage, paid.overhead, self._cost(paid)), error)
            if isinstance(error, BudgetExceeded):
                raise PaidOut from error
            raise
        finally:  # paid for, even where the answer broke off
            self.spent = self.spent + paid.usage
            self._account.include(paid.usage, paid.overhead, paid.cost)
            self._count(paid.usage, paid.overhead)
        finish, model = answer.finish_reason, answer.model
        return ModelAnswered(answer.messages, paid.usage, paid.overhead, finish, model, self._cost(paid))

    def _cost(self, paid: Account) -> Decimal | None:
        return paid.cost if self._loop.asked_price is not None else None

    async def _whole_answer(self, request: ChatRequest, paid: Account) -> ChatResponse:
        meter = Meter(paid, self._loop.allowance, self._loop.asked_price)
        try:
            stream = await send_to(self._loop.traced_client, request)
        except BudgetExceeded as error:
            if not _has_conversation_budget(self._loop):  # else counted here already, answer by answer
                meter.count(ChatUpdate(usage=error.usage, overhead_usage=error.overhead_usage))
            raise
        try:
            async for update in stream:
                meter.count(update)
            return await stream.response()
        finally:
            await stream.aclose()

    def _count(self, usage: Usage, overhead: Usage) -> None:
        self._usage, self._overhead = self._usage + usage, self._overhead + overhead

    def _is_budget_used_up(self) -> bool:
        """Return True if the model may not be called again. Answers already in the journal were allowed."""
        return self._journal.answer(self._asked) is None and bool(self._loop.allowance.excess(self._account, "run"))

    async def _run(self, turn: ToolTurn) -> list[Outcome]:
        """Run the calls of this round together; calls beyond the limit are answered, not run."""
        allowed = turn.calls_left

        async def one(place: tuple[int, ToolCall]) -> Outcome:
            about = replace(turn.context_of(place[1]), round=self._context.iteration)
            outcome = await self._run_one(turn.round, *place, about)
            self._done[turn.round, place[0]] = _told(place[1], outcome)
            return outcome

        outcomes = await run_together(one, list(enumerate(turn.open_calls))[:allowed], self._loop.max_concurrency)
        turn.calls_run += sum(outcome.was_run for outcome in outcomes)
        if any(outcome.result.output is STOPPED and not outcome.was_run for outcome in outcomes):
            raise CancelledRun
        return outcomes + self._refuse(turn, allowed, OVER_LIMIT)

    def _refuse(self, turn: ToolTurn, start: int, why: str) -> list[Outcome]:
        """Answer the calls from that position on without running them."""
        outcomes = [refused(call, why) for call in turn.open_calls[start:]]
        for position, outcome in enumerate(outcomes, start):
            self._done[turn.round, position] = _told(turn.open_calls[position], outcome)
        return outcomes

    async def _run_one(self, round_number: int, position: int, call: ToolCall, about: ToolContext) -> Outcome:
        done = self._journal.tool(round_number, position)
        if done is not None:
            return Outcome(done.result, was_run=done.was_run)
        if self._context.cancellation.is_requested:
            return refused(call, STOPPED)
        found = self._runner.tools.get(call.name)
        if self._journal.was_interrupted(round_number, position) and (found is None or not found.idempotent):
            outcome = Outcome(ToolResult(call.id, call.name, INTERRUPTED, is_error=True))
        else:
            if self._loop.on_tool_call is not None:
                await called(self._loop.on_tool_call, call, self._context)
            approve = partial(self._approve, ToolStarted(round_number, position))
            outcome = await dataclasses.replace(self._runner, approve=approve).run(call, about)
        state = self._journal.changed(self._context.state)
        await self._journal.write(ToolEnded(round_number, position, outcome.result, outcome.was_run, state))
        return outcome

    async def _approve(self, start: ToolStarted, call: ToolCall, about: ToolContext) -> bool | str:
        """Decide if the call may be run. It is journalled as begun only once approved, however long that takes."""
        if not self._loop.allows(call.name, self._context):
            return f"{call.name} may not be called now."
        said: bool | str = True
        if self._loop.approve is not None:
            said = await called(self._loop.approve, call, about)
        if said is True:
            await self._journal.write(start)
        return said


def _runner(loop: LoopSettings, context: IterativeContext) -> ToolRunner:
    """Return a runner of the loop's tools for this run, with its workspace."""

    def resolve(kind: type[object]) -> object:
        if issubclass(kind, Workspace) and isinstance(context.workspace, kind):
            return context.workspace
        if kind is IterativeContext:
            return context
        if loop.resolve is None:
            raise LookupError(kind)
        return loop.resolve(kind)

    tools: dict[str, Tool[..., Any]] = {each.name: each for each in loop.all_tools}
    return ToolRunner(
        tools,
        loop.telemetry,
        resolve,
        loop.tool_timeout_seconds,
        loop.include_error_details,
        propagate=loop.propagate,
        owner="IterativeLoop",
    )


def _told(call: ToolCall, outcome: Outcome) -> ToolCallResult:
    return ToolCallResult(call.name, call.arguments, outcome.result, outcome.was_run)


def _has_conversation_budget(loop: LoopSettings) -> bool:
    return any(isinstance(layer, Budget) and layer.per == "conversation" for layer in answering(loop.client))


def messages_of(given: object) -> tuple[Message, ...]:
    """Return the result of a prompt function as messages. Raises ``InputError`` if it has another type."""
    if isinstance(given, str):
        return (Message.user(given),)
    if isinstance(given, Message):
        return (given,)
    kind = type(given).__name__
    several = tuple(cast("Sequence[object]", given)) if isinstance(given, list | tuple) else ()
    messages = tuple(each for each in several if isinstance(each, Message))
    if not messages or len(messages) != len(several):
        raise InputError(f"IterativeLoop: prompt gave a {kind}, not text, a Message, or a list of at least one")
    return messages
