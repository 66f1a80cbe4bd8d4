"""Reports: the sizes of requests as providers report them, and corrections learnt from these."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from chatstack.context.edits.context import Context
from chatstack.context.histories.conversations import LastAnswer
from chatstack.context.histories.last_reports import LastReport, last_reports
from chatstack.context.histories.own_past import Entry
from chatstack.context.requests.opened import Opened
from chatstack.tokens.caching import CACHED_FROM
from chatstack.tokens.calibration import Anchor, Calibration, is_plausible
from chatstack.tokens.counter import TokenCounter
from chatstack.values.responses import Usage

_COLD_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class Reports:
    """Sizes as providers reported them, for context layers with one counter: an anchor within a conversation, a factor
    across all.

    The factor comes from other conversations: it is shown in warnings and metrics, and decides nothing.
    """

    calibration: Calibration
    counter: TokenCounter

    def corrected(self, opened: Opened, context: Context) -> Context:
        """Return the context with the size that it will truly have, without what the provider itself clears.

        It is scaled by the last report of this history. The expected scale is from the report of the very same request
        or, if there is neither, from the model's calibration. The very same request gets the scale that it had before,
        so that it is sent the same again.
        """
        counted, seen, clears = context.input_tokens, opened.seen, opened.provider_clears
        if not counted:
            return context
        known = again = None
        reports = seen.conversation.reports
        if reports:
            known, again = last_reports(reports, self._terms(opened, opened.above), seen.length)
        scale = 1.0
        if opened.scale is not None:
            scale = opened.scale
            opened.is_anchored = scale != 1.0
        elif known is not None and known.estimated <= counted:
            opened.is_anchored = True
            scale = _scale(known, counted)
        elif reports:  # the system prompt may be another one by now: a report under that is better than none
            near, _ = last_reports(reports, self._terms(opened, _tools_of(opened)), seen.length)
            scale = _scale(near, counted) if near is not None and near.estimated <= counted else 1.0
        if again is not None and again.length == seen.length and again.estimated <= counted:
            expected = _scale(again, counted) / scale
        else:
            is_known = opened.is_anchored or scale != 1.0
            expected = 1.0 if is_known else self.calibration.factor(opened.model, self.counter)
        if scale != 1.0 or expected != 1.0:
            context = msgspec.structs.replace(context, scale=scale, expected_scale=expected)
        if not clears:
            return context
        cleared = min(context.messages_tokens, int(clears / context.scale))
        return msgspec.structs.replace(
            context, messages_tokens=context.messages_tokens - cleared, provider_clears=cleared
        )

    def learn(self, opened: Opened, context: Context, entry: Entry, usage: Usage, *, is_news: bool = True) -> None:
        """Learn the size of a context that was sent as it is; the usage includes what the provider has cleared of it.
        ``is_news``: no other layer has learnt from it across conversations."""
        counted, reported = context.input_tokens + context.provider_clears, usage.input_tokens
        if reported <= 0:
            return
        if is_news:
            self.calibration.learn(opened.model, self.counter, counted, reported)
        if is_plausible(counted, reported):
            report = LastReport(counted, reported, opened.seen.length)
            opened.seen.conversation.keep_report(self._terms(opened, opened.above), report)
            if not opened.is_anchored:
                opened.seen.conversation.keep_report(self._terms(opened, _tools_of(opened)), report)
            entry.keep_reports(opened.seen.conversation.reports, report.length)

    def _terms(self, opened: Opened, above: int) -> int:
        """Return a hash of what a report depends on, beside the history: the edits, the counter and the model, and
        what is ``above`` it: system messages, tools and schema, or these two alone."""
        return hash((self.counter, opened.model, opened.edits, above))


def keep_answer(opened: Opened, entry: Entry, usage: Usage, now: float, cleared_tokens: int) -> None:
    """Keep the time of an answer, with what was reported of the cache: for all layers that got this history."""
    before, edits, cached = opened.last_answer, opened.edits, usage.cache_read_tokens
    expected = before.input_tokens if before is not None and before.record == edits else 0
    missed = expected >= CACHED_FROM and cached < expected * _COLD_SHARE
    entry.answered = LastAnswer(now, usage.input_tokens, missed, edits, opened.seen.length, cleared_tokens)
    opened.seen.conversation.keep_answer(entry.answered)


def _tools_of(opened: Opened) -> int:
    options = opened.context.request.options
    return hash((options.tools, options.output_schema))


def _scale(anchor: Anchor, counted: int) -> float:
    return anchor.corrected(counted, anchor.factor) / counted
