"""The layer that compresses the oldest part of a conversation into one summary, and folds that into the next."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from opentelemetry.trace import Span

from chatstack.client.options import PositiveFloat, PositiveInt, Share, versioned
from chatstack.client.protocol import ChatClient, provider_info
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import wraps_a_client
from chatstack.context.agreement import Agreement
from chatstack.context.asking import Asking, ask
from chatstack.context.attempts import Leave, WaitForTurn
from chatstack.context.context import Context
from chatstack.context.editing import ContextEditing
from chatstack.context.folding import Cut, OldestIntoSummary
from chatstack.context.kept_summaries import (
    Due,
    FindSummary,
    KeepCut,
    KeepSummary,
    KeptSummaries,
)
from chatstack.context.limits import Limits
from chatstack.context.opened import Opened
from chatstack.context.passage import Arrived
from chatstack.context.plans import Plan
from chatstack.context.records import Record
from chatstack.context.run import ContextLayer
from chatstack.context.saying import say_not_summarized, say_provider_compacted, say_shortened
from chatstack.context.services import ContextServices
from chatstack.context.shortening import never_whole, new_handles
from chatstack.context.summaries import SUMMARY_PROMPT, SummaryPrompt, summary_message, version_of
from chatstack.context.summary_search import SummarySearch
from chatstack.context.writing import NotWrittenError, SummaryWriter, Writing, Written
from chatstack.layers.native import LeftToProvider, Native, NotNative
from chatstack.layers.overhead import ToldFirst
from chatstack.layers.summarizing import SummaryClient, check_summarizing, client_that_writes, summary_tokens
from chatstack.telemetry.turns import attached, beside
from chatstack.tokens.counter import TokenCounter
from chatstack.tokens.default import default_counter
from chatstack.values.messages import Annotation, Message
from chatstack.values.native import NativeCompaction, compaction_in
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, Usage

_NOT_NATIVE = (
    *("max_context_items", "keep_recent_turns", "compress_to", "summary_client", "summary_prompt"),
    *("summary_timeout_seconds", "max_summary_tokens"),
)
"""Options that no provider's API has: as long as they are not set, nobody misses them."""


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class Summarizer(ContextLayer):
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

    ``native="on"`` leaves all of this to the provider's API, which compacts from ``max_tokens`` on (Anthropic's
    ``compact``, from 50,000; OpenAI's ``context_management`` of Responses, from 1,000); any other option is an error
    then. ``"auto"`` leaves it to Anthropic's and OpenAI's own servers, where the model is known to have it and no other
    option is set, and else summarizes here, as it does where a message is pinned. The compaction comes in
    ``response.messages``, as an item that only that provider understands, and every context layer sends it in the place
    of what it stands for. Recent turns are not kept word for word, and another provider needs your whole list to go on:
    so the default is ``"off"``.
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
    native: Native = "off"
    counter: TokenCounter | None = None
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _strategy: OldestIntoSummary = field(init=False, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)
    _writer: SummaryWriter = field(init=False, repr=False)
    _search: SummarySearch = field(init=False, repr=False)
    _native: LeftToProvider | None = field(init=False, repr=False)

    version: ClassVar[int] = 1
    needs_one_of: ClassVar[tuple[str, ...]] = ("max_tokens", "max_context_items")

    def __post_init__(self) -> None:
        check_summarizing(self)
        most = self.max_summary_tokens or summary_tokens(self.max_tokens)
        limits = Limits(self.max_tokens, self.max_context_items)
        strategy = OldestIntoSummary(limits, self.keep_recent_turns, self.compress_to, most)
        counter = self.counter or default_counter(self.inner)
        editing = ContextEditing.around(self.inner, self, self.services, counter, by_original=True)
        writes = f"{versioned(self)}:{version_of(self.summary_prompt)}"
        client = client_that_writes(self.summary_client, self.inner, self.telemetry)
        seconds = self.summary_timeout_seconds
        object.__setattr__(self, "_strategy", strategy)
        object.__setattr__(self, "_editing", editing)
        object.__setattr__(
            self, "_writer", SummaryWriter(client, self.summary_prompt, most, seconds, self.windows, counter)
        )
        kept = KeptSummaries(Agreement(self.memory, self.telemetry), writes)
        object.__setattr__(self, "_search", SummarySearch(strategy, editing, kept))
        left = LeftToProvider.where_possible(type(self).__name__, self.native, self.inner, self._as_native)
        object.__setattr__(self, "_native", left)

    @property
    def editing(self) -> ContextEditing:
        return self._editing

    @property
    def _as_native(self) -> NativeCompaction | NotNative:
        """The same options for a provider's API, or the first that it has no counterpart of: it has the limit alone."""
        if self.max_tokens is None:
            return NotNative("max_tokens", None, "given")
        for name in _NOT_NATIVE:
            value, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if value != default:
                return NotNative(name, value, "left out")
        return NativeCompaction(trigger_tokens=self.max_tokens)

    def _left_to_provider(self, native: LeftToProvider, arrived: Arrived) -> Asking[ChatStream | None]:
        """Let the provider compact; None if it is not known to, or must not, as it knows no pins."""
        seen = arrived.opened(self._editing).seen
        if 0 <= seen.history.pinned < seen.length:
            return None
        passed = yield from native.passed(arrived, self._editing)
        if passed is None:
            return None
        stream, opened = passed

        def say(answer: ChatResponse) -> None:
            if any(compaction_in(message) is not None for message in answer.messages):
                say_provider_compacted(self.telemetry, self._strategy.name, opened.context, answer)

        stream.when_answered(say)
        return stream

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        editing = self._editing
        if self._native is not None:
            stream = yield from self._left_to_provider(self._native, arrived)
            if stream is not None:
                return stream
        opened = arrived.opened(editing)
        context = yield from editing.replay(opened)
        if self._strategy.is_due(context) and not self._search.waits(context, opened):
            shaped = self._without_what_cannot_fit(opened)
            if shaped is not None:
                size_of = editing.weighing.size_of
                fewer = sum(map(size_of, opened.context.messages)) - sum(map(size_of, shaped.messages))
                return (yield from self.passed(arrived.shaped(shaped, fewer)))
        if self._strategy.is_due(context):
            context = yield from self._compressed(context, opened)
        overhead = self.services.attempts.settle(editing.owner, opened)

        def owe() -> None:
            self.services.attempts.owe(editing.owner, opened, overhead, self.memory.clock)

        try:
            stream = yield from arrived.onward(editing, context, opened)
        except BaseException:
            owe()
            raise
        if overhead == Usage():
            return stream
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

    def folded(self, arrived: Arrived) -> Asking[Record | None]:
        if self._native is not None:  # what was folded here before is sent again where the provider compacts
            return None
        opened = arrived.opened(self._editing)
        return (yield from self._editing.binding.in_force(opened)).record if opened.seen.length else None

    def _compressed(self, context: Context, opened: Opened) -> Asking[Context]:
        """Return the context with a new summary, if one is worth its cost and can be written."""
        if context.is_unstable or not opened.seen.length:  # an edit that cannot be kept would be paid for on every call
            return context
        if self.services.attempts.rests(self._writer.client, self._editing.owner, opened, self.memory.clock):
            opened.is_pending = True
            self._say_resting(context, opened)
            return context
        model = self._writes_as(opened)
        context, due = yield from self._search.found(context, opened, model)
        if due is None:
            return context
        opened.is_pending = True
        let_next_in = yield from ask(WaitForTurn(self.services.attempts, due.subject))
        try:
            if (
                yield from ask(FindSummary(self._search.kept, due.subject, opened.seen))
            ) is not None:  # written meanwhile
                again = yield from self._editing.replay(opened)
                context, due = yield from self._search.found(again, opened, model)
            if due is not None:
                context = yield from self._summarized(context, due, opened)
            self._editing.binding.reach(opened, context.scale)
        finally:
            let_next_in()
        return context

    def _writes_as(self, opened: Opened) -> str:
        """Return the model that writes the summaries."""
        info = provider_info(self._writer.client)
        return opened.model if self.summary_client is None or info is None else info.model

    def _summarized(self, context: Context, due: Due, opened: Opened) -> Asking[Context]:
        leave = self.services.attempts.leave(self._writer.client, self._editing.owner, opened, self.memory.clock)
        if leave is None:
            self._say_resting(context, opened)
            return context
        request, started = context.request, self.memory.clock()
        writing = self._writer.writing(
            self._strategy.previous(context, due.cut),
            self._strategy.entries(context, due.cut),
            model=request.options.model if self.summary_client is None else None,
            conversation_id=request.conversation_id,
        )
        try:
            with self.telemetry.working(self._strategy.name) as span, attached(beside(span)):
                return (yield from self._attempt(context, due, opened, leave, span, writing))
        except BaseException:
            leave.gave_up(self.memory.clock() - started)
            raise
        finally:
            self.services.attempts.owe(self._editing.owner, opened, writing.usage, self.memory.clock)

    def _attempt(
        self, context: Context, due: Due, opened: Opened, leave: Leave, span: Span, writing: Writing
    ) -> Asking[Context]:
        """Try once to write a summary, and apply it; return the context unchanged if that fails."""
        strategy, cut = self._strategy, due.cut
        try:
            summary = self._summary((yield from ask(writing)), context, cut)
            plan = strategy.plan(context, cut, summary)
            if context.after(plan).tokens >= context.tokens:
                raise NotWrittenError("it is no smaller than what it stands for", "not_smaller", Usage())
        except NotWrittenError as failure:
            rest = leave.failed(is_outage=failure.is_outage)
            self.services.attempts.is_news(self._editing.owner, opened, self.memory.clock)
            told = f"{failure.reason}; it is tried again in {rest:g} seconds at the earliest"
            say_not_summarized(self.telemetry, strategy.name, context, told, failure.kind, span)
            return context
        kept = yield from ask(KeepSummary(self._search.kept, due.subject, summary, opened.seen))
        if kept is not summary:  # another process was quicker
            plan = strategy.plan(context, cut, kept)
        after = self._editing.apply(plan, context, opened, span=span)
        if after is context:  # the verifier did not let it pass, and has said so
            leave.failed(is_outage=False)
            return after
        leave.succeeded()
        opened.is_pending = False
        if opened.replayed is not None and opened.context.request.conversation_id is not None:
            yield from ask(KeepCut(self._search.kept, opened, opened.replayed, self._writes_as(opened)))
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

    def _say_resting(self, context: Context, opened: Opened) -> None:
        owner, clock = self._editing.owner, self.memory.clock
        if self.services.attempts.was_told(owner, opened) or self._strategy.cut(context) is None:
            return
        if self.services.attempts.is_news(owner, opened, clock):
            why = "one went wrong a moment ago, and none is tried yet"
            say_not_summarized(self.telemetry, self._strategy.name, context, why, "resting", None)
