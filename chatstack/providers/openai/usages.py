"""Usage on the wires of OpenAI's two APIs, and of servers that speak them. Pure functions, without the SDK."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import cast

from chatstack.values.responses import Usage

_READ = (
    ("details", "cached_tokens"),
    ("usage", "cached_tokens"),  # Moonshot, Together
    ("usage", "prompt_cache_hit_tokens"),  # DeepSeek
    ("usage", "cache_read_input_tokens"),  # LiteLLM, for makers that have caches of this kind
)
"""Places and names of the tokens that were read from the cache; all of them are part of the input."""
_WRITTEN = (
    ("details", "cache_write_tokens"),
    ("details", "cache_creation_tokens"),  # LiteLLM
    ("usage", "cache_creation_input_tokens"),  # LiteLLM, too
)
"""Places and names of the tokens that were written to the cache."""


def chat_usage(usage: object) -> Usage | None:
    """Return the tokens that a chat completion reports; None if it reports none."""
    return _usage(usage, "prompt", "completion")


def responses_usage(usage: object) -> Usage | None:
    """Return the tokens that an answer of Responses reports; None if it reports none."""
    return _usage(usage, "input", "output")


def _usage(usage: object, given: str, said: str) -> Usage | None:
    """Return the reported tokens, which have these names: the input includes the cached ones, the output the
    reasoning."""
    if not isinstance(usage, Mapping):
        return None
    fields = cast("Mapping[str, object]", usage)
    details = _details(fields, given)
    read, written = _told(_READ, fields, details), _told(_WRITTEN, fields, details)
    tokens = _count(fields, f"{given}_tokens")
    return Usage(
        tokens,
        whole_output(tokens, _count(fields, f"{said}_tokens"), _count(fields, "total_tokens"), (read, read + written)),
        read,
        written,
        _count(_details(fields, said), "reasoning_tokens"),
    )


def whole_output(given: int, said: int, total: int, cached: Container[int]) -> int:
    """Return the output with its reasoning, which xAI and Gemini count in the total alone.

    ``cached`` are the numbers of cached tokens: what the total has beyond input and output may be those, too, of a
    server that counts them apart. Where no input is told, the total says nothing of the output.
    """
    beyond = total - given - said
    return said if given <= 0 or beyond <= 0 or beyond in cached else said + beyond


def _told(names: Sequence[tuple[str, str]], fields: Mapping[str, object], details: Mapping[str, object]) -> int:
    """Return the first count above zero under one of these names, or 0."""
    places = {"details": details, "usage": fields}
    return next((count for place, name in names if (count := _count(places[place], name))), 0)


def _details(fields: Mapping[str, object], name: str) -> Mapping[str, object]:
    details = fields.get(f"{name}_tokens_details")
    return cast("Mapping[str, object]", details) if isinstance(details, Mapping) else {}


def _count(fields: Mapping[str, object], name: str) -> int:
    value = fields.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
