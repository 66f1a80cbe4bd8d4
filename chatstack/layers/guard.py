"""The last look before a request goes out: does it fit?"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, ClassVar, Literal, TypeAlias, cast

import msgspec
from msgspec import Meta

from chatstack import semconv
from chatstack.client.checks import wraps_a_client
from chatstack.client.options import PositiveInt, Share, check_options
from chatstack.client.protocol import ChatClient, chain, layer_kind
from chatstack.client.stream import ChatStream
from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.decisions.policy import Policy
from chatstack.context.edits.context import Context
from chatstack.context.edits.levels import Level, held_level, largest, level_of
from chatstack.context.passage import Arrived
from chatstack.context.requests.asking import Asking, aside, call
from chatstack.context.requests.opened import Opened
from chatstack.context.requests.saying import say_window_unknown, share_of
from chatstack.context.requests.services import ContextServices
from chatstack.context.run import ContextLayer
from chatstack.context.strategies.pruning import OldestFirst
from chatstack.errors import ContextOverflowError, FallbackError
from chatstack.layers.refusals import input_in, is_quoted, is_size, limit_in, overflow_in, taken_before, tells_nothing
from chatstack.stack.order import ContextStage
from chatstack.telemetry.spans import Value
from chatstack.tokens.calibration import is_plausible
from chatstack.tokens.counter import TokenCounter
from chatstack.tokens.default import default_counter
from chatstack.tokens.published import tables_loaded
from chatstack.tokens.windows import UNTOLD_SHARE, is_asked_for
from chatstack.values.items import usage_of_request
from chatstack.values.responses import ChatResponse

CharsPerToken: TypeAlias = Annotated[float, Meta(ge=0.1, le=100)]

_RETRIES = 3
"""Number of times that a refused request is tried again, smaller each time."""


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class ContextWindowGuard(ContextLayer):
    """Warns when a request comes near the model's window, and, if told to, prunes what does not fit.

    Goes innermost, where it weighs what is really sent: instructions, every part of every message, tool schemas and
    the reserved output (``max_tokens`` of the options). ``max_context_tokens`` is a number, or ``"auto"`` for the
    model's window; only there, what the provider reserves where the options name nothing counts, too (Anthropic's
    8,192). ``warning_threshold`` is a share of it. ``prune_on_overflow`` removes the oldest units, whole ones
    only, down to ``prune_to`` (a share of it, too, with the reserved output), and the same ones again on later calls;
    if the reserve is larger than that share, all goes that may. It never removes system, pinned and summary
    messages, the first and the latest user message, or calls that wait for results. A tool result that the model has
    not seen yet is never removed; where it is too large it is shortened, and ``tool_result_shortened`` warned of. Where
    nothing else is left, a summary is shortened, too. What cannot be made to fit is sent as it is, or, with
    ``strict``, raised as ``ContextOverflowError`` before anything is sent. Sizes are estimates, by ``counter``, else by
    ``chars_per_token``, else as the provider's model counts (``EstimatingCounter``), or four characters a token where
    the provider is not known; corrected by what the provider reports, up to four times the estimate (a report beyond
    that may be of several calls). Each crossing is warned of once; ``every_call`` repeats it.
    Where the provider refuses a request as too long, a pruning guard takes the sizes that it tells for the true ones,
    prunes, and sends less, up to three times, as nothing has reached the caller yet; a limit that proved true holds
    from then on, whatever ``max_context_tokens`` says. Where it tells none, what was refused and what was then taken
    bound the window for an hour, unless the window that is known is more than four times what was refused: state it
    (``window_tokens``) where a small server has the name of a large model.
    Source: Needlr's context window guard.
    """

    inner: ChatClient
    _: KW_ONLY
    max_context_tokens: PositiveInt | Literal["auto"]
    warning_threshold: Share = 0.8
    prune_on_overflow: bool = False
    prune_to: Share = 0.7
    chars_per_token: CharsPerToken | None = None
    counter: TokenCounter | None = None
    strict: bool = False
    every_call: bool = False
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)

    version: ClassVar[int] = 1
    stage: ClassVar[ContextStage] = "guard"

    def __post_init__(self) -> None:
        check_options(self)
        counter = default_counter(self.inner, self.chars_per_token) if self.counter is None else self.counter
        editing = ContextEditing.around(self.inner, self, self.services, counter)
        object.__setattr__(self, "_editing", editing)

    @property
    def needs_window(self) -> bool:
        """True where the limit is the model's own window."""
        return self.max_context_tokens == "auto"

    @property
    def may_wait(self) -> bool:
        """True where an edit may have to wait: for a store, or for the provider to tell its window."""
        return self.memory.shared is not None or (self.needs_window and is_asked_for(self.inner))

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        opened = arrived.opened(self._editing)
        model = opened.context.request.options.model
        if self.max_context_tokens == "auto":
            window = yield from call(self.windows.of, self.inner, model)
        else:
            window = self.windows.learnt(self.inner, model)
        limit = self._tighter(opened, window)
        if limit is None:
            if self._editing.is_news("window", opened):
                say_window_unknown(self.telemetry, "ContextWindowGuard", "nothing is guarded")
            context = yield from self._editing.replay(opened)
        else:
            context = yield from self._fitted(opened, limit)
        try:
            return (yield from arrived.onward(self._editing, context, opened))
        except (ContextOverflowError, FallbackError) as error:
            refusal = overflow_in(error)
            if refusal is None:
                raise
            return (yield from self._recovered(refusal, context, opened, arrived))

    def _lines(self, limit: int) -> str:
        """Return the key of its warning levels: with another threshold or limit, other lines are crossed."""
        return f"{self._editing.owner}:{limit}:{self.warning_threshold:g}"

    def _tighter(self, opened: Opened, window: int | None) -> int | None:
        """Return the limit that binds, the stated one or the window; the context is weighed against that one from here
        on. Never more than a refusal has told."""
        stated = None if self.max_context_tokens == "auto" else self.max_context_tokens
        if window is None:
            return stated
        whole = opened.context.against_window(window)
        if stated is not None and stated <= window - whole.reserved_tokens + opened.context.reserved_tokens:
            return stated
        opened.context = whole
        return window

    def _fitted(self, opened: Opened, limit: int) -> Asking[Context]:
        """Return the context to send: what was decided replayed, weighed, warned of, and pruned if it must be."""
        context = yield from self._editing.replay(opened, limit=limit if self.prune_on_overflow else 0)
        expected = context.as_expected()
        tokens = expected.tokens
        self.telemetry.weighed(tokens, limit)
        context = context if self.prune_on_overflow or self.strict else expected  # or nothing is decided here
        size = tokens if context is expected else max(context.tokens, min(tokens, limit))
        reached = level_of(size, limit, self.warning_threshold)
        was_near = (
            opened.context.request.conversation_id is not None or context.is_edited or opened.seen.conversation.levels
        )
        if reached is Level.FINE and not was_near:  # as far as that is known, so there is nothing to take back
            return context
        lines = self._lines(limit)
        last = self.memory.level(lines, opened.who)
        level = max(reached, held_level(last, size, limit, self.warning_threshold))
        news = level > last or (self.every_call and reached is not Level.FINE)
        if context.tokens > limit:
            context, level = yield from self._over(opened, context, limit, last, news)
        elif news:
            told = max(context, expected, key=lambda each: each.tokens)
            message = f"{'fits' if told.tokens <= limit else 'may not fit'} at {share_of(told, limit)}"
            self.telemetry.warn("context_window_near_limit", message, self._numbers(told, limit, "warn"))
        if level != last:
            self.memory.set_level(lines, opened.who, level)
        return context

    def _over(
        self, opened: Opened, context: Context, limit: int, last: int, news: bool
    ) -> Asking[tuple[Context, Level]]:
        """Above the limit: say so, prune if that is wanted, and say what cannot be helped."""
        action = "prune" if self.prune_on_overflow else "reject" if self.strict else "warn"
        before = context
        if news:
            numbers = self._numbers(context, limit, action)
            error = "ContextOverflowError" if action == "reject" else ""
            outcome = yield from aside(lambda: self._outcome(before, limit), len(before.messages))
            message = f"{outcome} at {share_of(context, limit)}"
            with self.telemetry.warning("context_window_exceeded", message, numbers, error=error):
                context = yield from self._pruned(opened, context, limit)
        else:
            context = yield from self._pruned(opened, context, limit)
        if context.tokens <= limit:
            return context, held_level(Level.EXCEEDED, context.tokens, limit, self.warning_threshold)
        level = Level.IRREDUCIBLE if self.prune_on_overflow else Level.EXCEEDED
        if self.prune_on_overflow and (last < level or self.every_call or context is not before):
            self._say_irreducible(context, limit)
        if self.strict:
            if level > last:
                self.memory.set_level(self._lines(limit), opened.who, level)
            raise self._overflow(context, limit)
        return context, level

    def _overflow(self, context: Context, limit: int) -> ContextOverflowError:
        why = "nothing more may be removed" if self.prune_on_overflow else "prune_on_overflow is off"
        return ContextOverflowError(
            context.tokens,
            limit,
            message=f"ContextWindowGuard: about {context.size_told} do not fit into {limit:,}, and {why}; "
            f"largest: {largest(context)}",
        )

    def _pruned(self, opened: Opened, context: Context, limit: int) -> Asking[Context]:
        if not self.prune_on_overflow:
            return context
        pruner = self._pruner(limit)
        return (yield from self._editing.edit(Policy(pruner.plan, pruner.is_due), context, opened))

    def _pruner(self, limit: int) -> OldestFirst:
        return OldestFirst(max_tokens=limit, target_tokens=max(1, int(limit * self.prune_to)))

    def _outcome(self, context: Context, limit: int) -> str:
        """Say in a word or two what becomes of a request that is too large: lists show no more than that."""
        plan = self._pruner(limit).plan(context) if self.prune_on_overflow else None
        if plan is not None and context.after(plan).tokens <= limit:
            return "pruned"
        return "refused" if self.strict else "cannot fit" if self.prune_on_overflow else "sent as it is"

    def _recovered(
        self, refusal: ContextOverflowError, context: Context, opened: Opened, arrived: Arrived
    ) -> Asking[ChatStream]:
        """Learn from a refusal; a pruning guard then sends less, and less again, as long as there is anything to
        leave out. Nothing has reached the caller yet: ``send`` is primed."""
        told: int | None = None
        if tells_nothing(refusal):
            yield from call(tables_loaded)  # a published window may contradict what is learnt
        context = self._against_window(refusal.limit, context, opened)
        for _ in range(_RETRIES):
            said = limit_in(refusal, context)
            told = said if told is None else min(told, said or told)
            context, limit = self._learnt_from(refusal, said, context, opened, arrived)
            if not self.prune_on_overflow:
                break
            before, plan = context, self._pruner(limit).plan(context)
            smaller = plan is not None and context.after(plan).tokens < context.tokens
            with self.telemetry.warning(
                "context_window_exceeded",
                f"{'pruned' if smaller else 'cannot fit'}: the provider refused about {context.size_told} as too long; "
                f"{limit:,} at most are sent next",
                self._numbers(context, limit, "prune"),
            ):
                # A refusal is news: nothing of it is to be read off the history.
                context = self._editing.apply(plan, context, opened)
            if context.input_tokens >= before.input_tokens:
                self._say_irreducible(context, limit)
                break
            answer = [(yield from self._tried(context, opened, arrived))]
            if isinstance(answer[0], ContextOverflowError):
                refusal = answer[0]
                continue
            if told is not None and context.tokens <= told:  # what was taken although it is larger disproves it
                if not (is_quoted(refusal, before) and self._is_last(arrived)):
                    self.windows.learn(self.inner, opened.model or None, told)
            elif told is None and tells_nothing(refusal) and self._is_last(arrived):
                self._learn_bounds(answer[0], before, context, opened)
            return cast("ChatStream", answer.pop())  # so that a refusal which keeps this frame does not keep the stream
        raise refusal

    def _tried(self, context: Context, opened: Opened, arrived: Arrived) -> Asking[ChatStream | ContextOverflowError]:
        """The answer or the refusal. Caught in here: a refusal holds on to the frames that it went through, and must
        not keep a later answer alive with them that the caller has dropped."""
        try:
            return (yield from arrived.onward(self._editing, context, opened))
        except (ContextOverflowError, FallbackError) as error:
            refusal = overflow_in(error)
            if refusal is None:
                raise
            return refusal

    def _against_window(self, window: int | None, context: Context, opened: Opened) -> Context:
        """A refusal is about the model's window: what it is told of is weighed against that, a stated limit, too."""
        window = window if window is not None and window > 0 else None
        whole = context.against_window(window)
        opened.context = opened.context.against_window(window)
        opened.limit += whole.tokens - context.tokens if opened.limit else 0
        return whole

    def _learn_bounds(self, stream: ChatStream, refused: Context, taken: Context, opened: Opened) -> None:
        """Once the answer is complete, keep what was refused and what was taken, as large as its usage says they are.
        Before that they are estimates, and must not bind other conversations."""
        client, model, earlier = self.inner, opened.model or None, taken_before(opened, refused)
        # Not the contexts: these hold all messages, and the stream would hold them.
        reserved, sizes = taken.reserved_tokens, (refused.tokens, taken.tokens)

        def learn(answer: ChatResponse) -> None:
            counted, reported = sizes[1] - reserved, usage_of_request(answer).input_tokens
            scale = reported / counted if is_plausible(counted, reported) else 1.0
            most, least = (reserved + int((size - reserved) * scale) for size in sizes)
            self.windows.bound(client, model, refused=most, taken=max(earlier, least))

        stream.when_answered(learn)

    def _learnt_from(
        self, refusal: ContextOverflowError, said: int | None, context: Context, opened: Opened, arrived: Arrived
    ) -> tuple[Context, int]:
        """The context as large as it truly is, and the limit that it truly has to fit.

        Where the refusal does not tell, or tells what cannot be, three quarters are tried.
        """
        actual = refusal.actual
        if said is not None:
            opened.limit = min(said, opened.limit or said)
        if actual is not None and is_size(actual, said, context) and self._is_last(arrived):
            if not context.reserved_tokens:  # else nobody knows whether they are in it
                self.services.calibration.learn(opened.model, self._editing.counter, context.input_tokens, actual)
            context = msgspec.structs.replace(context, scale=input_in(actual, context) / context.input_tokens)
        limit = opened.limit or context.tokens
        if context.tokens <= limit:
            limit = max(1, int(context.tokens * UNTOLD_SHARE), taken_before(opened, context))
        if tells_nothing(refusal):  # the next call will keep to it, too
            opened.limit = limit
        return context, limit

    def _is_last(self, arrived: Arrived) -> bool:
        """Tell whether nobody further in has edited, so that a refusal is of what was weighed here."""
        edits_further = any(layer_kind(each) == "context" for each in chain(self.inner))
        return not (arrived.passage.has_references or edits_further)

    def _say_irreducible(self, context: Context, limit: int) -> None:
        self.telemetry.warn(
            "context_irreducible",
            f"{'refused: ' if self.strict else ''}cannot fit: about {context.size_told}, {context.tokens - limit:,} "
            f"above the limit of {limit:,}, and nothing more may be removed; largest: {largest(context)}",
            self._numbers(context, limit, "reject" if self.strict else "warn"),
            error="ContextOverflowError" if self.strict else "",
        )

    def _numbers(self, context: Context, limit: int, action: str) -> dict[str, Value]:
        return {
            semconv.GUARD_ACTION: action,
            semconv.CONTEXT_INPUT_TOKENS: context.tokens,
            semconv.CONTEXT_WINDOW_TOKENS: limit,
            semconv.CONTEXT_UTILIZATION: round(context.tokens / limit, 4),
            semconv.CONTEXT_THRESHOLD: self.warning_threshold,
            semconv.CONTEXT_TOKEN_SOURCE: self._editing.counter.source,
        }
