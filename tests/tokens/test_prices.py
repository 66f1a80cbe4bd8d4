"""Prices come from the published tables, what these lack from ours, and what nobody knows is None."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pytest
from genai_prices.types import ModelPrice, Tier, TieredPrices

from chatstack.tokens import prices
from chatstack.tokens.prices import Price, Rate, Split, price_of, terms_of
from chatstack.tokens.published import provider_at
from chatstack.tokens.windows import window_of
from chatstack.values.responses import Usage


def converted(provider: str, model: str = "m", **published: Decimal | TieredPrices) -> Price | None:
    return prices.price_from(provider, model, ModelPrice(**published))


def test_a_known_model_has_its_prices() -> None:
    price = price_of("gpt-4o")

    assert price is not None
    assert (price.provider, price.input, price.read) == ("openai", Rate(Decimal("2.5")), Rate(Decimal("1.25")))
    assert price.source.startswith("genai-prices ")
    assert prices.TERMS_DATE in price.source


def test_a_vendor_before_a_slash_is_understood() -> None:
    assert price_of("openai/gpt-4o") == price_of("gpt-4o")
    assert price_of("google/gemini-3-pro-preview") == price_of("gemini-3-pro-preview") is not None


@pytest.mark.parametrize("region", ["", "us.", "eu.", "global."])
def test_a_name_of_bedrocks_is_understood(region: str) -> None:
    model = f"{region}anthropic.claude-sonnet-4-5-20250929-v1:0"
    price, window = price_of(model), window_of(model)
    assert price is not None
    assert price.write is not None
    assert price.provider == "aws"
    assert price.read.base < price.input.base < price.write.base
    assert window == window_of("claude-sonnet-4-5") is not None


@pytest.mark.parametrize(
    ("server", "provider"), [("api.groq.com", "groq"), ("openrouter.ai", "openrouter"), ("127.0.0.1", ""), ("", "")]
)
def test_a_price_is_that_of_the_provider_that_serves_the_model(server: str, provider: str) -> None:
    """By its name alone, that of a model served by many would be another one's."""
    served, named = price_of("openai/gpt-oss-120b", provider_at(server)), price_of("openai/gpt-oss-120b")
    assert served is not None
    assert named is not None
    assert provider_at(server) == provider
    assert served.provider == (provider or named.provider)
    assert price_of("gpt-4o", provider_at(server)) == price_of("gpt-4o")


@pytest.mark.parametrize(
    "model", ["deepseek-r1:8b", "deepseek-r1:1.5B", "deepseek-r1:8b-q4_K_M", "deepseek/deepseek-r1:free"]
)
def test_what_only_shares_a_models_name_is_not_taken_for_it(model: str) -> None:
    """Weights on a server of one's own, or a variant that costs nothing."""
    assert price_of("deepseek/deepseek-r1") is not None
    assert (price_of(model), window_of(model)) == (None, None)
    assert price_of(model, provider_at("openrouter.ai")) is None


@pytest.mark.parametrize("model", ["", "/", "no-such-model", "vendor/no-such-model"])
def test_an_unknown_model_has_no_price(model: str) -> None:
    assert price_of(model) is None


def test_nothing_is_known_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices.data_snapshot", None)

    assert price_of.__wrapped__("gpt-4o") is None


WITHOUT_METADATA = """
import importlib.metadata as metadata

find = metadata.Distribution.from_name.__func__

def from_name(cls, name):
    if "genai" in name:
        raise metadata.PackageNotFoundError(name)
    return find(cls, name)

metadata.Distribution.from_name = classmethod(from_name)
from chatstack.tokens.prices import price_of
print([price_of("gpt-4o"), price_of("gpt-4o")])
"""


def test_nothing_is_known_in_a_bundle_without_the_metadata_of_the_extra() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_METADATA], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout == "[None, None]\n", done.stderr


def test_a_price_is_known_without_the_version_of_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    price = converted("openai", input_mtok=Decimal(1))
    assert price is not None
    assert price.source == f"genai-prices; cache terms of {prices.TERMS_DATE}"


def test_a_published_price_of_writing_counts_before_ours() -> None:
    price = converted(
        "anthropic", input_mtok=Decimal(4), cache_read_mtok=Decimal("0.4"), cache_write_mtok=Decimal("5.5")
    )

    assert price is not None
    assert price.write == Rate(Decimal("5.5"))


def test_a_price_of_writing_that_is_not_published_is_ours() -> None:
    published: dict[str, Any] = {"input_mtok": Decimal(4), "cache_read_mtok": Decimal("0.4")}

    writes = [converted(provider, **published) for provider in ("anthropic", "openai", "nobody")]

    assert [price and price.write for price in writes] == [Rate(Decimal(5)), Rate(Decimal(4)), None]


def test_a_cache_that_lives_an_hour_is_written_at_its_own_price() -> None:
    published: dict[str, Any] = {
        "input_mtok": Decimal(4),
        "cache_read_mtok": Decimal("0.4"),
        "cache_write_mtok": Decimal(5),
    }
    told = converted("anthropic", **published, cache_write_1h_mtok=Decimal(9))
    prices = [told, converted("anthropic", **published), converted("openai", **published)]

    long = [price.with_long_cache() for price in prices if price is not None]

    assert [(price.write, price.lifetime_seconds) for price in long] == [
        (Rate(Decimal(9)), 3_600),
        (Rate(Decimal(8)), 3_600),
        (Rate(Decimal(5)), 300),
    ]
    assert long[0].of(Split(0, 1_000, 0)) == Decimal(9) / 1_000


def test_behind_a_router_the_cache_is_the_vendors() -> None:
    price = price_of("anthropic/claude-sonnet-4.5", "openrouter")
    assert price is not None
    assert price.provider == "openrouter"
    assert price.write_for_an_hour == price.input.times(Decimal(2))


def test_of_the_writes_those_that_live_an_hour_cost_more() -> None:
    rates: dict[str, Any] = {
        "input_mtok": Decimal(4),
        "cache_read_mtok": Decimal("0.4"),
        "cache_write_mtok": Decimal(5),
    }
    usage = Usage(1_000, 0, 100, 600, hour_write_tokens=200)
    price, other = converted("anthropic", **rates), converted("openai", **rates)

    assert price is not None
    assert other is not None
    assert price.of_usage(usage) == Decimal(300 * 4 + 40 + 400 * 5 + 200 * 8) / 1_000_000
    assert price.with_long_cache().of_usage(usage) == Decimal(300 * 4 + 40 + 600 * 8) / 1_000_000
    assert other.of_usage(usage) == Decimal(300 * 4 + 40 + 600 * 5) / 1_000_000


def test_without_a_price_of_reading_all_tokens_cost_the_same() -> None:
    price = converted("nobody", input_mtok=Decimal(4), cache_write_mtok=Decimal(5))

    assert price is not None
    assert price.of(Split(100, 100, 100)) == Decimal(1_200) / 1_000_000


def test_without_a_price_of_input_there_is_none() -> None:
    assert converted("openai", output_mtok=Decimal(4)) is None


def test_a_larger_request_costs_the_higher_rate_all_of_it() -> None:
    price = converted(
        "google",
        input_mtok=TieredPrices(base=Decimal(2), tiers=[Tier(start=200, price=Decimal(4))]),
        cache_read_mtok=TieredPrices(base=Decimal("0.2"), tiers=[Tier(start=200, price=Decimal("0.4"))]),
    )

    assert price is not None
    assert price.of(Split(100, 0, 100)) == Decimal(220) / 1_000_000
    assert price.of(Split(100, 0, 101)) == (Decimal(40) + 404) / 1_000_000


def test_the_highest_tier_that_is_passed_counts() -> None:
    rate = Rate(Decimal(1), ((10, Decimal(2)), (20, Decimal(3))))

    assert [rate.at(tokens) for tokens in (10, 11, 20, 21)] == [1, 2, 2, 3]
    assert rate.times(Decimal(2)).at(21) == 6


@pytest.mark.parametrize(
    ("provider", "model", "minimum", "lifetime"),
    [
        ("anthropic", "claude-opus-4-5", 4_096, 300),
        ("anthropic", "claude-3-5-haiku-latest", 2_048, 300),
        ("anthropic", "claude-sonnet-4-5", 1_024, 300),
        ("openai", "gpt-5.6-sol", 1_024, 1_800),
        ("openai", "gpt-4o", 1_024, 300),
        ("google", "gemini-3-pro-preview", 1_024, None),
        ("nobody", "m", 1_024, None),
    ],
)
def test_caches_have_a_shortest_prefix_and_a_lifetime(
    provider: str, model: str, minimum: int, lifetime: int | None
) -> None:
    terms = terms_of(provider, model)

    assert (terms.minimum_tokens, terms.lifetime_seconds) == (minimum, lifetime)
