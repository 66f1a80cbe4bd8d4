"""The counter of a layer that was given none."""

from __future__ import annotations

from chatstack.client.protocol import ChatClient, provider_info
from chatstack.tokens.counter import TokenCounter, char_counter
from chatstack.tokens.estimating import EstimatingCounter

_KNOWN = frozenset(
    ("openai", "azure.ai.openai", "anthropic", "aws.bedrock", "gcp.gemini", "gcp.vertex_ai", "openrouter")
)
"""Names of providers, as in telemetry, whose requests ``EstimatingCounter`` has figures for."""


def default_counter(inner: ChatClient, chars_per_token: float | None = None) -> TokenCounter:
    """Return the counter for the provider's own model, or characters divided by the ratio if one is given, by 4 if the
    provider is not known.

    A model that a request names is counted as the provider's own, and corrected by its reports. Behind a ``Fallback``
    each client has its own counter; layers around it go by the first client. The same object for equal answers, so that
    layers count a message once.
    """
    info = None if chars_per_token is not None else provider_info(inner)
    if info is not None and info.name in _KNOWN:
        return EstimatingCounter.of(info.name, info.model)
    return char_counter(4 if chars_per_token is None else chars_per_token)
