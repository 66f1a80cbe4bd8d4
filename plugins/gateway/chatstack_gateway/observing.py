"""What the pipeline would have done: tokens, money, edits and broken caches, beside what was sent."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import NamedTuple

from opentelemetry import metrics, trace

from chatstack import ChatRequest, ChatResponse
from chatstack.providers.wires import Form
from chatstack.tokens.caching import CACHE_SECONDS, CACHED_FROM
from chatstack.tokens.prices import Price, Split, price_of
from chatstack.tokens.published import tables_loaded
from chatstack_gateway.activity import Activity, Watched
from chatstack_gateway.exchange import Exchange
from chatstack_gateway.shadow import Shadow, Trial
from chatstack_gateway.sizes import Sizes
from chatstack_gateway.spans import SCOPE

logger = logging.getLogger("chatstack.gateway")
_MOST_WAITING = 1_000
_MOST_BYTES = 32 * 1024 * 1024
"""Bytes of the bodies that wait; what was read of them takes several times as much."""
_MOST_CONVERSATIONS = 2_000
_MOST_HASHES = 500_000


class _Waiting(NamedTuple):
    """What is kept of an exchange until the pipeline is tried on it. The rest, its bytes and connection, goes."""

    form: Form
    came: ChatRequest
    response: ChatResponse
    caches: bool
    size: int
    context: Context


class _Sent(NamedTuple):
    """A request as a prompt cache holds it: running hashes of its messages, and when it was sent."""

    hashes: array[int]
    at: float


class Prefixes:
    """An LRU cache of what was sent last in each conversation, by the hash of all its messages. Bounded in hashes, too:
    long conversations have many."""

    def __init__(self, *, most: int = _MOST_CONVERSATIONS, most_hashes: int = _MOST_HASHES) -> None:
        self._sent: OrderedDict[int, _Sent] = OrderedDict()
        self._most = most
        self._most_hashes = most_hashes
        self.hashes = 0

    def before(self, key: Sequence[int]) -> _Sent | None:
        """Return what was sent for the longest beginning of that request."""
        for each in reversed(key[:-1]):
            if each in self._sent:
                self._sent.move_to_end(each)
                return self._sent[each]
        return None

    def put(self, key: int, hashes: array[int], at: float) -> None:
        """Remember a request."""
        known = self._sent.pop(key, None)
        self.hashes += len(hashes) - (0 if known is None else len(known.hashes))
        self._sent[key] = _Sent(hashes, at)
        while len(self._sent) > self._most or (self.hashes > self._most_hashes and len(self._sent) > 1):
            self.hashes -= len(self._sent.popitem(last=False)[1].hashes)


@dataclass(frozen=True, slots=True)
class _Cost:
    tokens: int
    cached: int
    usd: float | None
    is_broken: bool


class Observer:
    """Takes exchanges that are over, and tries the pipeline on them, one after the other."""

    def __init__(self, shadow: Shadow, sizes: Sizes, activity: Activity) -> None:
        self._shadow = shadow
        self._sizes = sizes
        self._activity = activity
        self._came = Prefixes()
        self._would = Prefixes()
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue(_MOST_WAITING)
        self._waiting_bytes = 0
        self._working: asyncio.Task[None] | None = None
        meter = metrics.get_meter(SCOPE)
        self._tokens = meter.create_counter("chatstack.gateway.observed.tokens", "{token}", "Input tokens, by side")
        self._dollars = meter.create_counter("chatstack.gateway.observed.cost", "{USD}", "Cost of calls, by side")
        self._edits = meter.create_counter("chatstack.gateway.observed.edits", "{edit}", "Edits that would be made")
        self._breaks = meter.create_counter("chatstack.gateway.observed.cache_breaks", "{break}", "Prefixes broken")

    def __call__(self, exchange: Exchange, response: ChatResponse | None, status: int) -> None:
        """Take an exchange that is over."""
        if response is None or status != 200:
            return
        if self._working is None:
            self._working = asyncio.create_task(self._work(), context=Context())
        if self._waiting.full() or self._waiting_bytes + len(exchange.raw) > _MOST_BYTES:
            self._activity.unobserved += 1
            return
        caches = exchange.form != "messages" or b'"cache_control"' in exchange.raw  # nothing without marks
        size = len(exchange.raw)
        self._waiting_bytes += size
        self._waiting.put_nowait(_Waiting(exchange.form, exchange.request, response, caches, size, copy_context()))

    async def settled(self) -> None:
        """Wait until all that came has been tried."""
        await self._waiting.join()

    async def aclose(self) -> None:
        """Stop."""
        if self._working is not None:
            self._working.cancel()
            await asyncio.wait({self._working})
        await self._shadow.aclose()

    async def _work(self) -> None:
        await tables_loaded()
        while True:
            waiting = await self._waiting.get()
            self._waiting_bytes -= waiting.size
            try:
                await asyncio.get_running_loop().create_task(self._observe(waiting), context=waiting.context)
            except Exception as error:  # noqa: BLE001 - of any layer; what is watched must not suffer
                self._activity.unobserved += 1
                logger.warning("the pipeline failed on a watched request: %s", type(error).__name__)
            finally:
                self._waiting.task_done()
                del waiting

    async def _observe(self, waiting: _Waiting) -> None:
        trial = await self._shadow.tried(waiting.form, waiting.came, waiting.response)
        would = trial.would_send or waiting.came
        watched = self._watched(waiting, trial, would)
        self._activity.sums.add(watched)
        with trace.get_tracer(SCOPE).start_as_current_span("observe_context") as span:
            span.set_attributes(watched.attributes)
        for side, tokens, usd in (
            ("sent", watched.tokens, watched.usd),
            ("would_send", watched.would_tokens, watched.would_usd),
        ):
            self._tokens.add(tokens, {"side": side})
            if usd is not None:
                self._dollars.add(usd, {"side": side})
        for edit in trial.edits:
            self._edits.add(1, {"strategy": edit})
        self._breaks.add(int(watched.is_broken), {"side": "sent"})
        self._breaks.add(int(watched.would_break), {"side": "would_send"})

    def _watched(self, waiting: _Waiting, trial: Trial, would: ChatRequest) -> Watched:
        request, usage = waiting.came, waiting.response.usage
        model = request.options.model or waiting.response.model
        price = price_of(model, tier=waiting.response.service_tier) if model else None
        now = time.monotonic()
        key = _keys(request.messages)
        known = _Known(key, price, now, waiting.caches)
        sent = self._cost(request, usage.input_tokens or self._sizes.of(request), self._came, known)
        would_tokens = self._sizes.scaled(sent.tokens, request, would)
        after = self._cost(would, would_tokens, self._would, known)
        usd, would_usd = sent.usd, after.usd
        if price is not None and usd is not None and would_usd is not None and price.output is not None:
            output = float(usage.output_tokens * price.output.base) / 1e6
            summaries = trial.summary_input * float(price.input.base) + trial.summary_output * float(price.output.base)
            usd, would_usd = usd + output, would_usd + output + summaries / 1e6
        return Watched(
            model=model,
            form=waiting.form,
            messages=len(request.messages),
            tokens=sent.tokens,
            would_tokens=after.tokens,
            cached=sent.cached,
            would_cached=after.cached,
            usd=usd,
            would_usd=would_usd,
            is_broken=sent.is_broken,
            would_break=after.is_broken,
            edits=tuple(dict.fromkeys(trial.edits)),
            reported_cached=usage.cache_read_tokens,
        )

    def _cost(self, request: ChatRequest, tokens: int, held: Prefixes, known: _Known) -> _Cost:
        """Return what one side of a call costs, by the prefix that it shares with what was sent for the call before.

        Both sides are computed alike, so that they can be compared: a prefix is read from the cache if it was sent at
        most five minutes ago and is as long as caches begin.
        """
        head = hash((request.options.instructions, request.options.tools, request.options.model))
        hashes = _keys(request.messages, head)
        counted = [self._sizes.of_message(each) for each in request.messages]
        head_size = self._sizes.of_options(request.options)
        scale = tokens / max(1, head_size + sum(counted))
        before = held.before(known.key)
        shared, is_broken = 0, False
        if before is not None:
            same = _shared(before.hashes, hashes)
            is_broken = same < len(before.hashes)
            if known.now - before.at <= CACHE_SECONDS and same:
                shared = round((head_size + sum(counted[:same])) * scale)
        least = CACHED_FROM if known.price is None else known.price.minimum_tokens
        cached = min(tokens, shared) if known.caches and shared >= least else 0
        split = Split(cached, tokens - cached, 0) if known.caches and tokens >= least else Split(0, 0, tokens)
        usd = None if known.price is None else known.price.of(split)
        if known.key:
            held.put(known.key[-1], hashes, known.now)
        return _Cost(tokens, cached, None if usd is None else float(usd), is_broken)


class _Known(NamedTuple):
    """What both sides of a call share: running hashes of the messages as they came, the price, the time, and whether
    the provider caches prefixes."""

    key: Sequence[int]
    price: Price | None
    now: float
    caches: bool


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading values are alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _keys(messages: Sequence[object], start: int = 0) -> array[int]:
    """Return a running hash over the messages: one for each beginning of them."""
    found = array("q")
    for message in messages:
        start = hash((start, message))
        found.append(start)
    return found
