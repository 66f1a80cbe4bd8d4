"""Attempting: one summary with leave, in a span of its own, paid for by its history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from opentelemetry.trace import Span

from chatstack import semconv
from chatstack.client.protocol import provider_info
from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.edits.context import Context
from chatstack.context.edits.summaries import summary_message, version_of
from chatstack.context.requests.asking import Asking, ask
from chatstack.context.requests.attempts import Leave, SummaryAttempts
from chatstack.context.requests.opened import Opened
from chatstack.context.requests.saying import say_not_summarized
from chatstack.context.summaries.aligned import Aligned, aligned_request
from chatstack.context.summaries.folding import Cut, OldestIntoSummary, place_in
from chatstack.context.summaries.kept_summaries import Due, KeepSummary, KeptSummaries
from chatstack.context.summaries.writing import NotWrittenError, SummaryWriter, Writing, Written
from chatstack.telemetry.turns import attached, beside
from chatstack.values.messages import Annotation, Message
from chatstack.values.responses import Usage

Use: TypeAlias = Callable[[Message, Span], bool]
"""Uses a new summary, with the span of its attempt; returns False if it cannot be used."""


@dataclass(frozen=True, slots=True)
class SummaryAttempting:
    """The attempts of one layer at summaries. With ``as_asked``, the model that a request names writes those for it."""

    strategy: OldestIntoSummary
    editing: ContextEditing
    kept: KeptSummaries
    writer: SummaryWriter
    attempts: SummaryAttempts
    as_asked: bool

    def model(self, opened: Opened) -> str:
        """Return the model that writes the summaries."""
        info = provider_info(self.writer.client)
        return opened.model if self.as_asked or info is None else info.model

    def rests(self, opened: Opened) -> bool:
        """Return True while this history, or the client that writes, backs off after a failure."""
        return self.attempts.rests(self.writer.client, self.editing.owner, opened, self.editing.memory.clock)

    def attempt(self, context: Context, due: Due, opened: Opened, use: Use, *, is_ahead: bool = False) -> Asking[bool]:
        """Try once to write a summary, keep it and use it; return True if that was done.

        A failure is said. ``is_ahead``: it is written beside calls, so whoever ends it has not waited in vain.
        """
        memory, owner, telemetry = self.editing.memory, self.editing.owner, self.editing.telemetry
        leave = self.attempts.leave(self.writer.client, owner, opened, memory.clock)
        if leave is None:
            self.say_resting(context, opened)
            return False
        if is_ahead:
            self.attempts.prepares(owner, opened, memory.clock)
        request, started = context.request, memory.clock()
        writing = Writing(
            self.writer,
            self.strategy.previous(context, due.cut),
            self.strategy.entries(context, due.cut),
            model=request.options.model if self.as_asked else None,
            conversation_id=request.conversation_id,
            aligned=self._aligned(context, due, opened) if self.kept.cache_aligned else None,
        )
        try:
            with telemetry.working(self.strategy.name) as span, attached(beside(span)):
                if is_ahead:
                    span.set_attribute(semconv.COMPACTION_AHEAD, True)
                summary = yield from self._kept(context, due, opened, leave, span, writing)
                if summary is None:
                    return False
                if not use(summary, span):
                    leave.failed(is_outage=False)
                    return False
                if is_ahead:
                    leave.prepared()
                else:
                    leave.succeeded()
                return True
        except BaseException:
            if is_ahead:
                leave.stopped()
            else:
                leave.gave_up(memory.clock() - started)
            raise
        finally:
            self.attempts.owe(owner, opened, writing.usage, memory.clock)

    def _kept(
        self, context: Context, due: Due, opened: Opened, leave: Leave, span: Span, writing: Writing
    ) -> Asking[Message | None]:
        """Write a summary and keep it; return the one in force, as another process may have been quicker. None if that
        fails."""
        memory = self.editing.memory
        try:
            summary = self._summary((yield from ask(writing)), context, due.cut)
            if context.after(self.strategy.plan(context, due.cut, summary)).tokens >= context.tokens:
                raise NotWrittenError("it is no smaller than what it stands for", "not_smaller", Usage())
        except NotWrittenError as failure:
            rest = leave.failed(is_outage=failure.is_outage)
            self.attempts.is_news(self.editing.owner, opened, memory.clock)
            told = f"{failure.reason}; it is tried again in {rest:g} seconds at the earliest"
            say_not_summarized(self.editing.telemetry, self.strategy.name, context, told, failure.kind, span)
            return None
        if memory.has_forgotten(opened.seen, opened.forgets):  # then nothing of it is kept anywhere
            return summary
        return (yield from ask(KeepSummary(self.kept, due.subject, summary, opened.seen)))

    def _aligned(self, context: Context, due: Due, opened: Opened) -> Aligned | None:
        writer, info = self.writer, provider_info(self.writer.client)
        provider, sent = "" if info is None else info.name, place_in(context, opened, due.sent)
        return aligned_request(context, due.cut, writer.prompt, writer.max_tokens, provider=provider, sent=sent)

    def _summary(self, written: Written, context: Context, cut: Cut) -> Message:
        usage = written.usage
        return summary_message(
            written.text,
            Annotation(
                self.strategy.name,
                sum(context.sizes[position] for position in cut.folded),
                model=written.model,
                prompt_version=version_of(self.writer.prompt),
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
            ),
        )

    def say_resting(self, context: Context, opened: Opened) -> None:
        """Warn once that no summary is tried, because one has failed."""
        owner, clock = self.editing.owner, self.editing.memory.clock
        if self.attempts.was_told(owner, opened) or self.strategy.cut(context) is None:
            return
        if self.attempts.is_news(owner, opened, clock):
            why = "one went wrong a moment ago, and none is tried yet"
            say_not_summarized(self.editing.telemetry, self.strategy.name, context, why, "resting", None)
