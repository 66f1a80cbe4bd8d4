"""What a summarizer is told: its options, checked, and who writes its summaries."""

from __future__ import annotations

import math
from typing import Protocol, cast

from chatstack.client.protocol import ChatClient, chain, is_client, layer_kind
from chatstack.context.limits import check_limit, check_share
from chatstack.errors import WiringError
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.tracer import traced

_SUMMARY_TOKENS = 2_048
_LEAST_SUMMARY = 64
_MOST_SUMMARY = 8_192
_NOT_FOR_SUMMARIES = ("context", "tool_loop", "reporter")


class SummaryClient(ChatClient, Protocol):
    """A chat client that writes summaries: any client will do. In a container it has a name of its own with this one,
    so that a summarizer is never given the very client that it is part of."""


class Summarizing(Protocol):
    """The options that say when and how to summarize."""

    @property
    def max_tokens(self) -> int | None: ...
    @property
    def max_context_items(self) -> int | None: ...
    @property
    def keep_recent_turns(self) -> int: ...
    @property
    def compress_to(self) -> float: ...
    @property
    def summary_client(self) -> SummaryClient | None: ...
    @property
    def summary_prompt(self) -> str: ...
    @property
    def summary_timeout_seconds(self) -> float: ...
    @property
    def max_summary_tokens(self) -> int | None: ...


def check_summarizing(owner: str, given: Summarizing) -> None:
    """Check the options of a summarizer. Raises ``WiringError`` that names the layer, the parameter and the value."""
    check_limit(owner, "max_tokens", given.max_tokens)
    check_limit(owner, "max_context_items", given.max_context_items)
    check_limit(owner, "max_summary_tokens", given.max_summary_tokens)

    def wrong(parameter: str, value: object, wanted: str) -> WiringError:
        return WiringError(f"{owner}: {parameter}={value!r} must be {wanted}", layer=owner, parameter=parameter)

    most, limit = given.max_summary_tokens, given.max_tokens
    if most is not None and limit is not None and most >= limit:
        raise wrong("max_summary_tokens", most, f"less than max_tokens={limit}: a summary is to be smaller than that")
    turns: object = given.keep_recent_turns
    if type(turns) is not int or turns < 1:
        raise wrong("keep_recent_turns", turns, "a whole number, at least 1: the turn that runs is one of them")
    check_share(owner, "compress_to", given.compress_to, "the limits")
    seconds: object = given.summary_timeout_seconds
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds < math.inf:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong("summary_timeout_seconds", seconds, "a number of seconds greater than 0")
    prompt: object = given.summary_prompt
    if not isinstance(prompt, str) or not prompt.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
        raise wrong("summary_prompt", prompt, "text: what is asked of the model that summarizes")
    client: object = given.summary_client
    if client is not None and not is_client(client):
        kind = client.__name__ if isinstance(client, type) else type(client).__name__
        raise wrong("summary_client", kind, "a chat client, which has send()")


def summary_tokens(max_tokens: int | None) -> int:
    """How long a summary may be, where nobody said."""
    return _SUMMARY_TOKENS if max_tokens is None else max(_LEAST_SUMMARY, min(_MOST_SUMMARY, max_tokens // 4))


def _below_layers(inner: ChatClient) -> ChatClient:
    """What is inside of all layers that edit, run tools or open a turn: a summary is none of their business."""
    layers = list(chain(inner))
    last = max((at for at, each in enumerate(layers) if layer_kind(each) in _NOT_FOR_SUMMARIES), default=-1)
    return cast("ChatClient", layers[last + 1]) if last + 1 < len(layers) else inner


def client_that_writes(given: ChatClient | None, inner: ChatClient, telemetry: Telemetry) -> ChatClient:
    """Who writes the summaries: the client that was given, or what the inner layers lead to; with a span for each of
    its calls."""
    return traced(given or _below_layers(inner), telemetry)
