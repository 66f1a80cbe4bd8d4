"""The layer that compresses the oldest part of a conversation into one summary, and folds that into the next."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from opentelemetry.trace import Span

from chatstack import semconv
from chatstack.client.fronts import ChatFronts
from chatstack.client.options import PositiveFloat, PositiveInt, Share, versioned
from chatstack.client.protocol import ChatClient, LayerKind, provider_info
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import wraps_a_client
from chatstack.context.agreement import Agreement
from chatstack.context.attempts import Leave, SummaryAttempts
from chatstack.context.context import Context
from chatstack.context.editing import ContextEditing
from chatstack.context.folding import Cut, OldestIntoSummary, cut_in
from chatstack.context.kept_summaries import Due, KeptSummaries, Subject, goes_further
from chatstack.context.limits import Limits
from chatstack.context.memory import ContextMemory
from chatstack.context.opened import Opened
from chatstack.context.plans import Plan
from chatstack.context.reconstructing import Policy, Reconstruction
from chatstack.context.records import Record
from chatstack.context.saying import say_shortened
from chatstack.context.shortening import never_whole, new_handles
from chatstack.context.sizes import sized
from chatstack.context.summaries import SUMMARY_PROMPT, SummaryPrompt, summary_message, version_of
from chatstack.context.writing import NotWrittenError, Spent, SummaryWriter, Written
from chatstack.layers.overhead import ToldFirst
from chatstack.layers.summarizing import SummaryClient, check_summarizing, client_that_writes, summary_tokens
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.shortening import compacted
from chatstack.telemetry.turns import attached, beside
from chatstack.tokens.calibration import Calibration
from chatstack.tokens.counter import TokenCounter, char_counter
from chatstack.tokens.windows import Windows
from chatstack.values.messages import Annotation, Message
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import Usage


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class Summarizer(ChatFronts):
    """Replaces the oldest part of a conversation by one summary when it grows over a limit, and folds that summary into
    the next one.

    Goes inside the tool loop and the clearer, outside the guard. The limits are ``max_tokens`` of input (messages,
    instructions, tool schemas) and ``max_context_items``: messages, tool calls and tool results. The newest
    ``keep_recent_turns`` turns stay, if they leave room; else rounds within them are summarized too, oldest first, down
    to ``compress_to`` (a share of the limits). System and pinned messages, the first and the latest user message are
    sent as they are. What is summarized is what the messages said before any layer cleared them.
    ``summary_client`` writes the summaries, by default the client below the inner layers. Each of its calls may take
    ``summary_timeout_seconds``, and there are as many calls as it takes to read everything. A summary has at most
    ``max_summary_tokens`` (thinking included), by default a quarter of ``max_tokens``. ``summary_prompt`` replaces the
    built-in prompt.
    A summary that fails, is empty, cut off or no smaller changes nothing: the request goes on as it came, for the next
    layer to make it fit, with the warning ``summarizer_failed``, and is tried again after a while. The usage of
    summaries is in ``response.overhead_usage``. New tool results larger than ``max_tokens`` go out shortened, and are
    summarized whole.
    Source: VideoSDK's context window.
    """

    inner: ChatClient
    _: KW_ONLY
    max_tokens: PositiveInt | None = None
    max_context_items: PositiveInt | None = None
    keep_recent_turns: PositiveInt = 3
    compress_to: Share = 0.6
    summary_client: SummaryClient | None = None
    summary_prompt: SummaryPrompt = SUMMARY_PROMPT
    summary_timeout_seconds: PositiveFloat = 60.0
    max_summary_tokens: PositiveInt | None = None
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

    kind: ClassVar[LayerKind] = "context"
    version: ClassVar[int] = 1
    needs_one_of: ClassVar[tuple[str, ...]] = ("max_tokens", "max_context_items")

    def __post_init__(self) -> None:
        check_summarizing(self)
        most = self.max_summary_tokens or summary_tokens(self.max_tokens)
        limits = Limits(self.max_tokens, self.max_context_items)
        strategy = OldestIntoSummary(limits, self.keep_recent_turns, self.compress_to, most)
        counter = self.counter or char_counter(4)
        editing = ContextEditing.around(
            self.inner,
            self,
            memory=self.memory,
            telemetry=self.telemetry,
            counter=counter,
            calibration=self.calibration,
            by_original=True,
        )
        writes = f"{versioned(self)}:{version_of(self.summary_prompt)}"
        client = client_that_writes(self.summary_client, self.inner, self.telemetry)
        seconds = self.summary_timeout_seconds
        object.__setattr__(self, "_strategy", strategy)
        object.__setattr__(self, "_editing", editing)
        object.__setattr__(
            self, "_writer", SummaryWriter(client, self.summary_prompt, most, seconds, self.windows, counter)
        )
        object.__setattr__(self, "_kept", KeptSummaries(Agreement(self.memory, self.telemetry), writes))

    async def send(self, request: ChatRequest, /) -> ChatStream:
        editing, spent = self._editing, Spent()
        if editing.opening.stands_aside(request):
            return await self.inner.send(request)
        await editing.counter.prepare()
        opened = editing.opening.open(request)
        context = await editing.replay(opened)
        if self._strategy.is_due(context) and not self._waits(context, opened):
            shaped = self._without_what_cannot_fit(opened)
            if shaped is not None:
                came = opened.context.messages
                less = sum(map(editing.size_of, came)) - sum(map(editing.size_of, shaped.messages))
                # Recognised by its originals, as a request edited by a clearer further out.
                with attached(compacted(came, shaped.messages, less)):
                    return await self.send(shaped)
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

        told = ChatStream(ToldFirst(stream, overhead, owe), owns=stream)
        told.sent = stream.sent
        return told

    def _without_what_cannot_fit(self, opened: Opened) -> ChatRequest | None:
        """Return the request with tool results larger than the limit shortened; None if there are none.

        Not kept, but made anew for each call: a kept edit would undo later edits of them by a layer further out.
        """
        context, limit, name = opened.context, self.max_tokens, self._strategy.name
        shortened = {} if limit is None else never_whole(context, name, limit)
        if not shortened:
            return None
        plan = Plan(strategy=name, reason="results that cannot fit", replace=tuple(sorted(shortened.items())))
        if self._editing.is_news(f"shortened:{new_handles(plan, context)}", opened):
            say_shortened(self.telemetry, plan, context)
        return context.after(plan).to_send()

    async def left_out(self, opened: Opened) -> Record | None:
        """Return the edits in force for this history, so that a layer further out need not count what was folded."""
        return await self._editing.decided(opened) if opened.seen.length else None

    async def _compressed(self, context: Context, opened: Opened, spent: Spent) -> Context:
        """Return the context with a new summary, if one is worth its cost and can be written."""
        if context.is_unstable or not opened.seen.length:  # an edit that cannot be kept would be paid for on every call
            return context
        if self.attempts.rests(self._writer.client, self._editing.owner, opened, self.memory.clock):
            opened.is_pending = True
            self._say_resting(context, opened)
            return context
        context, due = await self._folded(context, opened)
        if due is None:
            return context
        opened.is_pending = True
        async with self.attempts.alone(due.subject):
            if await self._kept.find(due.subject, opened.seen) is not None:  # written while this call waited
                again = await self._editing.replay(opened)
                context, due = await self._folded(again, opened)
            if due is not None:
                context = await self._summarized(context, due, opened, spent)
            self._editing.binding.reach(opened, context.scale)
        return context

    async def _folded(self, context: Context, opened: Opened) -> tuple[Context, Due | None]:
        """Return the context with the summaries that exist, and what has to be summarized beside them, if anything.

        The cuts are computed from the first message whose edits are not known, so that each process, and each branch,
        comes to the same cuts and finds the summaries that were written for them. If nothing can be summarized, a
        warning says so, and the search is not repeated for every message.
        """
        seen, strategy = opened.seen, self._strategy
        opened.is_pending = False
        if not strategy.is_due(context) or self._waits(context, opened):
            return context, None
        came = self._editing.as_it_came(context, opened)
        policy = Policy(self._expected, strategy.is_due, _sizes_of)
        past = self._editing.past_of(came, opened, policy)
        last = await self._kept.last_cut(seen, opened.context, self._writes_as(opened))
        if last is not None and goes_further(last, opened.replayed, seen):
            opened.replayed, opened.since = last, max(last.reach, opened.since)
            context = self._editing.carried_out(last, came, opened)
            if not strategy.is_due(context):
                return context, None
        known, missing = await self._known(past, opened, opened.since, opened.replayed)
        if known is not None and known is not opened.replayed:
            why = "there is a summary of these messages"
            context = self._editing.adopt(known, came, opened, strategy=strategy.name, reason=why)
        if missing is not None:
            return context, Due(cut_in(context, opened, missing[0]), missing[1])
        if strategy.is_due(context):
            opened.wait = past.wait
            why = f"{strategy.limits.excess(context)}, and too little of it may be summarized now"
            self._editing.say_ineffective(strategy.name, context, opened, why)
        return context, None

    def _waits(self, context: Context, opened: Opened) -> bool:
        """Return True if nothing could be summarized on an earlier call, and nothing has changed since."""
        seen = opened.seen
        return opened.wait is not None and opened.wait.goes_on(seen.latest_user(seen.length), _sizes_of(context))

    async def _known(
        self, past: Reconstruction, opened: Opened, since: int, record: Record | None
    ) -> tuple[Record | None, tuple[Record, Subject] | None]:
        """Return the last edits, of the requests of more than ``since`` messages, whose summaries exist, and the first
        edits after them that lack one, with its subject."""
        known, missing = record, None
        while (step := past.first(since, record)) is not None:
            subject = self._kept.subject(opened.seen, step.record, self._writes_as(opened))
            summary = await self._kept.find(subject, opened.seen)
            if summary is None:
                record, missing = step.record, (step.record, subject)
            else:
                record = known = step.record.with_summary(summary)
                missing = None
            since = step.length
        return known, missing

    def _expected(self, context: Context) -> Plan | None:
        """Return the plan for a context, with a placeholder of the expected size for the summary."""
        cut = self._strategy.cut(context)
        if cut is None:
            return None
        folded = sum(context.sizes[at] for at in cut.folded)
        summary = summary_message("", Annotation(self._strategy.name))
        tokens = min(self._strategy.expected_tokens(context, cut), max(0, folded - 1))
        return self._strategy.plan(context, cut, sized(summary, tokens, self._editing.counter))

    def _writes_as(self, opened: Opened) -> str:
        """Return the model that writes the summaries."""
        info = provider_info(self._writer.client)
        return opened.model if self.summary_client is None or info is None else info.model

    async def _summarized(self, context: Context, due: Due, opened: Opened, spent: Spent) -> Context:
        leave = self.attempts.leave(self._writer.client, self._editing.owner, opened, self.memory.clock)
        if leave is None:
            self._say_resting(context, opened)
            return context
        started = self.memory.clock()
        try:
            with self.telemetry.working(self._strategy.name) as span, attached(beside(span)):
                return await self._attempt(context, due, opened, leave, span, spent)
        except BaseException:
            leave.gave_up(self.memory.clock() - started)
            raise

    async def _attempt(
        self, context: Context, due: Due, opened: Opened, leave: Leave, span: Span, spent: Spent
    ) -> Context:
        """Try once to write a summary, and apply it; return the context unchanged if that fails."""
        strategy, request, cut = self._strategy, context.request, due.cut
        try:
            written = await self._writer.write(
                strategy.previous(context, cut),
                strategy.entries(context, cut),
                model=request.options.model if self.summary_client is None else None,
                conversation_id=request.conversation_id,
                spent=spent,
            )
            summary = self._summary(written, context, cut)
            plan = strategy.plan(context, cut, summary)
            if context.after(plan).tokens >= context.tokens:
                raise NotWrittenError("it is no smaller than what it stands for", "not_smaller", Usage())
        except NotWrittenError as failure:
            rest = leave.failed(is_outage=failure.is_outage)
            self.attempts.is_news(self._editing.owner, opened, self.memory.clock)
            told = f"{failure.reason}; it is tried again in {rest:g} seconds at the earliest"
            self._say_failed(told, failure.kind, context, span)
            return context
        kept = await self._kept.keep(due.subject, summary, opened.seen)
        if kept is not summary:  # another process was quicker
            plan = strategy.plan(context, cut, kept)
        after = self._editing.apply(plan, context, opened, span=span)
        if after is context:  # the verifier did not let it pass, and has said so
            leave.failed(is_outage=False)
        else:
            leave.succeeded()
            opened.is_pending = False
            if opened.replayed is not None:
                await self._kept.keep_cut(opened.seen, opened.replayed, opened.context, self._writes_as(opened))
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


def _sizes_of(context: Context) -> tuple[int, int]:
    return context.tokens, context.items
