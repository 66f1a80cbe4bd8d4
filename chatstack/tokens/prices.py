"""Published prices of models, in dollars.

Prices of output, of input, of cached input and of writing to the cache come from the tables of ``genai-prices`` (the
extra ``prices``). Our own table, dated ``TERMS_DATE``, adds what they lack: the shortest prefix that is cached, the
lifetime of a cache, and the cost of a write without a published price. Source of the table: the pages of Anthropic,
OpenAI and Google on prompt caching, and, for Gemini 3 Pro, recorded usage: its page says 4,096 tokens, but recorded
calls read prefixes of 1,807 from the cache.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, TypeAlias

import msgspec

from chatstack.client.protocol import ProviderInfo
from chatstack.errors import WiringError
from chatstack.tokens.caching import CACHE_SECONDS
from chatstack.tokens.published import published
from chatstack.values.responses import Usage

if TYPE_CHECKING:
    from genai_prices.types import ModelPrice

Dollars: TypeAlias = Annotated[float, msgspec.Meta(ge=0)] | Decimal

TERMS_DATE = "2026-11-22"
_MILLION = 1_000_000
_HOUR = 3_600


class Terms(msgspec.Struct, frozen=True):
    """Terms of a provider's cache. ``write_factor`` is the price of a write relative to that of input;
    ``lifetime_seconds`` is None if it is not published. ``hour_factor`` is the price of writing to a cache that lives
    an hour, None if there is no such cache."""

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
"""Provider, pattern for the start of the model's name, terms; the first match counts."""


class Rate(msgspec.Struct, frozen=True):
    """Dollars for a million tokens. A request of more than ``tiers[i][0]`` tokens costs ``tiers[i][1]`` for all of
    them."""

    base: Decimal
    tiers: tuple[tuple[int, Decimal], ...] = ()

    def at(self, tokens: int) -> Decimal:
        """The rate in a request of that size."""
        return next((price for start, price in reversed(self.tiers) if tokens > start), self.base)

    def times(self, factor: Decimal) -> Rate:
        """Return the rate multiplied by a factor."""
        return Rate(self.base * factor, tuple((start, price * factor) for start, price in self.tiers))


class Split(msgspec.Struct, frozen=True):
    """The input tokens of a request: cache reads, cache writes, and uncached ones."""

    read: int
    written: int
    plain: int


class Price(msgspec.Struct, frozen=True):
    """Price of one model; ``Price.per_million`` makes one from dollars. ``write`` is None if the price of a cache write
    is not published, ``output`` if that of answers is not; ``write_for_an_hour`` if no cache lives that long."""

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

    def __post_init__(self) -> None:
        for name in ("input", "read", "write", "output", "write_for_an_hour"):
            given = getattr(self, name)
            if not (isinstance(given, Rate) or (given is None and name not in ("input", "read"))):
                told = "must be a Rate; Price.per_million(input=..., output=...) takes dollars"
                raise WiringError(f"Price: {name}={given!r} {told}", parameter=name)

    @classmethod
    def per_million(
        cls,
        *,
        input: Dollars,
        output: Dollars,
        cache_read: Dollars | None = None,
        cache_write: Dollars | None = None,
        model: str = "",
        provider: str = "",
    ) -> Price:
        """Return a price of your own, in dollars for a million tokens: of a model that is in no table, or as agreed.

        What is read from the provider's cache, or written to it, costs as much as other input if it is not given.
        Raises ``WiringError`` for what is no amount.
        """
        plain, answers = _own_rate("input", input), _own_rate("output", output)
        read = plain if cache_read is None else _own_rate("cache_read", cache_read)
        write = plain if cache_write is None else _own_rate("cache_write", cache_write)
        return cls(model, provider, plain, read, write, source="given", output=answers)

    def with_long_cache(self) -> Price:
        """Return the price with a cache that lives an hour, if there is one."""
        if self.write_for_an_hour is None:
            return self
        return msgspec.structs.replace(self, write=self.write_for_an_hour, lifetime_seconds=_HOUR)

    def of_usage(self, usage: Usage) -> Decimal | None:
        """Return the dollars for the input and the output of one request; None if unknown."""
        read, written = usage.cache_read_tokens, usage.cache_write_tokens
        total = self.of(Split(read, written, max(0, usage.input_tokens - read - written)))
        if total is not None and self.write is not None and self.write_for_an_hour is not None:
            dearer = self.write_for_an_hour.at(usage.input_tokens) - self.write.at(usage.input_tokens)
            total += usage.hour_write_tokens * dearer / _MILLION
        if total is None or not usage.output_tokens:
            return total
        if self.output is None:
            return None
        return total + usage.output_tokens * self.output.at(usage.input_tokens) / _MILLION

    def of(self, parts: Split) -> Decimal | None:
        """Return the dollars for the input of one request; None if unknown."""
        size = parts.read + parts.written + parts.plain
        total = parts.read * self.read.at(size) + parts.plain * self.input.at(size)
        if parts.written:
            if self.write is None:
                return None
            total += parts.written * self.write.at(size)
        return total / _MILLION


def dollars_for(usage: Usage, price: Price) -> Decimal | None:
    """Return the cost of one request in dollars; cache writes without a price of their own cost as much as input."""
    found = price.of_usage(usage)
    return found if found is not None else price.of_usage(msgspec.structs.replace(usage, cache_write_tokens=0))


@functools.lru_cache(maxsize=256)
def price_of(model: str, provider: str = "", tier: str = "") -> Price | None:
    """Return today's price of a model at the provider that serves it (``provider_at``), else at the one that its name
    tells. A vendor before a slash, as routers write it, is understood. ``tier`` is the service tier, as an answer tells
    it; where it has no price of its own, the usual one counts.

    None when the model or its price is not in the tables, or the extra is not installed.
    """
    served = {"service_tier": tier, "speed": tier} if tier else None  # the latter is how Anthropic calls it
    for owner, found in published(model, provider):
        price = price_from(owner.id, found.id, found.get_prices(datetime.now(UTC), served))
        if price is not None:
            return price
    return None


def price_from(provider: str, model: str, prices: ModelPrice) -> Price | None:
    """Return our price from a published one; None if that has no price of input.

    Without a price of cache reads there is no paid cache: all tokens cost the same.
    """
    names = ("input_mtok", "cache_read_mtok", "cache_write_mtok", "cache_write_1h_mtok")
    each, read, write, hour = (_rate(prices, name) for name in names)
    if each is None:
        return None
    vendor, _, bare = model.rpartition("/")  # a router serves many vendors' models, with their caches
    terms = terms_of(vendor or provider, bare)
    if read is None:
        read, write, hour = each, each, None
    elif write is None and terms.write_factor is not None:
        write = each.times(terms.write_factor)
    if hour is None and read is not each and terms.hour_factor is not None:
        hour = each.times(terms.hour_factor)
    source = f"{_tables_told()}; cache terms of {TERMS_DATE}"
    output = _rate(prices, "output_mtok")
    return Price(model, provider, each, read, write, terms.minimum_tokens, terms.lifetime_seconds, source, output, hour)


def cache_seconds(info: ProviderInfo, model: str) -> float:
    """Return the lifetime of a provider's cache: the chosen one, else the published one for that model, else the
    shortest that providers have."""
    return info.cache_seconds or terms_of(info.name, model).lifetime_seconds or CACHE_SECONDS


@functools.lru_cache(maxsize=256)
def terms_of(provider: str, model: str) -> Terms:
    """Return the cache terms of a provider for a model, both named as ``genai-prices`` names them."""
    fitting = (terms for owner, start, terms in _TERMS if owner == provider and re.match(start, model))
    return next(fitting, _USUAL)


def _tables_told() -> str:
    try:
        return f"genai-prices {importlib.metadata.version('genai-prices')}"
    except importlib.metadata.PackageNotFoundError:  # a bundle without metadata
        return "genai-prices"


def _own_rate(name: str, dollars: object) -> Rate:
    if isinstance(dollars, int | float | Decimal) and not isinstance(dollars, bool):
        amount = Decimal(str(dollars))
        if amount.is_finite() and amount >= 0:
            return Rate(amount)
    told = f"Price.per_million: {name}={dollars!r} must be dollars for a million tokens, 0 or more"
    raise WiringError(told, parameter=name)


def _rate(prices: ModelPrice, name: str) -> Rate | None:
    price = getattr(prices, name, None)  # older versions do not know all
    if price is None or isinstance(price, Decimal):
        return None if price is None else Rate(price)
    return Rate(price.base, tuple((tier.start, tier.price) for tier in price.tiers))
