"""What a model costs in dollars, where somebody has published it.

Prices of output, of input, of cached input and of writing to the cache come from the tables of ``genai-prices`` (the
extra ``prices``). What these lack is in a table of ours, dated ``TERMS_DATE``: the shortest prefix that is cached, how
long a cache lives, and what a write costs where no price is given. Source of the table: the pages of Anthropic, OpenAI
and Google on prompt caching, and, for Gemini 3 Pro, recorded usage: its page says 4,096 tokens, but recorded calls read
prefixes of 1,807 from the cache.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

from chatstack.tokens.published import published
from chatstack.values.responses import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

TERMS_DATE = "2026-11-22"
_MILLION = 1_000_000
_HOUR = 3_600


class Terms(msgspec.Struct, frozen=True):
    """How a provider's cache works. ``write_factor`` is the price of a write in those of input; ``lifetime_seconds``
    is None where it is not published. ``hour_factor`` is the price of writing to a cache that lives an hour, None where
    there is none to be had."""

    minimum_tokens: int
    write_factor: Decimal | None = None
    lifetime_seconds: int | None = None
    hour_factor: Decimal | None = None


_USUAL = Terms(1_024)
_TERMS: tuple[tuple[str, str, Terms], ...] = (
    ("anthropic", r"claude-(opus-4-[56]|haiku-4-5)", Terms(4_096, Decimal("1.25"), 300, Decimal(2))),
    ("anthropic", r"claude-3(-5)?-haiku", Terms(2_048, Decimal("1.25"), 300, Decimal(2))),
    ("anthropic", r"", Terms(1_024, Decimal("1.25"), 300, Decimal(2))),
    ("openai", r"gpt-5\.[6-9]", Terms(1_024, Decimal("1.25"), 1_800)),
    ("openai", r"", Terms(1_024, Decimal(1), 300)),  # writes cost nothing extra before GPT-5.6
    ("google", r"gemini", Terms(1_024, Decimal(1))),  # what it caches by itself; kept caches are rented by the hour
)
"""Provider, start of the model's name (a pattern), terms; the first that fits counts."""


class Rate(msgspec.Struct, frozen=True):
    """Dollars for a million tokens. A request of more than ``tiers[i][0]`` tokens costs ``tiers[i][1]``, all of it."""

    base: Decimal
    tiers: tuple[tuple[int, Decimal], ...] = ()

    def at(self, tokens: int) -> Decimal:
        """The rate in a request of that size."""
        return next((price for start, price in reversed(self.tiers) if tokens > start), self.base)

    def times(self, factor: Decimal) -> Rate:
        """The same rate, so many times."""
        return Rate(self.base * factor, tuple((start, price * factor) for start, price in self.tiers))


class Split(msgspec.Struct, frozen=True):
    """The tokens of a request: read from the cache, written to it, and those that have nothing to do with it."""

    read: int
    written: int
    plain: int


class Price(msgspec.Struct, frozen=True):
    """What one model costs. ``write`` is None where nobody says what writing to its cache costs, ``output`` where
    nobody says what its answers cost; ``write_for_an_hour`` where no cache can be had that lives so long."""

    model: str
    provider: str
    input: Rate
    read: Rate
    write: Rate | None
    minimum_tokens: int = _USUAL.minimum_tokens
    lifetime_seconds: int | None = None
    source: str = ""
    output: Rate | None = None
    write_for_an_hour: Rate | None = None

    def with_long_cache(self) -> Price:
        """The price with a cache that lives an hour, where one can be had."""
        if self.write_for_an_hour is None:
            return self
        return msgspec.structs.replace(self, write=self.write_for_an_hour, lifetime_seconds=_HOUR)

    def of_usage(self, usage: Usage) -> Decimal | None:
        """Dollars for the input and the output of one request; None where that is not known."""
        read, written = usage.cache_read_tokens, usage.cache_write_tokens
        total = self.of(Split(read, written, max(0, usage.input_tokens - read - written)))
        if total is None or not usage.output_tokens:
            return total
        if self.output is None:
            return None
        return total + usage.output_tokens * self.output.at(usage.input_tokens) / _MILLION

    def of(self, parts: Split) -> Decimal | None:
        """Dollars for the input of one request; None where that is not known."""
        size = parts.read + parts.written + parts.plain
        total = parts.read * self.read.at(size) + parts.plain * self.input.at(size)
        if parts.written:
            if self.write is None:
                return None
            total += parts.written * self.write.at(size)
        return total / _MILLION


@functools.lru_cache(maxsize=256)
def price_of(model: str) -> Price | None:
    """The price of a model of today. A vendor before a slash, as routers write it, is understood.

    None when the model or its price is not in the tables, or the extra is not installed.
    """
    for provider, found in published(model):
        price = price_from(provider.id, found.id, found.get_prices(datetime.now(UTC)))
        if price is not None:
            return price
    return None


def price_from(provider: str, model: str, prices: ModelPrice) -> Price | None:
    """Our price from a published one; None where it names none of input.

    Without a price of reads there is no cache to be paid for: all tokens cost the same.
    """
    names = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok")
    each, read, write, hour = (_rate(prices, name) for name in names)
    if each is None:
        return None
    terms = terms_of(provider, model)
    if read is None:
        read, write, hour = each, each, None
    elif write is None and terms.write_factor is not None:
        write = each.times(terms.write_factor)
    if hour is None and read is not each and terms.hour_factor is not None:
        hour = each.times(terms.hour_factor)
    version = importlib.metadata.version("genai-prices")
    source = f"genai-prices {version}; cache terms of {TERMS_DATE}"
    output = _rate(prices, "output_mtok")
    return Price(model, provider, each, read, write, terms.minimum_tokens, terms.lifetime_seconds, source, output, hour)


def terms_of(provider: str, model: str) -> Terms:
    """How the cache of a provider works for a model, both named as ``genai-prices`` names them."""
    fitting = (terms for owner, start, terms in _TERMS if owner == provider and re.match(start, model))
    return next(fitting, _USUAL)


def _rate(prices: ModelPrice, name: str) -> Rate | None:
    price = getattr(prices, name, None)  # older versions do not know all
    if price is None or isinstance(price, Decimal):
        return None if price is None else Rate(price)
    return Rate(price.base, tuple((tier.start, tier.price) for tier in price.tiers))
