"""The context window: a strategy with the limits of a conversation, and the layer that keeps them."""

from __future__ import annotations

import functools
import sys
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar, Protocol, cast

from chatstack import semconv
from chatstack.client.options import PositiveFloat, PositiveInt, Share
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.context.edits.context import Context
from chatstack.context.edits.plans import Plan
from chatstack.context.edits.summaries import SUMMARY_PROMPT, SummaryPrompt
from chatstack.context.edits.units import is_users
from chatstack.context.passage import Arrived
from chatstack.context.requests.asking import Asking
from chatstack.context.requests.services import ContextServices
from chatstack.context.run import ContextLayer
from chatstack.context.strategies.truncating import Truncate
from chatstack.context.strategy import Strategy, StrategyApplier
from chatstack.layers.summarizer import Summarizer
from chatstack.layers.summarizing import SummaryClient, check_summarizing
from chatstack.stack.order import ContextStage
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest


@dataclass(frozen=True, slots=True, repr=False)
class ContextWindow(Strategy):
    """Keeps a conversation within ``max_tokens`` of input and ``max_context_items``: compresses, then truncates.

    Use it as a layer (``.use(ContextWindow, max_tokens=4_000)``) inside the tool loop, or hand it to a node
    (``ChatNode(client, context_manager=ContextWindow(...))``). Over a limit, everything older than the newest
    ``keep_recent_turns`` turns goes into one summary, as in ``Summarizer``; if that fails, or is not enough, the oldest
    units are left out, as in ``Truncate``, until there is a summary of them. Nothing is dropped from your own list, so
    what was left out for a while is in the next summary.
    How often it summarizes depends on the room between what stays and the limits: choose limits several times as large
    as ``keep_recent_turns`` turns.
    After ``max_tool_calls_per_turn`` calls since the last user message, tools are declared but not allowed; if the tool
    loop has a limit of its own, the smaller one wins. None is no limit. A context manager of a node cannot forbid
    tools: there, the tool loop has to keep that limit.
    Without ``max_tokens`` and ``max_context_items`` it limits tool calls only.
    Without a ``summary_client`` the model that answers also writes the summaries. ``prepare_at`` and ``cache_aligned``
    are those of ``Summarizer``.
    Source: VideoSDK's context window.
    """

    max_tokens: PositiveInt | None = None
    max_context_items: PositiveInt | None = None
    keep_recent_turns: PositiveInt = 3
    max_tool_calls_per_turn: PositiveInt | None = 10
    summary_client: SummaryClient | None = None
    _: KW_ONLY
    compress_to: Share = 0.6
    summary_prompt: SummaryPrompt = SUMMARY_PROMPT
    summary_timeout_seconds: PositiveFloat = 60.0
    max_summary_tokens: PositiveInt | None = None
    prepare_at: Share | None = None
    cache_aligned: bool = False
    name = "context_window"
    quotes_nothing = True

    def __post_init__(self) -> None:
        client, aligned = self.summary_client, self.cache_aligned
        check_summarizing(self, self.max_tokens, self.max_summary_tokens, client, cache_aligned=aligned)

    @property
    def has_limits(self) -> bool:
        """True if there is a limit in tokens or in items."""
        return self.max_tokens is not None or self.max_context_items is not None

    @property
    def asks_inner(self) -> bool:
        return self.has_limits and self.summary_client is None

    @property
    def truncation(self) -> Truncate:
        """The truncation that is applied if there is no summary."""
        return Truncate(self.max_tokens, self.max_context_items)

    def plan(self, context: Context) -> Plan | None:
        """Plan the truncation alone: a plan cannot call a model. The layer summarizes before it."""
        return self.truncation.plan(context)

    def excess(self, context: Context) -> str:
        return self.truncation.excess(context)

    def for_messages_alone(self) -> ContextWindow:
        return replace(self, max_tool_calls_per_turn=None)

    def as_layer(self) -> KeepsWindow:
        return functools.partial(WindowKeeper, strategy=self)


class KeepsWindow(Protocol):
    """The factory of a window's layer, with the options that ``.use(window, ...)`` takes."""

    def __call__(
        self, inner: ChatClient, /, *, summary_client: SummaryClient | None = None, counter: TokenCounter | None = None
    ) -> ChatClient: ...


@dataclass(frozen=True, slots=True, eq=False)
class WindowKeeper(ContextLayer):
    """Keeps every request within a ``ContextWindow``: the layer that ``.use(ContextWindow, ...)`` puts into a stack.

    Goes inside the tool loop, so that it sees each round. ``summary_client`` comes from the container, unless the
    window has its own.
    """

    inner: ChatClient
    _: KW_ONLY
    strategy: ContextWindow
    summary_client: SummaryClient | None = None
    counter: TokenCounter | None = None
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _compressing: Summarizer | None = field(init=False, repr=False)

    stage: ClassVar[ContextStage] = "summarize"

    def __post_init__(self) -> None:
        window, compressing = self.strategy, None
        if window.has_limits:  # compress, then truncate, so that truncated messages are still in the next summary
            counter, services = self.counter, self.services
            truncating = StrategyApplier(self.inner, strategy=window.truncation, counter=counter, services=services)
            compressing = Summarizer(
                truncating,
                max_tokens=window.max_tokens,
                max_context_items=window.max_context_items,
                keep_recent_turns=window.keep_recent_turns,
                compress_to=window.compress_to,
                summary_client=window.summary_client or self.summary_client,
                summary_prompt=window.summary_prompt,
                summary_timeout_seconds=window.summary_timeout_seconds,
                max_summary_tokens=window.max_summary_tokens,
                prepare_at=window.prepare_at,
                cache_aligned=window.cache_aligned,
                counter=counter,
                services=services,
            )
        object.__setattr__(self, "_compressing", compressing)

    @property
    def parts(self) -> tuple[ContextLayer, ...]:
        """Itself, which forbids further tool calls, and what keeps the limits: compression, then truncation."""
        within = self._compressing
        return (self,) if within is None else (self, within, *cast("ContextLayer", within.inner).parts)

    async def aclose(self) -> None:
        """Cancel the summaries that are being prepared, and prepare no more. May be called again and again."""
        if self._compressing is not None:
            await self._compressing.aclose()

    def tool_calls_left(self, messages: tuple[Message, ...]) -> int:
        """Return the number of tool calls still allowed; the tool loop answers further calls with an error."""
        most = self.strategy.max_tool_calls_per_turn
        return sys.maxsize if most is None else most - _calls_since_the_user_spoke(messages, most)[0]

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        return arrived.as_is(self._without_more_calls(arrived.request))

    def _without_more_calls(self, request: ChatRequest) -> ChatRequest:
        """Return the request, with tools forbidden if the turn has used up its calls."""
        most, options = self.strategy.max_tool_calls_per_turn, request.options
        if most is None or not options.tools or options.tool_choice == "none":
            return request
        calls, latest = _calls_since_the_user_spoke(request.messages, most)
        if calls < most:
            return request
        if calls - latest < most:  # else the round before has warned of it
            self.telemetry.warn(
                "tool_loop_limit_reached",
                f"{calls} tool calls since the last user message, the limit is {most}: "
                "the model is asked to answer without more",
                {semconv.TOOLS_CALLS: calls, semconv.TOOLS_LIMIT: most},
                span_name="tool_loop",
            )
        return request.but(options=options.but(tool_choice="none"))


def _calls_since_the_user_spoke(messages: tuple[Message, ...], most: int) -> tuple[int, int]:
    """Count the tool calls in this turn, and in its latest round; counting stops once the limit is clearly exceeded."""
    calls = latest = 0
    for message in reversed(messages):
        if is_users(message) or calls >= most + latest:
            break
        calls += len(message.calls)
        latest = latest or calls
    return calls, latest
