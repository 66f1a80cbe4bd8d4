"""Compresses the oldest part of a conversation into one summary, and folds that into the next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import msgspec
from opentelemetry.trace import Span

from chatstack import semconv
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.context.agreement import Agreement
from chatstack.context.attempts import Leave, SummaryAttempts
from chatstack.context.context import Context
from chatstack.context.editing import ContextEditing
from chatstack.context.folding import Cut, OldestIntoSummary
from chatstack.context.kept_summaries import KeptSummaries
from chatstack.context.limits import Limits
from chatstack.context.memory import ContextMemory
from chatstack.context.opened import Opened
from chatstack.context.records import Record
from chatstack.context.saying import say_ineffective
from chatstack.context.summaries import SUMMARY_PROMPT, summary_message, version_of
from chatstack.context.writing import NotWrittenError, Spent, SummaryWriter, Written
from chatstack.errors import WiringError
from chatstack.layers.summarizing import SummaryClient, check_summarizing, client_that_writes, summary_tokens
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.spans import end_span
from chatstack.telemetry.turns import attached, beside
from chatstack.tokens.calibration import Calibration
from chatstack.tokens.counter import TokenCounter, char_counter
from chatstack.tokens.windows import Windows
from chatstack.values.messages import Annotation, Message
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate, Usage


@dataclass(frozen=True, slots=True, eq=False)
class Summarizer(ChatFronts):
    """Replaces the oldest part of a conversation by one summary when it grows over a limit, and folds that summary into
    the next one.

    Goes inside the tool loop and the clearer, outside the guard. The limits are ``max_tokens`` of input (messages,
    instructions, tool schemas) and ``max_context_items``: messages, tool calls and tool results. The newest
    ``keep_recent_turns`` turns stay, if they leave room; else rounds within them are summarized too, oldest first, down
    to ``compress_to`` (a share of the limits). System and pinned messages, the first and the latest user message are
    sent as they are. What is summarized is what the messages said before any layer cleared them.
    ``summary_client`` writes the summaries, else whatever the inner layers lead to. It may take
    ``summary_timeout_seconds`` for each call, and gets as many as it needs to read everything. A summary has at most
    ``max_summary_tokens`` (thinking included), a quarter of ``max_tokens`` unless said otherwise. ``summary_prompt``
    replaces ours.
    A summary that fails, is empty, cut off or no smaller changes nothing: the request goes on as it came, for the next
    layer to make it fit, ``summarizer_failed`` is warned of, and it is tried again after a while. What summaries cost
    is in ``response.overhead_usage``.
    Source: seed ``videosdk-context-window``.
    """

    inner: ChatClient
    _: KW_ONLY
    max_tokens: int | None = None
    max_context_items: int | None = None
    keep_recent_turns: int = 3
    compress_to: float = 0.6
    summary_client: SummaryClient | None = None
    summary_prompt: str = SUMMARY_PROMPT
    summary_timeout_seconds: float = 60.0
    max_summary_tokens: int | None = None
    counter: TokenCounter | None = None
    memory: ContextMemory = field(default_factory=ContextMemory, repr=False)
    calibration: Calibration = field(default_factory=Calibration, repr=False)
    windows: Windows = field(default_factory=Windows, repr=False)
    attempts: SummaryAttempts = field(default_factory=SummaryAttempts, repr=False)
    telemetry: Telemetry = field(default_factory=Telemetry, repr=False)
    _strategy: OldestIntoSummary = field(init=False, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)
    _writer: SummaryWriter = field(init=False, repr=False)
    _kept: KeptSummaries = field(init=False, repr=False)

    kind: ClassVar[str] = "context"

    def __post_init__(self) -> None:
        check_summarizing("Summarizer", self)
        if self.max_tokens is None and self.max_context_items is None:
            raise WiringError(
                "Summarizer: max_tokens=None and max_context_items=None: give one of them, or it would never summarize",
                layer="Summarizer",
                parameter="max_tokens",
            )
        most = self.max_summary_tokens or summary_tokens(self.max_tokens)
        limits = Limits(self.max_tokens, self.max_context_items)
        strategy = OldestIntoSummary(limits, self.keep_recent_turns, self.compress_to, most)
        version = version_of(self.summary_prompt)
        counter = self.counter or char_counter(4)
        editing = ContextEditing.around(
            self.inner,
            f"summarizer({strategy!r},{version})",
            layer="Summarizer",
            memory=self.memory,
            telemetry=self.telemetry,
            counter=counter,
            calibration=self.calibration,
            by_original=True,
        )
        client = client_that_writes(self.summary_client, self.inner, self.telemetry)
        seconds = self.summary_timeout_seconds
        object.__setattr__(self, "_strategy", strategy)
        object.__setattr__(self, "_editing", editing)
        object.__setattr__(
            self, "_writer", SummaryWriter(client, self.summary_prompt, most, seconds, self.windows, counter)
        )
        object.__setattr__(self, "_kept", KeptSummaries(Agreement(self.memory, self.telemetry), f"summary({version})"))

    async def send(self, request: ChatRequest, /) -> ChatStream:
        editing, spent = self._editing, Spent()
        if editing.stands_aside(request):
            return await self.inner.send(request)
        opened = editing.open(request)
        context = await editing.replay(opened)
        try:
            if self._strategy.is_due(context):
                context = await self._compressed(context, opened, spent)
            stream = await editing.send(self.inner, context, opened)
        except BaseException:
            self.attempts.owe(editing.owner, opened, spent.usage, self.memory.clock)
            raise
        overhead = spent.usage + self.attempts.settle(editing.owner, opened)
        if overhead == Usage():
            return stream

        def owe() -> None:
            self.attempts.owe(editing.owner, opened, overhead, self.memory.clock)

        told = ChatStream(_ToldFirst(stream, overhead, owe), owns=stream)
        told.sent = stream.sent
        return told

    async def left_out(self, opened: Opened) -> Record | None:
        """What has been folded of this history: a layer further out need not weigh it any more."""
        return await self._editing.decided(opened) if opened.seen.length else None

    async def _compressed(self, context: Context, opened: Opened, spent: Spent) -> Context:
        """The context with a new summary, if one is worth it and can be had."""
        if context.is_unstable or not opened.seen.length:  # an edit that nobody can keep is paid for on every call
            return context
        if self.attempts.rests(self._writer.client, self._editing.owner, opened, self.memory.clock):
            self._say_resting(context, opened)
            return context
        cut = self._cut(context, opened)
        if cut is None:
            return context
        async with self.attempts.alone((self._editing.owner, opened.seen.links[_covered_by(cut, context, opened) - 1])):
            context = await self._editing.replay(opened)
            cut = self._cut(context, opened)
            reused = context if cut is None else await self._reused(context, cut, opened)
            if reused is not context:
                context, cut = reused, self._cut(reused, opened)
            return context if cut is None else await self._summarized(context, cut, opened, spent)

    def _cut(self, context: Context, opened: Opened) -> Cut | None:
        """What to fold, if anything has to be. Where nothing can, that is said, and not looked for again for every
        message."""
        if not self._strategy.is_due(context):
            return None
        history, owner = opened.seen.history, self._editing.owner
        if history.is_waiting(owner, context.tokens, context.items):
            return None
        cut = self._strategy.cut(context)
        if cut is None:
            history.wait(owner, context.tokens, context.items)
            if self._editing.is_news("ineffective", opened):
                why = f"{self._strategy.limits.excess(context)}, and too little of it may be summarized now"
                say_ineffective(self.telemetry, self._strategy.name, context, why)
        return cut

    async def _reused(self, context: Context, cut: Cut, opened: Opened) -> Context:
        """The context with a summary that was written for a beginning of this history, if that helps."""
        known = await self._kept.find(opened.seen, opened.context)
        record = known.record
        if record is None or not 0 < known.covers <= _covered_by(cut, context, opened):
            return context
        if opened.replayed is not None and len(record.drop) <= len(opened.replayed.drop):
            return context
        if opened.seen.history.latest_user in record.touched:
            return context
        came = msgspec.structs.replace(opened.context, scale=context.scale)
        plan = record.plan(opened.seen.positions, len(came.messages))
        plan = msgspec.structs.replace(plan, strategy="summarize", reason="there is a summary of these messages")
        after = await self._editing.apply(plan, came, opened)
        return after if after is not came else context

    async def _summarized(self, context: Context, cut: Cut, opened: Opened, spent: Spent) -> Context:
        leave = self.attempts.leave(self._writer.client, self._editing.owner, opened, self.memory.clock)
        if leave is None:
            self._say_resting(context, opened)
            return context
        span, started = self.telemetry.working(self._strategy.name), self.memory.clock()
        try:
            with attached(beside(span)):
                context = await self._attempt(context, cut, opened, leave, span, spent)
        except BaseException as error:
            leave.gave_up(self.memory.clock() - started)
            end_span(span, error)
            raise
        end_span(span, None)
        return context

    async def _attempt(
        self, context: Context, cut: Cut, opened: Opened, leave: Leave, span: Span, spent: Spent
    ) -> Context:
        """One try."""
        strategy, request = self._strategy, context.request
        try:
            written = await self._writer.write(
                strategy.previous(context, cut),
                strategy.entries(context, cut),
                model=request.options.model if self.summary_client is None else None,
                conversation_id=request.conversation_id,
                spent=spent,
            )
            plan = strategy.plan(context, cut, self._summary(written, context, cut))
            if context.after(plan).tokens >= context.tokens:
                raise NotWrittenError("it is no smaller than what it stands for", "not_smaller", Usage())
        except NotWrittenError as failure:
            rest = leave.failed(is_outage=failure.is_outage)
            self.attempts.is_news(self._editing.owner, opened, self.memory.clock)
            told = f"{failure.reason}; it is tried again in {rest:g} seconds at the earliest"
            self._say_failed(told, failure.kind, context, span)
            return context
        covers = _covered_by(cut, context, opened)
        after = await self._editing.apply(plan, context, opened, span=span)
        if after is context:  # the verifier did not let it pass, and has said so
            leave.failed(is_outage=False)
        else:
            leave.succeeded()
            record = opened.replayed
            if record is not None and max(record.drop, default=0) < covers:  # else it is somebody else's, about more
                await self._kept.keep(opened.seen, opened.context, record, covers)
        return after

    def _summary(self, written: Written, context: Context, cut: Cut) -> Message:
        usage = written.usage
        return summary_message(
            written.text,
            Annotation(
                self._strategy.name,
                sum(context.sizes[position] for position in cut.folded),
                model=written.model,
                prompt_version=version_of(self.summary_prompt),
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
            ),
        )

    def _say_failed(self, why: str, kind: str, context: Context, span: Span | None) -> None:
        self.telemetry.warn(
            "summarizer_failed",
            f"no summary: {why}; the history stays as it is",
            {
                semconv.COMPACTION_STRATEGY: self._strategy.name,
                semconv.COMPACTION_MESSAGES_BEFORE: len(context.messages),
                semconv.COMPACTION_TOKENS_BEFORE: context.tokens,
            },
            span_name=f"compact_context {self._strategy.name}",
            error=kind,
            span=span,
        )

    def _say_resting(self, context: Context, opened: Opened) -> None:
        owner, clock = self._editing.owner, self.memory.clock
        if self.attempts.was_told(owner, opened) or self._strategy.cut(context) is None:
            return
        if self.attempts.is_news(owner, opened, clock):
            self._say_failed("one went wrong a moment ago, and none is tried yet", "resting", context, None)


def _covered_by(cut: Cut, context: Context, opened: Opened) -> int:
    """How many messages of the history come before the cut."""
    origin = next((each for each in context.origins[cut.border :] if each is not None), len(opened.context.messages))
    return bisect_left(opened.seen.positions, origin)


class _ToldFirst:
    """The same answer, and with it what summaries have cost; if it does not get to its end, that is owed again."""

    def __init__(self, stream: ChatStream, usage: Usage, owe: Callable[[], None]) -> None:
        self._stream = stream
        self._usage: Usage | None = usage
        self._owe: Callable[[], None] | None = owe

    async def __anext__(self) -> ChatUpdate:
        if self._usage is not None:
            usage, self._usage = self._usage, None
            return ChatUpdate(overhead_usage=usage)
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._owe = None
            raise

    async def aclose(self) -> None:
        self._give_back()
        await self._stream.aclose()

    def __del__(self) -> None:
        self._give_back()

    def _give_back(self) -> None:
        owe, self._owe = self._owe, None
        if owe is not None:
            owe()
