"""Reports: what providers say of the size of a request, and what is learnt from it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from chatstack.context.context import Context
from chatstack.context.conversations import LastAnswer, LastReport
from chatstack.context.memory import ContextMemory
from chatstack.context.opened import Opened
from chatstack.context.own_past import Entry
from chatstack.context.records import Record
from chatstack.tokens.caching import CACHED_FROM
from chatstack.tokens.calibration import Anchor, Calibration, is_plausible
from chatstack.tokens.counter import TokenCounter
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import Usage

_COLD_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Reports:
    """Sizes as providers reported them, for one context layer: an anchor within a conversation, a factor across all.

    The factor is other conversations' news: it is told, and decides nothing.
    """

    memory: ContextMemory
    calibration: Calibration
    counter: TokenCounter
    owner: str

    def corrected(self, opened: Opened, context: Context) -> Context:
        """The context with the scale that the last report of this history tells; and with what the report of the very
        same request lets expect, or, where there is neither, the reports of the model.

        The very same request is weighed as it was before, so that it goes out the same again.
        """
        counted, seen = context.input_tokens, opened.seen
        if not counted:
            return context
        known = again = None
        if seen.conversation.reports:
            terms = self._terms(opened)
            known, again = seen.conversation.last_report(terms, seen.length), seen.conversation.reports.get(terms)
        scale = 1.0
        if opened.scale is not None:
            scale = opened.scale
            opened.is_anchored = scale != 1.0
        elif known is not None and known.anchor.estimated <= counted:
            opened.is_anchored = True
            scale = _scale(known.anchor, counted)
        if again is not None and again.length == seen.length and again.anchor.estimated <= counted:
            expected = _scale(again.anchor, counted) / scale
        else:
            expected = 1.0 if opened.is_anchored else self.calibration.factor(opened.model, self.counter)
        if scale == expected == 1.0:
            return context
        return msgspec.structs.replace(context, scale=scale, expected_scale=expected)

    def learn(
        self,
        opened: Opened,
        context: Context,
        request: ChatRequest,
        sent: ChatRequest | None,
        entry: Entry,
        usage: Usage,
    ) -> None:
        """Take a report for what it is: the size of the very request that was weighed here, if nobody inside of this
        layer has changed it."""
        seen = opened.seen
        cached = usage.cache_read_tokens
        record = _fingerprint_of(opened.replayed)
        before = opened.last_answer
        expected = before.input_tokens if before is not None and before.record == record else 0
        missed = expected >= CACHED_FROM and cached < expected * _COLD_SHARE
        entry.answered = LastAnswer(self.memory.clock(), usage.input_tokens, missed, record, seen.length)
        seen.conversation.keep_answer(entry.answered)
        if sent is None or usage.input_tokens <= 0 or sent.messages is not request.messages:
            return
        if sent.options is not request.options:
            return
        self.calibration.learn(opened.model, self.counter, context.input_tokens, usage.input_tokens)
        if is_plausible(context.input_tokens, usage.input_tokens):
            terms = self._terms(opened)
            report = entry.reports[terms] = LastReport(seen.length, Anchor(context.input_tokens, usage.input_tokens))
            seen.conversation.keep_report(terms, report)

    def _terms(self, opened: Opened) -> int:
        """A hash of what a report belongs to, beside the history: the layer, what was decided, what goes along, which
        model it was."""
        request = opened.context.request
        systems = opened.seen.systems_in(request.messages)
        options = request.options
        along = (systems, options.instructions, options.tools, options.output_schema)
        return hash((self.owner, opened.model, _fingerprint_of(opened.replayed), along))


def _scale(anchor: Anchor, counted: int) -> float:
    return anchor.corrected(counted, anchor.factor) / counted


def _fingerprint_of(record: Record | None) -> int:
    return 0 if record is None else record.fingerprint
