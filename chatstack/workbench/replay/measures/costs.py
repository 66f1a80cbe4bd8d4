"""The cost of requests with a prompt cache: by the ratios that most providers share, and by published prices.

A cache holds prefixes of requests of the same conversation. Of a request it holds the longest run of whole wire
messages that the request shares, from its start, with one of those sent for the call before, or earlier for this call;
tool schemas and instructions come first and belong to the prefix, and with another model or other tools there is none.
That run is read, and the rest is written. Recordings do not tell the time: a fixed pause is assumed between calls, and
a cache with a shorter lifetime holds nothing of the call before. Answers cost the same under every policy and are left
out; the tokens read and written for summaries count, uncached.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

import msgspec

from chatstack.tokens.caching import (
    CACHE_READ,
    CACHE_SECONDS,
    CACHE_WRITE,
    CACHED_FROM,
    LONG_CACHE_SECONDS,
    LONG_CACHE_WRITE,
)
from chatstack.tokens.prices import Price, Split
from chatstack.values.responses import Usage
from chatstack.workbench.replay.measures.following import shared_start
from chatstack.workbench.replay.measures.measuring import Measured
from chatstack.workbench.replay.summaries import SummaryCost

MINIMUM_PREFIX_TOKENS = CACHED_FROM
OUTPUT = 5.0
"""Price of a token of a summary, in uncached input tokens: the ratio, nearly, of Anthropic, OpenAI and Google."""
_READ, _PLAIN, _OUTPUT = (round(100 * cost) for cost in (CACHE_READ, 1.0, OUTPUT))
_WRITTEN = {False: round(100 * CACHE_WRITE), True: round(100 * LONG_CACHE_WRITE)}
"""In hundredths of an uncached input token: whole numbers, so that equal requests cost exactly the same."""


def split(tokens: int, shared: int, minimum: int) -> Split:
    """Split a request into tokens read, written and uncached; ``shared`` of them were sent before.

    A request below the minimum is not cached, and a prefix below it is not read.
    """
    if tokens < minimum:
        return Split(0, 0, tokens)
    read = shared if shared >= minimum else 0
    return Split(read, tokens - read, 0)


def shared_tokens(before: Measured, now: Measured) -> int:
    """Return the tokens of the prefix that two requests share."""
    if before.head != now.head:
        return 0
    shared = shared_start(before.shapes, now.shapes)
    for old, new in zip(before.shapes[shared:], now.shapes[shared:], strict=False):
        if old != new:
            break
        shared += 1
    if 2 * shared <= len(now.shapes):
        return now.head_tokens + sum(shape.tokens for shape in now.shapes[:shared])
    return now.tokens - sum(shape.tokens for shape in now.shapes[shared:])


def breaks_prefix(before: Measured, now: Measured) -> bool:
    """Return True if a request does not start with the whole request before it."""
    return before.head != now.head or now.shapes[: len(before.shapes)] != before.shapes


class Charge(msgspec.Struct, frozen=True):
    """The charge for one call: cached tokens of its last request, and True if that broke the previous prefix."""

    cached: int = 0
    is_broken: bool = False


@dataclass(slots=True)
class Spending:
    """The cost of one policy's requests so far.

    ``tokens_read`` and so on are split at ``MINIMUM_PREFIX_TOKENS``; ``usd`` and ``usd_uncached`` use the price of each
    recorded model, and are None from the first call on whose price is unknown. ``prefix_breaks`` counts the calls whose
    last request does not start with the whole last request of the call before; ``tokens_missed`` are those that the
    call before had left in the cache, and that were sent again and not read from there. ``summary_input`` and
    ``summary_output`` are the tokens that were read and written for summaries. ``long_cache`` means caches that live an
    hour.
    """

    tokens_read: int = 0
    tokens_written: int = 0
    tokens_plain: int = 0
    tokens_missed: int = 0
    summary_input: int = 0
    summary_output: int = 0
    prefix_breaks: int = 0
    usd: Decimal | None = Decimal(0)
    usd_uncached: Decimal | None = Decimal(0)
    long_cache: bool = False
    _price: Price | None = None
    _pause_seconds: float = 0.0
    _before: Sequence[Measured] = field(default=(), repr=False)

    @property
    def cost(self) -> int:
        """Total cost in hundredths of an uncached input token.

        It is a whole number, so that equal requests cost exactly the same in whatever order they come.
        """
        plain = self.tokens_plain + self.summary_input
        cached = _READ * self.tokens_read + _WRITTEN[self.long_cache] * self.tokens_written
        return cached + _PLAIN * plain + _OUTPUT * self.summary_output

    def begin(self, price: Price | None, pause_seconds: float = 0.0) -> None:
        """Begin a conversation, with its model's price and the pause before each call; its cache is empty."""
        self._price = price
        self._pause_seconds = pause_seconds
        self._before = ()

    def add(self, requests: Sequence[Measured]) -> Charge:
        """Charge all requests of one call, in order; none if the call was refused."""
        if not requests:
            return Charge()
        is_broken = bool(self._before) and breaks_prefix(self._before[-1], requests[-1])
        self.prefix_breaks += is_broken
        cached = 0
        for number in range(len(requests)):
            cached = self._add(requests[: number + 1])
        if self._before and self._before[-1].tokens >= MINIMUM_PREFIX_TOKENS:
            self.tokens_missed += max(0, min(self._before[-1].tokens, requests[-1].tokens) - cached)
        self._before = tuple(requests)
        return Charge(cached, is_broken)

    def cached(self, requests: Sequence[Measured]) -> Split:
        """Return how the last one of a call's requests so far is split by the cache; nothing is charged yet."""
        return self._split(requests[-1].tokens, *self._shared(requests))

    def add_summary(self, cost: SummaryCost) -> None:
        """Add the cost of one summary, by the price of the recorded model."""
        self.summary_input += cost.input_tokens
        self.summary_output += cost.output_tokens
        usage = Usage(input_tokens=cost.input_tokens, output_tokens=cost.output_tokens)
        usd = None if self._price is None else self._price.of_usage(usage)
        self.usd, self.usd_uncached = summed(self.usd, usd), summed(self.usd_uncached, usd)

    def merge(self, other: Spending) -> None:
        """Add the cost of other conversations."""
        self.tokens_read += other.tokens_read
        self.tokens_written += other.tokens_written
        self.tokens_plain += other.tokens_plain
        self.tokens_missed += other.tokens_missed
        self.summary_input += other.summary_input
        self.summary_output += other.summary_output
        self.prefix_breaks += other.prefix_breaks
        self.usd, self.usd_uncached = summed(self.usd, other.usd), summed(self.usd_uncached, other.usd_uncached)

    def _shared(self, requests: Sequence[Measured]) -> tuple[int, int]:
        """Return the tokens of the prefix that the last one of a call's requests shares with any before, and with those
        of the same call."""
        *earlier, request = requests
        now = _most_shared(earlier, request)
        return max(now, _most_shared(self._before, request)), now

    def _add(self, requests: Sequence[Measured]) -> int:
        """Charge the last one of a call's requests so far; return the tokens read."""
        tokens, (before, now) = requests[-1].tokens, self._shared(requests)
        parts = self._split(tokens, before, now)
        self.tokens_read += parts.read
        self.tokens_written += parts.written
        self.tokens_plain += parts.plain
        price = self._price
        self.usd_uncached = summed(self.usd_uncached, None if price is None else price.of(Split(0, 0, tokens)))
        if price is None:
            self.usd = None
        else:
            alive = before if self._pause_seconds < (price.lifetime_seconds or CACHE_SECONDS) else now
            self.usd = summed(self.usd, price.of(split(tokens, alive, price.minimum_tokens)))
        return parts.read

    def _split(self, tokens: int, before: int, now: int) -> Split:
        lifetime = LONG_CACHE_SECONDS if self.long_cache else CACHE_SECONDS
        return split(tokens, before if self._pause_seconds < lifetime else now, MINIMUM_PREFIX_TOKENS)


def _most_shared(earlier: Sequence[Measured], request: Measured) -> int:
    return max((shared_tokens(each, request) for each in earlier), default=0)


def summed(total: Decimal | None, more: Decimal | None) -> Decimal | None:
    """Return the sum of two costs; None if one of them is not known."""
    return None if total is None or more is None else total + more
