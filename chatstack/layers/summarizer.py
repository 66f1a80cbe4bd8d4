"""The layer that compresses the oldest part of a conversation into one summary, and folds that into the next."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from operator import attrgetter
from typing import ClassVar

from opentelemetry.trace import Span

from chatstack.client.background import Owner
from chatstack.client.checks import wraps_a_client
from chatstack.client.options import PositiveFloat, PositiveInt, Share, versioned
from chatstack.client.protocol import ChatClient, provider_info
from chatstack.client.stream import ChatStream
from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.edits.context import Context
from chatstack.context.edits.limits import Limits
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.records import Record
from chatstack.context.edits.shortening import never_whole, new_handles
from chatstack.context.edits.summaries import SUMMARY_PROMPT, SummaryPrompt, version_of
from chatstack.context.passage import Arrived
from chatstack.context.requests.asking import Asking, ask, call
from chatstack.context.requests.attempts import WaitForTurn
from chatstack.context.requests.opened import Opened
from chatstack.context.requests.saying import say_provider_compacted, say_shortened
from chatstack.context.requests.services import ContextServices
from chatstack.context.run import ContextLayer
from chatstack.context.summaries.ahead import AheadOfNeed
from chatstack.context.summaries.aligned import ALIGNED_RULES
from chatstack.context.summaries.attempting import SummaryAttempting
from chatstack.context.summaries.folding import OldestIntoSummary
from chatstack.context.summaries.kept_summaries import Due, FindSummary, KeptSummaries, sent_before
from chatstack.context.summaries.summary_search import SummarySearch
from chatstack.context.summaries.writing import SummaryWriter
from chatstack.layers.native import LeftToProvider, Native, NotNative
from chatstack.layers.overhead import ToldFirst
from chatstack.layers.summarizing import SummaryClient, check_summarizing, client_that_writes, summary_tokens
from chatstack.stack.order import ContextStage
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.native import NativeCompaction, compaction_in
from chatstack.values.responses import ChatResponse, Usage

_NOT_NATIVE = (
    *("max_context_items", "keep_recent_turns", "compress_to", "summary_client", "summary_prompt"),
    *("summary_timeout_seconds", "max_summary_tokens", "prepare_at", "cache_aligned"),
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
    ``prepare_at`` is a share of the limits (0.8, say) from which on the next summary is written in the background, so
    that no call waits for it: it is put in place once a limit is exceeded. It costs more summaries, as each stands for
    less, and one that is not needed after all is paid for, too (see the metric ``chatstack.compaction.prepared``). Its
    usage is told with the next answer. Closing the built client cancels what is being written.
    ``cache_aligned`` asks for a summary at the end of the last request sent, with the same tools, so that the provider
    reads it from its cache. It is for the model that answers alone, without a ``summary_client``. It gives up that the
    transcript is framed as data, without tools and ``options.extra``, and that what a layer outside has cleared is
    summarized from its original text. Tools are not allowed, or, where forbidding them would lose the cache
    (Anthropic), a call is refused. What does not fit the window, or leads to a tool call, falls back to the framed
    transcript; so does a request with an ``output_schema``.
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
    prepare_at: Share | None = None
    cache_aligned: bool = False
    counter: TokenCounter | None = None
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _strategy: OldestIntoSummary = field(init=False, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)
    _attempting: SummaryAttempting = field(init=False, repr=False)
    _search: SummarySearch = field(init=False, repr=False)
    _native: LeftToProvider | None = field(init=False, repr=False)
    _ahead: AheadOfNeed | None = field(init=False, repr=False)
    _owner: Owner = field(init=False, repr=False, default_factory=Owner)

    version: ClassVar[int] = 1
    stage: ClassVar[ContextStage] = "summarize"
    needs_one_of: ClassVar[tuple[str, ...]] = ("max_tokens", "max_context_items")

    def __post_init__(self) -> None:
        client, aligned = self.summary_client, self.cache_aligned
        check_summarizing(self, self.max_tokens, self.max_summary_tokens, client, cache_aligned=aligned)
        most = self.max_summary_tokens or summary_tokens(self.max_tokens)
        limits = Limits(self.max_tokens, self.max_context_items)
        strategy = OldestIntoSummary(limits, self.keep_recent_turns, self.compress_to, most)
        editing = ContextEditing.around(self.inner, self, self.services, self.counter, by_original=True)
        writes = version_of(self.summary_prompt, *([ALIGNED_RULES] if self.cache_aligned else ()))
        kept = KeptSummaries(editing.binding.agreement, f"{versioned(self)}:{writes}", self.cache_aligned)
        client = client_that_writes(self.summary_client, self.inner, self.telemetry)
        seconds = self.summary_timeout_seconds
        writer = SummaryWriter(client, self.summary_prompt, most, seconds, self.windows, editing.counter)
        attempting = SummaryAttempting(
            strategy, editing, kept, writer, self.services.attempts, as_asked=self.summary_client is None
        )
        ahead = None
        if self.prepare_at is not None:
            soft = replace(strategy, limits=limits.times(self.prepare_at))
            ahead = AheadOfNeed(SummarySearch(soft, editing, kept), attempting, self._owner)
        object.__setattr__(self, "_strategy", strategy)
        object.__setattr__(self, "_editing", editing)
        object.__setattr__(self, "_attempting", attempting)
        object.__setattr__(self, "_search", SummarySearch(strategy, editing, kept))
        left = LeftToProvider.where_possible(type(self).__name__, self.native, self.inner, self._as_native)
        object.__setattr__(self, "_native", left)
        object.__setattr__(self, "_ahead", ahead)

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

    def _say_compacted(self, opened: Opened, answer: ChatResponse) -> None:
        """Report that the provider has compacted, if its answer has a compaction."""
        if any(compaction_in(message) is not None for message in answer.messages):
            say_provider_compacted(self.telemetry, self._strategy.name, opened.context, answer)

    async def aclose(self) -> None:
        """Cancel the summaries that are being prepared, and prepare no more. May be called again and again."""
        await self._owner.aclose()

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        editing = self._editing
        if self._native is not None:
            stream = yield from self._native.passed(arrived, editing, self._say_compacted, pinned=attrgetter("pinned"))
            if stream is not None:
                return stream
        opened = arrived.opened(editing)
        context = yield from editing.replay(opened)
        if self._strategy.is_due(context) and not self._search.waits(context, opened):
            shaped = self._without_what_cannot_fit(arrived, opened)
            if shaped is not None:
                return (yield from self.passed(shaped))
        is_to_start = False
        if self._strategy.is_due(context):
            context = yield from self._compressed(context, opened)
        elif self._ahead is not None:
            is_to_start = yield from self._ahead.plan(context, opened)
        overhead = self.services.attempts.settle(editing.owner, opened)

        def owe() -> None:
            self.services.attempts.owe(editing.owner, opened, overhead, self.memory.clock)

        try:
            stream = yield from arrived.onward(editing, context, opened)
        except BaseException:
            owe()
            raise
        if is_to_start and self._ahead is not None:
            yield from self._ahead.start(context, opened)
        if overhead == Usage():
            return stream
        told = ChatStream(ToldFirst(stream, overhead, self._writes, owe), owns=stream)
        told.sent = stream.sent
        return told

    @property
    def _writes(self) -> str:
        """The model that writes the summaries; "" where it is the one that is asked, or is not known."""
        info = None if self.summary_client is None else provider_info(self.summary_client)
        return "" if info is None else info.model

    def _without_what_cannot_fit(self, arrived: Arrived, opened: Opened) -> Arrived | None:
        """Return the arrival with tool results larger than the limit shortened; None if there are none.

        Not kept, but made anew for each call: a kept edit would undo later edits of them by a layer further out.
        """
        context, limit, name = opened.context, self.max_tokens, self._strategy.name
        shortened = {} if limit is None else never_whole(context, name, limit)
        if not shortened:
            return None
        plan = Plan(strategy=name, reason="results that cannot fit", replace=tuple(sorted(shortened.items())))
        if self._editing.is_news(f"shortened:{new_handles(plan, context)}", opened):
            say_shortened(self.telemetry, plan, context)
        fewer = sum(context.sizes[at] - context.size_of(message) for at, message in shortened.items())
        return arrived.shaped(context.after(plan).to_send(), fewer, hash((fewer, *shortened)))

    def folded(self, arrived: Arrived) -> Asking[Record | None]:
        if self._native is not None:  # what was folded here before is sent again where the provider compacts
            return None
        opened = arrived.opened(self._editing)
        return (yield from self._editing.binding.in_force(opened)).record if opened.seen.length else None

    def _compressed(self, context: Context, opened: Opened) -> Asking[Context]:
        """Return the context with a new summary, if one is worth its cost and can be written."""
        if context.is_unstable or not opened.seen.length:  # an edit that cannot be kept would be paid for on every call
            return context
        if self._ahead is not None:
            context = yield from self._ahead.used(context, opened)
            if not self._strategy.is_due(context):
                return context
        attempting, attempts = self._attempting, self.services.attempts
        if attempting.rests(opened):
            opened.is_pending = True
            attempting.say_resting(context, opened)
            return context
        model = attempting.model(opened)
        context, due = yield from self._search.found(context, opened, model)
        if due is None:
            return context
        opened.is_pending = True
        let_next_in = yield from ask(WaitForTurn(attempts, due.subject))
        try:
            written_meanwhile = yield from ask(FindSummary(self._search.kept, due.subject, opened.seen))
            if written_meanwhile is not None:
                again = yield from self._editing.replay(opened)
                context, due = yield from self._search.found(again, opened, model)
            if due is not None:
                context = yield from self._summarized(context, due, opened)
            self._editing.binding.reach(opened, context)
        finally:
            let_next_in()
        return context

    def _summarized(self, context: Context, due: Due, opened: Opened) -> Asking[Context]:
        """Return the context with a summary that is written now; unchanged if that fails."""
        after = context

        def use(summary: Message, span: Span) -> bool:
            nonlocal after
            plan = self._strategy.plan(context, due.cut, summary)
            after = self._editing.apply(plan, context, opened, span=span)
            return after is not context  # else the verifier did not let it pass, and has said so

        if (yield from self._attempting.attempt(context, due, opened, use)):
            opened.is_pending = False
            if opened.replayed is not None and opened.context.request.conversation_id is not None:
                model, sent = self._attempting.model(opened), sent_before(opened.seen, opened.seen.length)
                yield from call(self._search.kept.keep_cut, opened, opened.replayed, model, sent)
        return after
