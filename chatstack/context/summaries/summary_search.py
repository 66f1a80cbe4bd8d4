"""Searching for summaries: which ones there are for a history, and which one has to be written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.decisions.policy import Policy
from chatstack.context.decisions.reconstructing import Reconstruction
from chatstack.context.edits.context import Context
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.records import Record
from chatstack.context.edits.summaries import summary_message
from chatstack.context.histories.sizes import sized
from chatstack.context.requests.asking import Asking, aside, ask, call
from chatstack.context.requests.opened import Opened
from chatstack.context.summaries.folding import OldestIntoSummary, cut_in
from chatstack.context.summaries.kept_summaries import (
    Due,
    FindSummary,
    KeptSummaries,
    Subject,
    goes_further,
    sent_before,
)
from chatstack.values.messages import Annotation


@dataclass(frozen=True, slots=True)
class SummarySearch:
    """The summaries of histories, as one layer wants them. ``model`` is always the one that writes them."""

    strategy: OldestIntoSummary
    editing: ContextEditing
    kept: KeptSummaries

    @property
    def policy(self) -> Policy:
        """The strategy, with a placeholder for each summary."""
        return Policy(self.expected, self.strategy.is_due, _sizes_of)

    def found(self, context: Context, opened: Opened, model: str) -> Asking[tuple[Context, Due | None]]:
        """Return the context with the summaries that exist, and what has to be summarized beside them, if anything.

        The cuts are computed from the first message whose edits are not known, so that each process, and each branch,
        comes to the same cuts and finds the summaries that were written for them. If nothing can be summarized, a
        warning says so, and the search is not repeated for every message.
        """
        strategy = self.strategy
        opened.is_pending = False
        if not strategy.is_due(context) or self.waits(context, opened):
            return context, None
        came = self.editing.as_it_came(context, opened)
        past = self.editing.past_of(came, opened, self.policy)
        last, told = (yield from self.last_cut(opened, model)), opened.replayed
        if goes_further(last, opened):
            cut = self.editing.again(last, came, opened)
            if cut is not None:
                told = opened.replayed if opened.since else last  # to go by an own cut again is no edit
                context, opened.replayed, opened.since = cut, last, max(last.reach, opened.since)
                past.wait = None
        known, missing = opened.replayed, None
        if strategy.is_due(context):
            known, missing = yield from self._known(past, opened, model)
        if known is not None and known is not told:
            why = "there is a summary of these messages"
            after = yield from self.editing.adopt(known, came, opened, strategy.name, why)
            if after is came:  # the verifier did not let it pass, and has said so
                return context, None
            context = after
        if missing is not None:
            record, subject, sent = missing
            return context, Due(cut_in(context, opened, record), subject, sent)
        if strategy.is_due(context):
            opened.wait = past.wait
            why = f"{strategy.limits.excess(context)}, and too little of it may be summarized now"
            self.editing.say_ineffective(strategy.name, context, opened, why)
        return context, None

    def waits(self, context: Context, opened: Opened) -> bool:
        """Return True if nothing could be summarized on an earlier call, and nothing has changed since."""
        return self.policy.is_waiting(opened.wait, context, opened.seen)

    def _known(
        self, past: Reconstruction, opened: Opened, model: str
    ) -> Asking[tuple[Record | None, tuple[Record, Subject, int] | None]]:
        """Return the last edits whose summaries exist, those in force included, and the first edits after them that
        lack one, with its subject, and the length of the request sent before."""
        since, record, missing = opened.since, opened.replayed, None
        known = record
        while step := (yield from aside(partial(past.first, since, record), opened.seen.length)):
            sent = sent_before(opened.seen, step.length)
            subject = self.kept.subject(opened, step.record, model, sent)
            summary = yield from ask(FindSummary(self.kept, subject, opened.seen))
            if summary is None:
                record, missing = step.record, (step.record, subject, sent)
            else:
                record = known = step.record.with_summary(summary)
                missing = None
            since = step.length
        return known, missing

    def expected(self, context: Context) -> Plan | None:
        """Return the plan for a context, with a placeholder of the expected size for the summary."""
        cut = self.strategy.cut(context)
        if cut is None:
            return None
        folded = sum(context.sizes[at] for at in cut.folded)
        summary = summary_message("", Annotation(self.strategy.name))
        tokens = min(self.strategy.expected_tokens(context, cut), max(0, folded - 1))
        return self.strategy.plan(context, cut, sized(summary, tokens, self.editing.counter))

    def last_cut(self, opened: Opened, model: str) -> Asking[Record | None]:
        """Return the last cut of this conversation, with its summary, if it has an id."""
        if opened.context.request.conversation_id is None:
            return None
        place = self.kept.place(model)
        return (yield from call(self.kept.agreement.recalled, place, opened.seen, opened.context, tuple)).record


def _sizes_of(context: Context) -> tuple[int, int]:
    """Return the sizes that a search waits on after it found nothing to summarize."""
    return context.tokens, context.items
