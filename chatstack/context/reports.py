"""Reports: the sizes of requests as providers report them, and corrections learnt from these."""

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

    The factor comes from other conversations: it is shown in warnings and metrics, and decides nothing.
    """

    memory: ContextMemory
    calibration: Calibration
    counter: TokenCounter
    owner: str

    def corrected(self, opened: Opened, context: Context) -> Context:
        """Return the context with the scale from the last report of this history, and with the expected scale from the
        report of the very same request or, if there is neither, from the model's calibration.

        The very same request gets the scale that it had before, so that it is sent the same again.
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
        """Learn from a report. It is taken as the size of the context only if no inner layer has changed the request
        that was sized here."""
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
        """Return a hash of what a report depends on, beside the history: the layer, the edits, system messages, tools
        and schema, and the model."""
        request = opened.context.request
        systems = opened.seen.systems_in(request.messages)
        options = request.options
        along = (systems, options.instructions, options.tools, options.output_schema)
        return hash((self.owner, opened.model, _fingerprint_of(opened.replayed), along))


def _scale(anchor: Anchor, counted: int) -> float:
    return anchor.corrected(counted, anchor.factor) / counted


def _fingerprint_of(record: Record | None) -> int:
    return 0 if record is None else record.fingerprint
