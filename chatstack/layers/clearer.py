"""Clears old tool results before the context grows too large."""

from __future__ import annotations

import asyncio
from dataclasses import KW_ONLY, dataclass, field, fields
from operator import attrgetter
from typing import ClassVar, Literal

import msgspec

from chatstack.client.checks import wraps_a_client
from chatstack.client.options import PositiveInt
from chatstack.client.protocol import ChatClient, CountsTokens, chain
from chatstack.client.stream import ChatStream
from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.decisions.policy import Policy
from chatstack.context.edits.context import Context
from chatstack.context.edits.handles import PLACEHOLDER
from chatstack.context.passage import Arrived
from chatstack.context.requests.asking import Asking, call
from chatstack.context.requests.left_out import without_left_out
from chatstack.context.requests.opened import Opened
from chatstack.context.requests.saying import say_estimated, say_provider_cleared, say_window_unknown
from chatstack.context.requests.services import ContextServices
from chatstack.context.run import ContextLayer
from chatstack.context.strategies.clearing import ClearToolResults
from chatstack.context.strategies.clearing_options import ClearingOptions
from chatstack.layers.native import LeftToProvider, Native, NotNative
from chatstack.stack.order import ContextStage
from chatstack.tokens.counter import TokenCounter
from chatstack.tokens.windows import is_asked_for
from chatstack.values.native import NativeClearing
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class ToolResultClearer(ClearingOptions, ContextLayer):
    """Clears old tool results in batches, the same ones again on every later call, so that prompt caches hold.

    Goes inside the tool loop, outside the summarizer and the guard. ``trigger`` says when: exactly one of
    ``{"tokens": n}`` of input, ``{"messages": n}`` and ``{"fraction": x}`` of the window. ``keep`` says what stays:
    exactly one of ``{"messages": n}``, the newest results, ``{"tokens": n}`` and ``{"fraction": x}``, the newest that
    fit. ``exclude_tools`` are never cleared, and do not use up ``keep``. ``placeholder`` is what stands in their place;
    ``{tool}``, ``{tokens}`` and ``{handle}`` in it are filled in, the handle for ``recall_tool``. ``clear_tool_inputs``
    also clears the arguments of the calls, of all or of some tools. ``clear_at_least`` keeps an edit from being made
    that saves fewer tokens; ``"pays"`` lets it wait until reading those tokens again and again has cost twice what it
    will cost, the window forces it (where it is known, and the edit gets below it), or the cache is cold.
    ``token_count_method="model"`` has the provider count, where its API can, before an edit is decided on an estimate.
    ``max_context_tokens`` is the window, where nobody else tells it.
    Never cleared: what the model has not seen yet, errors, pinned messages, calls that wait for results.

    ``native="on"`` leaves the edit to the provider's API, with the same options (Anthropic's ``clear_tool_uses``), and
    is an error where one has no counterpart there: ``trigger`` in messages, ``keep`` in tokens, a ``placeholder``,
    ``clear_at_least="pays"``. ``"auto"`` leaves it to Anthropic's own server, for models that are said to have it, and
    else edits here. Never both: a request with pinned tool results is always edited here, as the API knows no pins.
    What the provider says that it cleared is an edit in spans and metrics, and in ``response.applied_edits``. It
    decides anew for each request, by rules of its own: errors may go, what is gone cannot be recalled, and nothing is
    promised about the prompt cache. So the default is ``"off"``.
    Source: Xpert's context editing.
    """

    inner: ChatClient
    _: KW_ONLY
    token_count_method: Literal["approx", "model"] = "approx"
    max_context_tokens: PositiveInt | Literal["auto"] = "auto"
    native: Native = "off"
    counter: TokenCounter | None = None
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _strategy: ClearToolResults = field(init=False, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)
    _native: LeftToProvider | None = field(init=False, repr=False)

    version: ClassVar[int] = 1
    stage: ClassVar[ContextStage] = "clear"

    def __post_init__(self) -> None:
        ClearingOptions.__post_init__(self)
        options = {each.name: getattr(self, each.name) for each in fields(ClearingOptions)}
        editing = ContextEditing.around(self.inner, self, self.services, self.counter)
        object.__setattr__(self, "_strategy", ClearToolResults(**options))
        object.__setattr__(self, "_editing", editing)
        left = LeftToProvider.where_possible(type(self).__name__, self.native, self.inner, self._as_native)
        object.__setattr__(self, "_native", left)

    @property
    def may_wait(self) -> bool:
        """True where an edit may have to wait: for a store, a count, or the provider to tell its window."""
        asks_window = self._by_shares and self.max_context_tokens == "auto" and is_asked_for(self.inner)
        asks = self._native is not None and self._native.asks
        return self.memory.shared is not None or self.token_count_method == "model" or asks_window or asks

    @property
    def needs_window(self) -> bool:
        """True where the model's window decides, and nobody has stated it."""
        return self._strategy.needs_window and self.max_context_tokens == "auto"

    @property
    def _by_shares(self) -> bool:
        return "fraction" in self.trigger or "fraction" in self.keep

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        editing, strategy = self._editing, self._strategy
        if self._native is not None:
            pinned, clears = attrgetter("pinned_results"), self._cleared_by_provider
            stream = yield from self._native.passed(arrived, editing, self._say_cleared, pinned=pinned, clears=clears)
            if stream is not None:
                return stream
        opened = arrived.opened(editing)
        by_shares = self._by_shares
        window = None if self.max_context_tokens == "auto" else self.max_context_tokens
        if window is None and (by_shares or self.clear_at_least == "pays" or opened.is_unstable):
            window = yield from self._window(opened, by_shares)
        context = yield from editing.replay(opened, limit=window or 0 if by_shares else 0)
        if window is not None:
            context = msgspec.structs.replace(context, window_tokens=window)
        whole = context
        is_due = strategy.is_due(context)
        if is_due:
            context = without_left_out(context, opened, (yield from arrived.folded_behind()))
        if self.token_count_method == "model" and not opened.is_anchored:
            context = yield from self._counted(context, whole, opened)
        if is_due if context is whole else strategy.is_due(context):
            context = yield from self._cleared(context, opened)
        return (yield from arrived.onward(editing, context, opened))

    @property
    def _as_native(self) -> NativeClearing | NotNative:
        """The same options for a provider's API, or the first that it has no counterpart of."""
        (when, trigger), (what, keep) = self._when, self._stays
        if when == "fraction" and self.max_context_tokens != "auto":
            when, trigger = "tokens", trigger * self.max_context_tokens
        if when != "tokens":
            return NotNative("trigger", self.trigger, '{"tokens": n}, or a fraction of a given max_context_tokens,')
        if what != "messages":
            return NotNative("keep", self.keep, '{"messages": n}')
        if self.placeholder != PLACEHOLDER:
            return NotNative("placeholder", self.placeholder, "left out")
        if self.clear_at_least == "pays":
            return NotNative("clear_at_least", self.clear_at_least, "a number of tokens")
        inputs = self.clear_tool_inputs
        return NativeClearing(
            trigger_tokens=max(1, int(trigger)),
            keep_results=int(keep),
            exclude_tools=tuple(self.exclude_tools),
            clear_tool_inputs=inputs if isinstance(inputs, bool) else tuple(inputs),
            clear_at_least=self.clear_at_least,
        )

    def _say_cleared(self, opened: Opened, answer: ChatResponse) -> None:
        """Report what the provider has cleared, if that is news."""
        cleared, key = sum(each.cleared_tokens for each in answer.applied_edits), f"{self._editing.owner}:native"
        before = self.memory.level(key, opened.who)
        if self.memory.raise_level(key, opened.who, cleared):
            say_provider_cleared(self.telemetry, self._strategy.name, answer, before=before)
        elif not cleared and self._strategy.is_due(self._weighed(opened)):
            self._editing.is_news("not_native", opened)

    def _cleared_by_provider(self, opened: Opened) -> int:
        """Estimate the tokens that the provider clears: what it cleared last, else, as long as it has not cleared
        nothing where this layer would, what this layer would clear."""
        last = opened.last_answer
        if last is not None and last.cleared_tokens:
            return last.cleared_tokens
        context = self._weighed(opened)
        if not self._strategy.is_due(context) or self._editing.was_said("not_native", opened):
            return 0
        plan = self._strategy.plan(context)
        return 0 if plan is None else context.tokens - context.after(plan).tokens

    def _weighed(self, opened: Opened) -> Context:
        return self._editing.reports.corrected(opened, opened.context)

    def _window(self, opened: Opened, needed: bool) -> Asking[int | None]:
        """Return the model's window. Warns if it is ``needed``, and nobody knows it."""
        window = yield from call(self.windows.of, self.inner, opened.context.request.options.model)
        if window is not None:
            opened.context = opened.context.against_window(window)
        if needed and window is None and self._editing.is_news("window", opened):
            say_window_unknown(self.telemetry, "ToolResultClearer", "nothing is cleared by fractions of it")
        return window

    def _counted(self, context: Context, whole: Context, opened: Opened) -> Asking[Context]:
        """Return the context with its size as the provider counts it, if an estimate comes near the trigger."""
        near = msgspec.structs.replace(context, scale=context.scale * _NEAR)
        if "messages" in self._strategy.trigger or not self._strategy.is_due(near) or not context.input_tokens:
            return context
        if self._editing.was_said("count", opened):
            return context  # it was asked, and did not tell
        counted = yield from call(_count_by_provider, self.inner, whole.to_send())
        if counted is None or counted <= 0:
            if self._editing.is_news("count", opened):
                say_estimated(self.telemetry, "clear_tool_results")
            return context
        self.services.calibration.learn(opened.model, self._editing.counter, whole.input_tokens, counted)
        return msgspec.structs.replace(context, scale=counted / whole.input_tokens)

    def _cleared(self, context: Context, opened: Opened) -> Asking[Context]:
        strategy = self._strategy
        by_size = "messages" not in strategy.trigger
        policy = Policy(strategy.plan, strategy.is_due, self._waits_on, by_size=by_size)
        after = yield from self._editing.edit(policy, context, opened)
        if not opened.has_looked or not by_size or not strategy.is_due(after):
            return after
        if self._editing.was_said("ineffective", opened):
            return after
        nothing = not strategy.batch(after)
        if nothing or after is not context:
            why = "no tool result is left that may be cleared" if nothing else "the results that may be cleared are few"
            self._editing.say_ineffective(strategy.name, after, opened, why)
        return after

    def _waits_on(self, context: Context) -> tuple[int, ...] | None:
        strategy = self._strategy
        if strategy.is_forced(context) or (strategy.clear_at_least == "pays" and context.is_cold):
            return None
        return (context.tokens,)


async def _count_by_provider(client: ChatClient, request: ChatRequest) -> int | None:
    """Return how many tokens a request has as the provider counts it; None if nobody can tell."""
    teller = next((each for each in chain(client) if isinstance(each, CountsTokens)), None)
    if teller is None:
        return None
    try:
        async with asyncio.timeout(_COUNT_SECONDS):
            return await teller.count_tokens(request)
    except Exception:  # noqa: BLE001 - the call itself will meet the same trouble, and say so
        return None


_COUNT_SECONDS = 5.0
_NEAR = 1.5
"""An estimate that far below the trigger is trusted, and not counted."""
