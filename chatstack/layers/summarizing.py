"""The options of a summarizer: checks and defaults, and the client that writes its summaries."""

from __future__ import annotations

from typing import Protocol, cast

from chatstack.client.checks import check_client
from chatstack.client.options import check_options
from chatstack.client.protocol import ChatClient, chain, layer_kind
from chatstack.client.wiring import wrong
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.tracer import traced

_SUMMARY_TOKENS = 2_048
_LEAST_SUMMARY = 64
_MOST_SUMMARY = 8_192
_NOT_FOR_SUMMARIES = ("context", "tool_loop", "reporter")


class SummaryClient(ChatClient, Protocol):
    """A chat client that writes summaries; any chat client can be one. It has a type of its own so that a container
    never gives a summarizer the very client that it is part of."""


class Summarizing(Protocol):
    """The options of a summarizer that depend on one another, or are not data."""

    @property
    def max_tokens(self) -> int | None: ...
    @property
    def max_summary_tokens(self) -> int | None: ...
    @property
    def summary_client(self) -> SummaryClient | None: ...
    @property
    def cache_aligned(self) -> bool: ...


def check_summarizing(given: Summarizing) -> None:
    """Check the options of a summarizer. Raises ``WiringError`` that names the layer, the parameter and the value."""
    check_options(given)
    owner, most, limit = type(given).__name__, given.max_summary_tokens, given.max_tokens
    if most is not None and limit is not None and most >= limit:
        less = f"less than max_tokens={limit}: a summary is to be smaller than that"
        raise wrong(owner, "max_summary_tokens", most, less)
    if given.summary_client is not None:
        check_client(given.summary_client, owner, "summary_client")
    if given.summary_client is not None and given.cache_aligned:
        one = "left out where summary_client is given: only the model that answers has the conversation in its cache"
        raise wrong(owner, "cache_aligned", True, one)


def summary_tokens(max_tokens: int | None) -> int:
    """Return the default maximum length of a summary, in tokens: a quarter of the limit, from 64 to 8192."""
    return _SUMMARY_TOKENS if max_tokens is None else max(_LEAST_SUMMARY, min(_MOST_SUMMARY, max_tokens // 4))


def client_that_writes(given: ChatClient | None, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
    """Return the client that writes the summaries, with a span for each call: ``given``, or the one inside of all
    layers that edit, run tools or open a turn, which must not handle summaries."""
    layers = list(chain(inner))
    last = max((at for at, each in enumerate(layers) if layer_kind(each) in _NOT_FOR_SUMMARIES), default=-1)
    below = cast("ChatClient", layers[last + 1]) if last + 1 < len(layers) else inner
    return traced(given or below, telemetry, beside=inner)
