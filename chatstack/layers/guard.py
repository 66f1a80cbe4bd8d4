"""The last look before a request goes out: does it fit?"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal

import msgspec

from chatstack import semconv
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient, provider_info
from chatstack.client.stream import ChatStream
from chatstack.context.context import Context
from chatstack.context.editing import ContextEditing, Opened
from chatstack.context.levels import Level, held_level, largest, level_of
from chatstack.context.memory import ContextMemory
from chatstack.context.pruning import OldestFirst
from chatstack.errors import ContextOverflowError, WiringError
from chatstack.telemetry.emission import Telemetry, Value
from chatstack.tokens.calibration import Calibration
from chatstack.tokens.counter import TokenCounter, char_counter
from chatstack.tokens.windows import Windows
from chatstack.values.requests import ChatRequest

_RETRIES = 3
"""How often a refused request is tried again, smaller each time."""
_SMALLER = 0.75


@dataclass(frozen=True, slots=True, eq=False)
class ContextWindowGuard(ChatFronts):
    """Warns when a request comes near the model's window, and, if told to, prunes what does not fit.

    Goes innermost, where it weighs what is really sent: instructions, every part of every message, tool schemas and
    the reserved output (``max_tokens`` of the options). ``max_context_tokens`` is a number, or ``"auto"`` for the
    model's window. ``warning_threshold`` is a share of it. ``prune_on_overflow`` removes the oldest units, whole ones
    only, down to ``prune_to`` (a share), and the same ones again on later calls; never system, pinned and summary
    messages, the first and the latest user message, or calls that wait for results. What cannot be made to fit is
    sent as it is, or, with ``strict``, raised as ``ContextOverflowError`` before anything is sent. Sizes are
    estimates, by ``counter`` or by ``chars_per_token``. Each crossing is warned of once; ``every_call`` repeats it.
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
        limit = self.max_context_tokens
        if limit != "auto" and (type(limit) is not int or limit <= 0):
            raise _wrong("max_context_tokens", limit, 'a whole number of tokens greater than 0, or "auto"')
        for name in ("warning_threshold", "prune_to"):
            share: object = getattr(self, name)
            if not isinstance(share, int | float) or isinstance(share, bool) or not 0 < share <= 1:
                raise _wrong(name, share, "a share of the window: greater than 0, at most 1")
        characters: object = self.chars_per_token
        if type(characters) not in (int, float) or not 0.1 <= self.chars_per_token <= 100:
            raise _wrong("chars_per_token", characters, "a number from 0.1 to 100")
        if self.counter is not None and not isinstance(self.counter, TokenCounter):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _wrong("counter", type(self.counter).__name__, "a TokenCounter")
        counter = self.counter or char_counter(self.chars_per_token)
        owner = f"guard({limit},{self.prune_to:g},{self.prune_on_overflow},{counter!r})"
        info = provider_info(self.inner)
        reserve, model = (info.default_max_tokens, info.model) if info is not None else (0, "")
        editing = ContextEditing(self.memory, self.telemetry, counter, owner, reserve, self.calibration, model)
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
        except ContextOverflowError as refusal:
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
        self.telemetry.utilization.record(context.tokens / limit)
        reached = level_of(context.tokens, limit, self.warning_threshold)
        if reached is Level.FINE and request.conversation_id is None and not context.is_edited:
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
        message = f"about {context.tokens:,} tokens, the limit is {limit:,}"
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
        for _ in range(_RETRIES):
            context, limit = self._learnt_from(refusal, context, opened)
            if not self.prune_on_overflow:
                break
            before = context
            told = f"the provider refused it as too long: {context.tokens:,} tokens, the limit is {limit:,}"
            with self.telemetry.warning("context_window_exceeded", told, self._numbers(context, limit, "prune")):
                context = await self._pruned(opened, context, limit)
            if context is before:
                self._say_irreducible(context, limit)
                break
            try:
                stream = await self._editing.send(self.inner, context, opened)
            except ContextOverflowError as again:
                refusal = again
            else:
                if refusal.limit is not None:  # it has proved true
                    self.windows.learn(self.inner, opened.model or None, refusal.limit)
                return stream
        raise refusal

    def _learnt_from(self, refusal: ContextOverflowError, context: Context, opened: Opened) -> tuple[Context, int]:
        """The context as large as it truly is, and the limit that it truly has to fit.

        Where the refusal does not tell, or tells what the estimate contradicts, three quarters are tried.
        """
        if refusal.limit is not None:
            opened.limit = min(refusal.limit, opened.limit or refusal.limit)
        if refusal.actual is not None and context.input_tokens:
            if not context.reserved_tokens:  # else nobody knows whether they are in it
                self.calibration.learn(opened.model, self._editing.counter, context.input_tokens, refusal.actual)
            context = msgspec.structs.replace(context, scale=max(context.scale, refusal.actual / context.input_tokens))
        limit = opened.limit or context.tokens
        return context, limit if context.tokens > limit else max(1, int(context.tokens * _SMALLER))

    def _say_near(self, context: Context, limit: int) -> None:
        share = context.tokens / limit
        self.telemetry.warn(
            "context_window_near_limit",
            f"about {context.tokens:,} tokens, {share:.0%} of {limit:,}",
            self._numbers(context, limit, "warn"),
        )

    def _say_irreducible(self, context: Context, limit: int) -> None:
        self.telemetry.warn(
            "context_irreducible",
            f"about {context.tokens:,} tokens, {context.tokens - limit:,} above the limit of {limit:,}, "
            f"and nothing more may be removed; largest: {largest(context)}",
            self._numbers(context, limit, "reject" if self.strict else "warn"),
            error="ContextOverflowError" if self.strict else "",
        )

    def _say_unknown(self, opened: Opened) -> None:
        if self._editing.is_news("window", opened):
            self.telemetry.warn(
                "window_unknown",
                'max_context_tokens="auto", but nobody knows the window of this model: nothing is guarded; '
                "give max_context_tokens a number",
                {semconv.GUARD_ACTION: "warn"},
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


def _wrong(parameter: str, value: object, wanted: str) -> WiringError:
    return WiringError(
        f"ContextWindowGuard: {parameter}={value!r} must be {wanted}", layer="ContextWindowGuard", parameter=parameter
    )
