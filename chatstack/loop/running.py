"""A run of an iterative loop: iteration after iteration, until it ends for a stated reason."""

from __future__ import annotations

import asyncio
import contextvars
import time
from typing import Self, cast

from opentelemetry.trace import Span, set_span_in_context

from chatstack import semconv
from chatstack.client.closing import Closing
from chatstack.client.collecting import outside_collector, seconds_since
from chatstack.errors import InputError, StreamBusyError
from chatstack.layers.spending import Account
from chatstack.loop.calling import called
from chatstack.loop.context import CancelledRun, IterativeContext, PaidOut
from chatstack.loop.iteration import Iteration
from chatstack.loop.journal import IterationEnded, Journalled, ModelAnswered
from chatstack.loop.results import EndReason, IterationRecord, IterativeResult
from chatstack.loop.settings import LoopSettings
from chatstack.telemetry.content import as_attributes, content_of, shown_input, shown_output
from chatstack.telemetry.emission import say_dropped
from chatstack.telemetry.spans import Value, end_span, error_type, start_span
from chatstack.telemetry.turns import Turn, attached, inside, of_conversation
from chatstack.tools.turn import canonical
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, Usage


class IterativeRun(Closing):
    """An async iterator over the iterations as they end; leaving its ``async with`` block stops it. For one task.

    A resumed run yields only the iterations that end now; ``context.records`` and the result have all of them.
    """

    def __init__(self, loop: LoopSettings, context: IterativeContext) -> None:
        self._loop = loop
        self._context = context
        self._account = Account()
        self._spent = Usage()
        self._journal = Journalled(loop.journal, context.run_id, loop.name)
        self._turn: Turn | None = None
        self._first_request: ChatRequest | None = None
        self._last_answer: ChatResponse | None = None
        self._started_at = time.perf_counter()
        self._is_read = False
        self._error: BaseException | None = None
        self.reason: EndReason | None = None
        """The reason why the run ended; None until then."""

    async def result(self) -> IterativeResult:
        """Run to the end, and return the result. May be called again."""
        async for _ in self:
            pass
        account = self._account
        assert self.reason is not None
        return IterativeResult(
            reason=self.reason,
            iterations=tuple(self._context.records),
            usage=account.usage,
            overhead_usage=account.overhead,
            cost=account.cost if self._loop.max_cost is not None else None,
            error=self._error,
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> IterationRecord:
        if self.reason is not None:
            raise StopAsyncIteration
        if self._is_read:
            raise StreamBusyError("another task is reading this run; one at a time")
        self._is_read = True
        try:
            turn = self._turn or await self._open()
            with attached(inside(turn)):
                record = await self._next(turn)
        except CancelledRun:
            self._end("cancelled", None)
        except PaidOut as error:
            self._end("budget", error.__cause__)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and not task.cancelling():  # a hook has cancelled something of its own
                self._end("error", error)
            else:
                self._end("cancelled", error)
                raise
        except Exception as error:  # noqa: BLE001 - it is the reason why the run ends, and in its result
            self._end("error", error)
        except BaseException as error:
            self._end("cancelled", error)
            raise
        else:
            if record is not None:
                return record
        finally:
            self._is_read = False
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop here; what runs in another task may finish, and nothing is called after it."""
        if self.reason is None:
            self._context.cancellation.cancel()
            self._end("cancelled", None)

    def __del__(self) -> None:
        if self.reason is None and self._turn is not None:
            # As for streams: never set a context variable in a finalizer.
            contextvars.copy_context().run(self._end, "cancelled", None)

    async def _open(self) -> Turn:
        """Resume from the journal, and open the span of the run."""
        loop, context, journal = self._loop, self._context, self._journal
        about = {semconv.OPERATION_NAME: "invoke_workflow", semconv.WORKFLOW_NAME: loop.name}
        if "openinference" in loop.telemetry.display_hints:
            most = f"at most {_iterations(loop.max_iterations)}"
            about[semconv.OPENINFERENCE_INPUT] = f"{context.run_id}, {most}" if context.run_id else most
        listener = loop.feed.put if loop.feed.is_followed(context.run_id) else None
        root = start_span(loop.telemetry.tracer, f"invoke_workflow {loop.name}", of_conversation(context.run_id, about))
        turn = self._turn = Turn(root, context.run_id, listener)
        turn.tell("turn_started", loop.name)
        await loop.prepare()
        await journal.open()
        for answered in journal.paid:
            if answered.cost is not None:
                self._account.include(answered.usage, answered.overhead_usage, answered.cost)
                continue
            model = answered.model if isinstance(answered, ModelAnswered) else ""
            self._account.add(answered.usage, loop.allowance.price_of_answer(model, loop.asked_price))
            self._account.add(answered.overhead_usage, loop.asked_price, is_overhead=True)
        for ended in journal.finished:
            context.records.append(ended.record)
            context.last_tool_results = ended.last_tool_results
            context.iteration = ended.record.iteration + 1
        if journal.state is not None:
            context.state.clear()
            context.state.update(journal.state)
        return turn

    async def _next(self, turn: Turn) -> IterationRecord | None:
        """Return the next iteration's record; None if the run has ended."""
        context, journal = self._context, self._journal
        reason = self._must_stop()
        if reason is not None:
            self._end(reason, None)
            return None
        if journal.started is not None:
            context.is_finalizing = journal.started.is_final
        else:
            context.is_finalizing = self._loop.allowance.used(self._account) >= self._loop.pressure
        turn.count(context.iteration, self._account)  # not the run itself: a dropped one would wait for the collector
        turn.tell("iteration_started", self._loop.name, numbers={"iteration": context.iteration})
        iteration = Iteration(self._loop, context, journal, self._account, self._calls_left())
        span = self._iteration_span()
        stopped_by: BaseException | None = None
        try:
            with attached(set_span_in_context(span)):
                reason = await self._run(iteration)
        except BaseException as error:
            stopped_by = GeneratorExit() if isinstance(error, CancelledRun) else error
            if len(context.records) == context.iteration:
                context.records.append(iteration.record(is_partial=True))
            raise
        finally:
            record = context.records[-1]
            self._first_request = self._first_request or iteration.first_request
            self._last_answer = iteration.last_answer or self._last_answer
            self._spent = self._spent + iteration.spent
            _set_usage(span, iteration.spent)
            self._tell_ended(turn, record, iteration.spent, end_span(span, stopped_by))
        context.iteration += 1
        if reason is not None:
            self._end(reason, None)
        return record

    async def _run(self, iteration: Iteration) -> EndReason | None:
        """Run one iteration and write its record; return the reason if it was the last."""
        loop, context = self._loop, self._context
        await iteration.run()
        record = iteration.record(await asyncio.to_thread(context.workspace.digest))
        context.records.append(record)
        context.last_tool_results = iteration.pending
        if loop.on_iteration_end is not None:
            await called(loop.on_iteration_end, record, context)
        reason = await self._has_ended(iteration)
        state = self._journal.changed(context.state)
        await self._journal.write(IterationEnded(record, iteration.pending, state, reason))
        return reason

    def _must_stop(self) -> EndReason | None:
        """Return the reason why no iteration may begin. An interrupted iteration is finished, limit or not."""
        finished = self._journal.finished
        if finished and finished[-1].reason is not None:
            return finished[-1].reason
        if self._context.cancellation.is_requested:
            return "cancelled"
        return self._limit_reached() if self._journal.started is None else None

    def _limit_reached(self) -> EndReason | None:
        if self._loop.allowance.excess(self._account, "run"):
            return "budget"
        return "max_iterations" if len(self._context.records) >= self._loop.max_iterations else None

    async def _has_ended(self, iteration: Iteration) -> EndReason | None:
        """Return the reason why this iteration was the last, or None. Completion takes precedence over all else."""
        loop, context = self._loop, self._context
        if loop.is_complete is not None:
            said = cast("object", await called(loop.is_complete, context))
            if said is not None and not isinstance(said, bool):  # a generator, or a method not called, is no yes
                raise InputError(f"IterativeLoop: is_complete gave a {type(said).__name__}, not True or False")
            if said:
                return "completed"
        elif iteration.ended_in_words and not context.is_finalizing:
            return "answered"
        if context.is_finalizing:
            return "budget"
        if self._calls_left() <= 0:
            return "max_tool_calls"
        if _has_stalled(context.records, loop.max_stalled_iterations):
            return "stalled"
        return self._limit_reached()

    def _end(self, reason: EndReason, error: BaseException | None) -> None:
        """Close the span of the run; the outcome is in the result."""
        if self.reason is not None:
            return
        self.reason = reason
        self._error = error if reason in ("error", "budget") else None
        turn, self._turn = self._turn, None
        if turn is not None:
            outside_collector(self._tell_end, turn, reason, error)

    def _tell_end(self, turn: Turn, reason: EndReason, error: BaseException | None) -> None:
        dropped = self._loop.feed.take_dropped(turn.conversation_id)
        if dropped:
            with attached(inside(turn)):
                say_dropped(self._loop.telemetry, dropped)
        if reason == "max_iterations":
            self._warn_of_limit()
        turn.root.set_attribute(semconv.END_REASON, reason)
        _set_usage(turn.root, self._spent)
        if turn.root.is_recording():
            self._show(turn, reason, error)
        stop = error or GeneratorExit() if reason == "cancelled" else self._error if reason == "error" else None
        kind = end_span(turn.root, stop)
        seconds = seconds_since(self._started_at)
        labels = {semconv.WORKFLOW_NAME: self._loop.name}
        self._loop.telemetry.instruments.workflow_duration.record(seconds, labels, error=kind)
        numbers = {"iterations": len(self._context.records), "seconds": seconds, "warnings": turn.warning_count}
        turn.tell("turn_ended", self._loop.name, message=reason, error=kind, numbers=numbers)

    def _show(self, turn: Turn, reason: EndReason, error: BaseException | None) -> None:
        """Show the outcome on the root span, for lists of traces, and, if text is captured, prompt and answer."""
        telemetry, root, asked, answer = self._loop.telemetry, turn.root, self._first_request, self._last_answer
        ended = f"{reason} ({error_type(error)})" if reason == "error" else reason
        shown = "; ".join(filter(None, (f"{ended}, {_iterations(len(self._context.records))}", turn.story)))
        if telemetry.captures_on_spans and asked is not None:
            root.set_attributes(as_attributes(content_of(asked, answer)))
        if "openinference" in telemetry.display_hints:
            if telemetry.captures_on_spans and asked is not None:
                root.set_attribute(semconv.OPENINFERENCE_INPUT, shown_input(asked.messages))
                shown = shown_output(shown, answer.text if answer is not None else "")
            root.set_attribute(semconv.OPENINFERENCE_OUTPUT, shown)

    def _warn_of_limit(self) -> None:
        self._loop.telemetry.warn(
            "iteration_limit_reached",
            f"{_iterations(len(self._context.records))}, and not complete",
            {semconv.ITERATION: self._context.iteration},
            span_name="iterative_loop",
        )

    def _iteration_span(self) -> Span:
        loop, context = self._loop, self._context
        about: dict[str, Value] = {
            semconv.OPERATION_NAME: "invoke_agent",
            semconv.AGENT_NAME: loop.name,
            semconv.ITERATION: context.iteration,
        }
        return start_span(loop.telemetry.tracer, f"invoke_agent {loop.name}", of_conversation(context.run_id, about))

    def _tell_ended(self, turn: Turn, record: IterationRecord, spent: Usage, error: str) -> None:
        numbers = {
            "iteration": record.iteration,
            "tool_calls": len(record.tool_calls),
            "input_tokens": spent.input_tokens,
            "output_tokens": spent.output_tokens,
            "seconds": record.seconds,
            "budget": round(self._loop.allowance.used(self._account), 4),
        }
        turn.tell("iteration_ended", self._loop.name, error=error, numbers=numbers)

    def _calls_left(self) -> int:
        most = self._loop.max_total_tool_calls
        if most is None:
            return 1_000_000
        return most - sum(call.was_run for record in self._context.records for call in record.tool_calls)


def _iterations(count: int) -> str:
    return f"{count:,} iteration{'' if count == 1 else 's'}"


def _set_usage(span: Span, usage: Usage) -> None:
    span.set_attributes({semconv.USAGE_INPUT: usage.input_tokens, semconv.USAGE_OUTPUT: usage.output_tokens})


def _has_stalled(records: list[IterationRecord], most: int) -> bool:
    """Return True if the last ``most`` iterations made the same calls and left the same workspace."""
    last = records[-most:]
    return len(last) == most and len({_signature(record) for record in last}) == 1


def _signature(record: IterationRecord) -> tuple[object, ...]:
    return record.workspace_digest, *((call.name, canonical(call.arguments)) for call in record.tool_calls)
