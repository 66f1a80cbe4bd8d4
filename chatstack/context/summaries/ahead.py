"""Ahead of need: the next summary is planned from a soft mark on, written beside the calls, and used once it is due."""

from __future__ import annotations

from dataclasses import dataclass

from opentelemetry import context as otel
from opentelemetry.trace import INVALID_SPAN

from chatstack.client.background import Owner
from chatstack.context.edits.context import Context
from chatstack.context.edits.records import Record
from chatstack.context.histories.conversations import Planned, Wait
from chatstack.context.requests.asking import Asking, answered, aside, ask, call
from chatstack.context.requests.attempts import WaitForTurn
from chatstack.context.requests.opened import Opened
from chatstack.context.requests.saying import say_not_summarized
from chatstack.context.summaries.attempting import SummaryAttempting
from chatstack.context.summaries.folding import cut_in
from chatstack.context.summaries.kept_summaries import Due, FindSummary, goes_further
from chatstack.context.summaries.summary_search import SummarySearch
from chatstack.telemetry.turns import Turn, attached, with_turn
from chatstack.values.messages import Message


@dataclass(frozen=True, slots=True)
class AheadOfNeed:
    """Prepares the next summary of a history. The strategy of ``search`` has the limits of the soft mark.

    What is planned is part of the own past of a history, as edits are: a branch that goes back before it plans anew.
    The summary is an artifact like any other.
    """

    search: SummarySearch
    attempting: SummaryAttempting
    owner: Owner

    def plan(self, context: Context, opened: Opened) -> Asking[bool]:
        """Plan the next summary, if the context is over the soft mark and none is planned. Return True if it has to be
        written: see ``start``, after the request was sent."""
        seen = opened.seen
        if context.is_unstable or not seen.length or not self.search.strategy.is_due(context) or self.owner.is_closed:
            return False
        planned = opened.ahead = opened.ahead or self._recalled(opened)
        if isinstance(planned, Planned) and self._is_under_way(planned):
            return False
        if isinstance(planned, Wait) and self.search.policy.is_waiting(planned, context, seen):
            return False
        attempts, editing = self.attempting.attempts, self.search.editing
        if not attempts.may_prepare(self.attempting.writer.client, editing.owner, opened, editing.memory.clock):
            return False
        planned = yield from self._planned(context, opened)
        opened.ahead = planned or self.search.policy.wait(context, seen)
        return planned is not None and not self._is_under_way(planned)

    def start(self, context: Context, opened: Opened) -> Asking[None]:
        """Start to write what is planned, in a task of its own."""
        planned = opened.ahead
        if isinstance(planned, Planned):
            yield from call(self._start, context, opened, planned)

    async def _start(self, context: Context, opened: Opened, planned: Planned) -> None:
        turn = Turn(INVALID_SPAN, context.request.conversation_id)  # the turn that starts it may be over first
        around = with_turn(turn, otel.get_current())

        async def run() -> None:
            with attached(around):
                await answered(self._written(context, opened, planned))

        self.attempting.attempts.background.start(self.owner, planned.subject, run)

    def used(self, context: Context, opened: Opened) -> Asking[Context]:
        """Return the context, which is over the limit, with what was prepared for it, if anything was. Waits for a
        summary that is being written."""
        search, planned = self.search, opened.ahead or self._recalled(opened)
        opened.ahead = None
        if not isinstance(planned, Planned) or not goes_further(planned.record, opened):
            return context
        record = planned.record
        if not planned.is_written:
            yield from call(self.attempting.attempts.background.joined, planned.subject)
            summary = yield from ask(FindSummary(search.kept, planned.subject, opened.seen))
            if summary is None:
                return context
            record = record.with_summary(summary)
        came = search.editing.as_it_came(context, opened)
        why = f"{self.attempting.strategy.limits.excess(context)}; a summary was prepared"
        after = yield from search.editing.adopt(record, came, opened, search.strategy.name, why)
        if after is came:  # the verifier did not let it pass, and has said so
            return context
        opened.saved = came.messages_tokens - after.messages_tokens
        search.editing.telemetry.prepared("used")
        self.attempting.attempts.used(search.editing.owner, opened)
        search.editing.binding.reach(opened, after)
        return after

    def _is_under_way(self, planned: Planned) -> bool:
        """Return True if this summary is there, or is being written."""
        attempts, memory = self.attempting.attempts, self.search.editing.memory
        is_there = planned.is_written or memory.artifact(*planned.subject) is not None
        return is_there or attempts.background.runs(planned.subject)

    def _recalled(self, opened: Opened) -> Planned | None:
        """Return what was planned for an earlier request, where the last one has another end."""
        record = self.search.editing.binding.planned(opened)
        if not goes_further(record, opened):
            return None
        return self._with_subject(record, opened)

    def _planned(self, context: Context, opened: Opened) -> Asking[Planned | None]:
        search, model = self.search, self.attempting.model(opened)
        record = yield from search.last_cut(opened, model)  # another process may have prepared it
        if goes_further(record, opened):
            return self._with_subject(record, opened)._replace(is_written=True)
        record = yield from aside(
            lambda: search.editing.drafted(search.expected(context), context, opened), len(context.messages)
        )
        return None if record is None else self._with_subject(record, opened)

    def _with_subject(self, record: Record, opened: Opened) -> Planned:
        """Return planned edits with the subject of their summary, which is written after this request was sent."""
        model, length = self.attempting.model(opened), opened.seen.length
        return Planned(record, self.search.kept.subject(opened, record, model, length))

    def _written(self, context: Context, opened: Opened, planned: Planned) -> Asking[None]:
        """Write what is planned, unless it is there meanwhile."""
        kept, telemetry, made = self.search.kept, self.search.editing.telemetry, list[Message]()
        due = Due(cut_in(context, opened, planned.record), planned.subject, opened.seen.length)

        def use(summary: Message, _: object) -> bool:
            made.append(summary)
            return True

        let_next_in = yield from ask(WaitForTurn(self.attempting.attempts, due.subject))
        try:
            if (yield from ask(FindSummary(kept, due.subject, opened.seen))) is not None:
                return
            yield from self.attempting.attempt(context, due, opened, use, is_ahead=True)
        except Exception as error:  # noqa: BLE001 - nobody waits for it who could be told otherwise
            kind = type(error).__name__
            say_not_summarized(telemetry, self.search.strategy.name, context, f"it failed with {kind}", kind, None)
        except BaseException:
            telemetry.prepared("cancelled")
            raise
        finally:
            let_next_in()
        if not made:
            telemetry.prepared("failed")
        elif kept.agreement.memory.artifact(*due.subject) is None:
            telemetry.prepared("dropped")  # the conversation is not known any more
        else:
            telemetry.prepared("written")
            if context.request.conversation_id is not None:
                record = planned.record.with_summary(made[0])
                yield from call(kept.keep_cut, opened, record, self.attempting.model(opened), opened.seen.length)
