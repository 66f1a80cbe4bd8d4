"""The layer that waits its turn."""

from __future__ import annotations

import warnings
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from chatstack import ChatClient, ChatFronts, ChatRequest, ChatStream, ContextMemory, LayerOrderWarning, TokenCounter
from chatstack.client.checks import send_to, wraps_a_client
from chatstack.client.protocol import LayerKind, chain, layer_kind, provider_info
from chatstack.errors import RateLimitError, WiringError
from chatstack.tokens.default import default_counter
from chatstack.values.responses import ChatResponse

from chatstack_ratelimit.limits import Budget, Figures, RateLimits

_LONGEST_BURST_SECONDS = 60


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class RateLimiter(ChatFronts):
    """Waits before a model call, so that ``requests_per_minute`` and ``tokens_per_minute`` are kept.

    Goes innermost, around the model tracer or the provider: inside the tool loop, or only a turn's first call would be
    counted, and inside the guard, so that what is counted is what is sent, retries of the guard included. All built
    clients and conversations of a stack share one budget, whatever thread or event loop they run in; it is kept in
    ``limits``, and is for all models of the provider together. Calls go in the order in which they came. Up to
    ``burst_seconds`` worth of calls need not wait at all.

    A request is as large as its input, by ``counter`` (unless one is given, as the provider's model counts, or
    characters divided by four where the provider is not known), until the answer tells what it took, output included.
    One that is larger than a burst, or even than a minute's tokens, goes when all that went before has been worked off,
    and is worked off itself before the next one goes, at most for about a minute. What several answers took beyond
    their estimates is worked off whole, so a call can wait for minutes. A ``RateLimitError`` makes everybody wait for
    its ``retry_after_seconds``, a minute at most, and is raised as it is.
    """

    inner: ChatClient
    _: KW_ONLY
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    burst_seconds: float = 5.0
    counter: TokenCounter | None = None
    limits: RateLimits = field(default_factory=RateLimits, repr=False)
    memory: ContextMemory = field(default_factory=ContextMemory, repr=False)
    _budget: Budget = field(init=False, repr=False)
    _sizes: TokenCounter = field(init=False, repr=False)

    kind: ClassVar[LayerKind] = "plain"

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_minute"):
            limit: object = getattr(self, name)
            if limit is not None and (type(limit) is not int or limit < 1):
                raise _wrong(name, limit, "a whole number greater than 0, or None for no limit")
        if self.requests_per_minute is None and self.tokens_per_minute is None:
            raise _wrong("requests_per_minute", None, "given, unless tokens_per_minute is: nothing would be limited")
        burst: object = self.burst_seconds
        if type(burst) not in (int, float) or not 0 < self.burst_seconds <= _LONGEST_BURST_SECONDS:
            raise _wrong("burst_seconds", burst, f"a number of seconds above 0, at most {_LONGEST_BURST_SECONDS}")
        for name, kind in (("counter", TokenCounter), ("limits", RateLimits), ("memory", ContextMemory)):
            given: object = getattr(self, name)
            if not isinstance(given, kind) and (name != "counter" or given is not None):
                raise _wrong(name, given, f"a {kind.__name__}")
        self._check_order()
        info = provider_info(self.inner)
        figures = Figures(
            info.name if info is not None else "",
            f"{info.server_address}:{info.server_port}" if info is not None else "",
            self.requests_per_minute,
            self.tokens_per_minute,
            float(self.burst_seconds),
        )
        object.__setattr__(self, "_budget", self.limits.budget(figures))
        object.__setattr__(self, "_sizes", default_counter(self.inner) if self.counter is None else self.counter)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        tokens = self._size_of(request) if self.tokens_per_minute is not None else 0
        await self._budget.enter(tokens)
        try:
            stream = await send_to(self.inner, request)
        except RateLimitError as error:
            self._budget.pause(error.retry_after_seconds)
            raise
        if self.tokens_per_minute is not None:
            stream.when_answered(_Correction(self._budget, tokens))
        return stream

    def _size_of(self, request: ChatRequest) -> int:
        """The input in tokens; the memory counts each message once, for all layers that count alike."""
        total = self.memory.options_size(request.options, self._sizes)
        return total + sum(map(self.memory.sizes_by(self._sizes), request.messages))

    def _check_order(self) -> None:
        for layer in chain(self.inner):
            if layer_kind(layer) in ("tool_loop", "context"):
                name = type(layer).__name__
                warnings.warn(
                    f"RateLimiter is outside of {name}, whose calls it does not see one by one; move it behind {name}",
                    LayerOrderWarning,
                    stacklevel=4,
                )
                return


class _Correction:
    """Tells the budget what an answer took; it holds neither the stream nor the layer."""

    __slots__ = ("_budget", "_estimated")

    def __init__(self, budget: Budget, estimated: int) -> None:
        self._budget = budget
        self._estimated = estimated

    def __call__(self, answer: ChatResponse, /) -> None:
        reported = answer.usage.total_tokens
        if reported:  # else nobody said
            self._budget.correct(self._estimated, reported)


def _wrong(parameter: str, value: object, wanted: str) -> WiringError:
    return WiringError(f"RateLimiter: {parameter}={value!r} must be {wanted}", layer="RateLimiter", parameter=parameter)
