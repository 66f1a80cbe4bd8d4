"""The last look before a request goes out: does it fit?"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal, cast

import msgspec

from chatstack import semconv
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient, chain
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import wrong
from chatstack.context.context import Context
from chatstack.context.editing import ContextEditing
from chatstack.context.levels import Level, held_level, largest, level_of
from chatstack.context.limits import check_share, check_window
from chatstack.context.memory import ContextMemory
from chatstack.context.opened import Opened
from chatstack.context.pruning import OldestFirst
from chatstack.context.saying import say_window_unknown
from chatstack.errors import ContextOverflowError, FallbackError
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.spans import Value
from chatstack.tokens.calibration import Calibration
from chatstack.tokens.counter import TokenCounter, char_counter
from chatstack.tokens.windows import Windows
from chatstack.values.requests import ChatRequest

_RETRIES = 3
"""How often a refused request is tried again, smaller each time."""
_SMALLER = 0.75
_FURTHEST = 4
"""A limit so many times larger than what was refused is not what it failed at, and a size so many times smaller than
its estimate not its own. The other way round both may be: nobody can tell a language that the counter cannot count."""


@dataclass(frozen=True, slots=True, eq=False)
class ContextWindowGuard(ChatFronts):
    """Warns when a request comes near the model's window, and, if told to, prunes what does not fit.

    Goes innermost, where it weighs what is really sent: instructions, every part of every message, tool schemas and
    the reserved output (``max_tokens`` of the options). ``max_context_tokens`` is a number, or ``"auto"`` for the
    model's window. ``warning_threshold`` is a share of it. ``prune_on_overflow`` removes the oldest units, whole ones
    only, down to ``prune_to`` (a share), and the same ones again on later calls; never system, pinned and summary
    messages, the first and the latest user message, or calls that wait for results. What cannot be made to fit is
    sent as it is, or, with ``strict``, raised as ``ContextOverflowError`` before anything is sent. Sizes are
    estimates, by ``counter``, else by ``chars_per_token``, corrected by what the provider reports. Each crossing is
    warned of once; ``every_call`` repeats it.
    Where the provider refuses a request as too long, a pruning guard takes the sizes that it tells for the true ones,
    prunes, and sends less, up to three times, as nothing has reached the caller yet; a limit that proved true holds
    from then on, whatever ``max_context_tokens`` says.
    Source: seed ``needlr-context-window-guard``.
    """

    inner: ChatClient
    _: KW_ONLY
    max_context_tokens: int | Literal["auto"]
    warning_threshold: float = 0.8
    prune_on_overflow: bool = False
    prune_to: float = 0.7
    chars_per_token: float = 4
    counter: TokenCounter | None = None
    strict: bool = False
    every_call: bool = False
    memory: ContextMemory = field(default_factory=ContextMemory, repr=False)
    calibration: Calibration = field(default_factory=Calibration, repr=False)
    windows: Windows = field(default_factory=Windows, repr=False)
    telemetry: Telemetry = field(default_factory=Telemetry, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)

    kind: ClassVar[str] = "context"

    def __post_init__(self) -> None:
        check_window("ContextWindowGuard", self.max_context_tokens)
        for name in ("warning_threshold", "prune_to"):
            check_share("ContextWindowGuard", name, getattr(self, name), "the window")
        characters: object = self.chars_per_token
        if type(characters) not in (int, float) or not 0.1 <= self.chars_per_token <= 100:
            raise wrong("ContextWindowGuard", "chars_per_token", characters, "a number from 0.1 to 100")
        for name in ("prune_on_overflow", "strict", "every_call"):
            switch: object = getattr(self, name)
            if not isinstance(switch, bool):
                raise wrong("ContextWindowGuard", name, switch, "True or False")
        counter = self.counter or char_counter(self.chars_per_token)
        editing = ContextEditing.around(
            self.inner,
            f"guard({self.max_context_tokens},{self.prune_to:g},{self.prune_on_overflow})",
            layer="ContextWindowGuard",
            memory=self.memory,
            telemetry=self.telemetry,
            counter=counter,
            calibration=self.calibration,
        )
        object.__setattr__(self, "_editing", editing)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if self._editing.stands_aside(request):
            return await self.inner.send(request)
        opened = self._editing.open(request)
        limit = await self._limit(request)
        if limit is None:
            self._say_unknown(opened)
            context = await self._editing.replay(opened)
        else:
            context = await self._fitted(request, opened, limit)
        try:
            return await self._editing.send(self.inner, context, opened)
        except (ContextOverflowError, FallbackError) as error:
            refusal = _overflow_in(error)
            if refusal is None:
                raise
            return await self._recovered(refusal, context, opened)

    def _lines(self, limit: int) -> str:
        """What its levels are kept under: with another threshold or limit, other lines are crossed."""
        return f"{self._editing.owner}:{limit}:{self.warning_threshold:g}"

    async def _limit(self, request: ChatRequest) -> int | None:
        """What was asked for, or the model's window; never more than what a refusal has told."""
        model = request.options.model
        if self.max_context_tokens == "auto":
            return await self.windows.of(self.inner, model)
        learnt = self.windows.learnt(self.inner, model)
        return self.max_context_tokens if learnt is None else min(self.max_context_tokens, learnt)

    async def _fitted(self, request: ChatRequest, opened: Opened, limit: int) -> Context:
        """The context to send: what was decided replayed, weighed, warned of, and pruned if it must be."""
        if self.prune_on_overflow:
            opened.limit = limit
        context = await self._editing.replay(opened)
        self.telemetry.weighed(context.tokens, limit)
        reached = level_of(context.tokens, limit, self.warning_threshold)
        was_near = request.conversation_id is not None or context.is_edited or opened.seen.history.levels
        if reached is Level.FINE and not was_near:  # as far as that is known, so there is nothing to take back
            return context
        lines = self._lines(limit)
        last = self.memory.level(lines, opened.who)
        level = max(reached, held_level(last, context.tokens, limit, self.warning_threshold))
        news = level > last or (self.every_call and reached is not Level.FINE)
        if context.tokens > limit:
            context, level = await self._over(opened, context, limit, last, news)
        elif news:
            self._say_near(context, limit)
        if level != last:
            self.memory.set_level(lines, opened.who, level)
        return context

    async def _over(self, opened: Opened, context: Context, limit: int, last: int, news: bool) -> tuple[Context, Level]:
        """Above the limit: say so, prune if that is wanted, and say what cannot be helped."""
        action = "prune" if self.prune_on_overflow else "reject" if self.strict else "warn"
        message = _share(context, limit)
        before = context
        if news:
            numbers = self._numbers(context, limit, action)
            error = "ContextOverflowError" if action == "reject" else ""
            with self.telemetry.warning("context_window_exceeded", message, numbers, error=error):
                context = await self._pruned(opened, context, limit)
        else:
            context = await self._pruned(opened, context, limit)
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
            message=f"ContextWindowGuard: about {context.tokens:,} tokens do not fit into {limit:,}, and {why}; "
            f"largest: {largest(context)}",
        )

    async def _pruned(self, opened: Opened, context: Context, limit: int) -> Context:
        if not self.prune_on_overflow:
            return context
        return await self._editing.apply(self._pruner(limit).plan(context), context, opened)

    def _pruner(self, limit: int) -> OldestFirst:
        return OldestFirst(max_tokens=limit, target_tokens=max(1, int(limit * self.prune_to)))

    async def _recovered(self, refusal: ContextOverflowError, context: Context, opened: Opened) -> ChatStream:
        """Learn from a refusal; a pruning guard then sends less, and less again, as long as there is anything to
        leave out. Nothing has reached the caller yet: ``send`` is primed."""
        told: int | None = None
        for _ in range(_RETRIES):
            said = _limit_in(refusal, context)
            told = said if told is None else min(told, said or told)
            context, limit = self._learnt_from(refusal, said, context, opened)
            if not self.prune_on_overflow:
                break
            before = context
            with self.telemetry.warning(
                "context_window_exceeded",
                f"refused as too long: about {context.tokens:,} tokens; {limit:,} at most are sent next",
                self._numbers(context, limit, "prune"),
            ):
                context = await self._pruned(opened, context, limit)
            if context.input_tokens >= before.input_tokens:
                self._say_irreducible(context, limit)
                break
            answer = [await self._tried(context, opened)]
            if isinstance(answer[0], ContextOverflowError):
                refusal = answer[0]
                continue
            if told is not None and context.tokens <= told:  # what was taken although it is larger disproves it
                self.windows.learn(self.inner, opened.model or None, told)
            return cast("ChatStream", answer.pop())  # so that a refusal which keeps this frame does not keep the stream
        raise refusal

    async def _tried(self, context: Context, opened: Opened) -> ChatStream | ContextOverflowError:
        """The answer or the refusal. Caught in here: a refusal holds on to the frames that it went through, and must
        not keep a later answer alive with them that the caller has dropped."""
        try:
            return await self._editing.send(self.inner, context, opened)
        except (ContextOverflowError, FallbackError) as error:
            refusal = _overflow_in(error)
            if refusal is None:
                raise
            return refusal

    def _learnt_from(
        self, refusal: ContextOverflowError, said: int | None, context: Context, opened: Opened
    ) -> tuple[Context, int]:
        """The context as large as it truly is, and the limit that it truly has to fit.

        Where the refusal does not tell, or tells what cannot be, three quarters are tried.
        """
        actual = refusal.actual
        if said is not None:
            opened.limit = min(said, opened.limit or said)
        if actual is not None and _is_size(actual, said, context) and self._is_last:
            if not context.reserved_tokens:  # else nobody knows whether they are in it
                self.calibration.learn(opened.model, self._editing.counter, context.input_tokens, actual)
            context = msgspec.structs.replace(context, scale=_input_in(actual, context) / context.input_tokens)
        limit = opened.limit or context.tokens
        return context, limit if context.tokens > limit else max(1, int(context.tokens * _SMALLER))

    @property
    def _is_last(self) -> bool:
        """Whether nobody further in edits, so that a refusal is of what was weighed here."""
        return not any(getattr(each, "kind", "") == "context" for each in chain(self.inner))

    def _say_near(self, context: Context, limit: int) -> None:
        self.telemetry.warn(
            "context_window_near_limit",
            _share(context, limit),
            self._numbers(context, limit, "warn"),
        )

    def _say_irreducible(self, context: Context, limit: int) -> None:
        self.telemetry.warn(
            "context_irreducible",
            f"cannot be made to fit: about {context.tokens:,} tokens, {context.tokens - limit:,} above the limit of "
            f"{limit:,}, and nothing more may be removed; largest: {largest(context)}",
            self._numbers(context, limit, "reject" if self.strict else "warn"),
            error="ContextOverflowError" if self.strict else "",
        )

    def _say_unknown(self, opened: Opened) -> None:
        if self._editing.is_news("window", opened):
            say_window_unknown(self.telemetry, "ContextWindowGuard", "nothing is guarded")

    def _numbers(self, context: Context, limit: int, action: str) -> dict[str, Value]:
        return {
            semconv.GUARD_ACTION: action,
            semconv.CONTEXT_INPUT_TOKENS: context.tokens,
            semconv.CONTEXT_WINDOW_TOKENS: limit,
            semconv.CONTEXT_UTILIZATION: round(context.tokens / limit, 4),
            semconv.CONTEXT_THRESHOLD: self.warning_threshold,
            semconv.CONTEXT_TOKEN_SOURCE: self._editing.counter.source,
        }


def _share(context: Context, limit: int) -> str:
    """How full it is, in words: what matters comes first, as lists show no more than that."""
    return f"{context.tokens / limit:.0%} of the limit: about {context.tokens:,} of {limit:,} tokens"


def _limit_in(refusal: ContextOverflowError, context: Context) -> int | None:
    """The limit that a refusal tells, if it can be one."""
    limit = refusal.limit
    highest = max(context.tokens * _FURTHEST, (refusal.actual or 0) - 1)
    return limit if limit is not None and 0 < limit <= highest else None


def _is_size(actual: int, limit: int | None, context: Context) -> bool:
    """Whether a refusal can be right about the size: it is above the limit, and not far below the estimate."""
    return actual > (limit or 0) and actual * _FURTHEST >= context.input_tokens > 0


def _input_in(actual: int, context: Context) -> int:
    """The input in what a refusal calls the size: whichever comes nearer to the estimate, with the room for the answer
    or without."""
    estimated = context.tokens - context.reserved_tokens
    without = actual - context.reserved_tokens
    return without if without > 0 and abs(without - estimated) < abs(actual - estimated) else actual


def _overflow_in(error: ContextOverflowError | FallbackError) -> ContextOverflowError | None:
    """What the client that is asked first said of the size; the others are asked again with less, too."""
    said = error.exceptions[0] if isinstance(error, FallbackError) else error
    return said if isinstance(said, ContextOverflowError) else None
