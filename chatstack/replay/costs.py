"""What requests cost with a prompt cache: by the figures that most providers share, and by published prices.

A cache knows what was sent before in the same conversation. Of a request it holds the longest run of whole wire
messages that the request shares, from its start, with one of those sent for the call before, or already for this
call; tool schemas and instructions come first and belong to it, and with another model or other tools there is none.
That run is read, and what follows is written. Every call is taken to come while the cache still lives, as recordings
do not tell the time. Answers cost the same under every policy and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from chatstack.replay.measuring import Measured
from chatstack.tokens.caching import CACHE_READ, CACHE_WRITE, CACHED_FROM
from chatstack.tokens.prices import Price, Split

MINIMUM_PREFIX_TOKENS = CACHED_FROM
_READ, _WRITTEN, _PLAIN = (round(100 * cost) for cost in (CACHE_READ, CACHE_WRITE, 1.0))
"""Hundredths of an uncached input token: whole numbers, so that equal requests cost exactly the same."""


def split(tokens: int, shared: int, minimum: int) -> Split:
    """Split a request of so many tokens, of which ``shared`` were sent before.

    One that is shorter than the minimum is not cached; nor is a prefix that is, so it is not read.
    """
    if tokens < minimum:
        return Split(0, 0, tokens)
    read = shared if shared >= minimum else 0
    return Split(read, tokens - read, 0)


def shared_tokens(before: Measured, now: Measured) -> int:
    """Tokens of the prefix that two requests share."""
    if before.head != now.head:
        return 0
    tokens = now.head_tokens
    for old, new in zip(before.shapes, now.shapes, strict=False):
        if old is not new and old != new:
            break
        tokens += new.tokens
    return tokens


def breaks_prefix(before: Measured, now: Measured) -> bool:
    """Whether a request does not start with all of the one before it."""
    return before.head != now.head or now.shapes[: len(before.shapes)] != before.shapes


@dataclass(slots=True)
class Spending:
    """What the requests of one policy cost up to now.

    ``tokens_read`` and so on are split at ``MINIMUM_PREFIX_TOKENS``; ``usd`` and ``usd_uncached`` by the price of each
    recorded model, and None from the first call on for which it is not known. ``prefix_breaks`` counts the calls whose
    request, the last that was sent for it, does not start with all of that of the call before.
    """

    tokens_read: int = 0
    tokens_written: int = 0
    tokens_plain: int = 0
    prefix_breaks: int = 0
    usd: Decimal | None = Decimal(0)
    usd_uncached: Decimal | None = Decimal(0)
    _price: Price | None = None
    _before: Sequence[Measured] = field(default=(), repr=False)

    @property
    def cost(self) -> int:
        """All of it, in hundredths of an uncached input token: a whole number, so that equal requests cost the same
        to the last digit, in whatever order they come."""
        return _READ * self.tokens_read + _WRITTEN * self.tokens_written + _PLAIN * self.tokens_plain

    def begin(self, price: Price | None) -> None:
        """A conversation begins, with a model of that price: nothing of it is cached yet."""
        self._price = price
        self._before = ()

    def add(self, requests: Sequence[Measured]) -> None:
        """All that was sent for one call, in order; nothing where the call was refused."""
        if not requests:
            return
        if self._before and breaks_prefix(self._before[-1], requests[-1]):
            self.prefix_breaks += 1
        for number, request in enumerate(requests):
            earlier = (*self._before, *requests[:number])
            shared = max((shared_tokens(each, request) for each in earlier), default=0)
            self._add(request.tokens, shared)
        self._before = tuple(requests)

    def _add(self, tokens: int, shared: int) -> None:
        parts = split(tokens, shared, MINIMUM_PREFIX_TOKENS)
        self.tokens_read += parts.read
        self.tokens_written += parts.written
        self.tokens_plain += parts.plain
        price = self._price
        self.usd_uncached = _sum(self.usd_uncached, None if price is None else price.of(Split(0, 0, tokens)))
        self.usd = _sum(self.usd, None if price is None else price.of(split(tokens, shared, price.minimum_tokens)))


def _sum(total: Decimal | None, more: Decimal | None) -> Decimal | None:
    return None if total is None or more is None else total + more
