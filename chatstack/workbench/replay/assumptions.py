"""The assumptions of a replay, in sentences, for readers who decide by its figures."""

from __future__ import annotations

from chatstack.tokens.caching import CACHE_READ, CACHE_SECONDS, CACHE_WRITE, LONG_CACHE_SECONDS, LONG_CACHE_WRITE
from chatstack.tokens.prices import Price
from chatstack.workbench.replay.measures.costs import MINIMUM_PREFIX_TOKENS, OUTPUT
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.setup import Setup
from chatstack.workbench.replay.summaries import SUMMARY_TOKENS

_MODELS_TOLD = 10
_NAME_CHARS = 60


def assumptions_of(outcome: Outcome, setup: Setup) -> list[str]:
    """Return one sentence for each assumption."""
    written = LONG_CACHE_WRITE if setup.long_cache else CACHE_WRITE
    return [
        "The recording answers every call: what the model would have done with less in view is not known. Grounding "
        "says what it could no longer see of what it used.",
        f"Sizes are those of the text as chat completions have it, by {setup.counter.name}, the same for every policy "
        "and model; other tokenizers count up to 1.6 times as much. A picture or a file counts as 1,000.",
        *_joined_told(outcome),
        *_stacks_told(setup),
        _tools_told(setup),
        _pause_told(setup),
        f"Relative costs: a token read from the cache {CACHE_READ:g}, written to it {written:g}, any other 1; no "
        f"request under {MINIMUM_PREFIX_TOKENS:,} tokens is cached. A cache holds whole messages of the call before, "
        "in the same conversation; conversations share nothing.",
        *_summaries_told(outcome),
        *_models_told(outcome, setup),
        "What the answers cost is the same under every policy and is left out.",
    ]


def _joined_told(outcome: Outcome) -> list[str]:
    if not outcome.joined:
        return []
    return [
        f"{outcome.joined:,} of the recorded lines are the beginning of another, or the same: as in a log of requests, "
        "they are one conversation with it."
    ]


def _stacks_told(setup: Setup) -> list[str]:
    told: list[str] = []
    if setup.shared_memory:
        told.append("Each policy remembers one conversation in the next; its figures depend on the order of the input.")
    if setup.own_counter:
        told.append(
            "The layers of stacks of ours count by themselves, as they would with the provider of the recorded model, "
            "and that provider reports the measured size of each call. Comparisons and peers count as is measured."
        )
    return told


def _tools_told(setup: Setup) -> str:
    if setup.tools:
        return f"{len(setup.tools)} tool schemas, {setup.tools_tokens:,} tokens, go out with every call."
    return "Tool schemas count where a recording declares them."


def _pause_told(setup: Setup) -> str:
    if not setup.pause_seconds:
        return "Recordings do not tell the time: every call is taken to come while the cache still lives."
    lifetime = LONG_CACHE_SECONDS if setup.long_cache else CACHE_SECONDS
    return (
        f"{setup.pause_seconds:g} seconds pass before each call; for relative costs a cache lives {lifetime:g} "
        f"seconds, a model's, of which nothing is published, {CACHE_SECONDS:g}."
    )


def _summaries_told(outcome: Outcome) -> list[str]:
    if not any(each.spending.summary_output for each in outcome.figures):
        return []
    return [
        f"Summaries are stand-ins of at most {SUMMARY_TOKENS} tokens that hold nothing of the conversation, so "
        "grounding under policies that summarize is the least it could be. What was read for one is charged as "
        f"uncached input, what was written at {OUTPUT:g} times that, in dollars by the price of the recorded model."
    ]


def _models_told(outcome: Outcome, setup: Setup) -> list[str]:
    told: list[str] = []
    if setup.model:
        told.append(f"Prices are those of {setup.model}, whatever model was recorded.")
    told += [_price_told(model, price) for model, price in sorted(outcome.prices.items())[:_MODELS_TOLD]]
    if outcome.unpriced:
        names = ", ".join(name[:_NAME_CHARS] or "no name" for name in sorted(outcome.unpriced)[:_MODELS_TOLD])
        told.append(f"No price is known of these models, so there is no sum in dollars: {names}.")
    return told


def _price_told(model: str, price: Price) -> str:
    cached = f"nothing under {price.minimum_tokens:,} tokens is cached"
    lives = (
        f"a cache lives {price.lifetime_seconds:,} seconds" if price.lifetime_seconds else "no lifetime is published"
    )
    writes = "what a write costs is not known" if price.write is None else f"a write ${price.write.base:g}"
    return (
        f"{model[:_NAME_CHARS]}: input ${price.input.base:g} a million tokens, a read ${price.read.base:g}, {writes}; "
        f"{cached}, {lives} (by {price.source})."
    )
