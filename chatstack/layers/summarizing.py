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


def check_summarizing(
    given: object, max_tokens: int | None, most: int | None, client: SummaryClient | None, *, cache_aligned: bool
) -> None:
    """Check the options of a summarizer; ``most`` are its ``max_summary_tokens``. Raises ``WiringError`` that names the
    layer, the parameter and the value."""
    check_options(given)
    owner = type(given).__name__
    if most is not None and max_tokens is not None and most >= max_tokens:
        less = f"less than max_tokens={max_tokens}: a summary is to be smaller than that"
        raise wrong(owner, "max_summary_tokens", most, less)
    if client is not None:
        check_client(client, owner, "summary_client")
    if client is not None and cache_aligned:
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
