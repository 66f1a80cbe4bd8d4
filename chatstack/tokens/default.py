"""The counter of a layer that was given none."""

from __future__ import annotations

from chatstack.client.protocol import ChatClient, ProviderInfo, provider_info
from chatstack.tokens.counter import TokenCounter, char_counter
from chatstack.tokens.estimating import EstimatingCounter

_KNOWN = frozenset(
    ("openai", "azure.ai.openai", "anthropic", "aws.bedrock", "gcp.gemini", "gcp.vertex_ai", "openrouter")
)
"""Names of providers, as in telemetry, whose requests ``EstimatingCounter`` has figures for."""
_HOSTS_OF_OPENAI = (".openai.com", ".azure.com", ".azure.us", ".azure.cn")
"""Ends of the addresses where a model of any name is OpenAI's. Other servers speak OpenAI's API, too."""


def default_counter(inner: ChatClient, chars_per_token: float | None = None) -> TokenCounter:
    """Return the counter for the provider's own model, or characters divided by the ratio if one is given, by 4 if the
    provider is not known.

    A model that a request names is counted as the provider's own, and corrected by its reports. Behind a ``Fallback``
    each client has its own counter; layers around it go by the first client. The same object for equal answers, so that
    layers count a message once.
    """
    info = None if chars_per_token is not None else provider_info(inner)
    if info is not None and info.name in _KNOWN:
        return estimating_counter(info)
    return char_counter(4 if chars_per_token is None else chars_per_token)


def estimating_counter(info: ProviderInfo) -> EstimatingCounter:
    """Return the counter for the model of that provider; for a server that only speaks OpenAI's API, by the model's
    name alone."""
    host = info.server_address.lower()
    is_elsewhere = info.name == "openai" and host and not f".{host}".endswith(_HOSTS_OF_OPENAI)
    return EstimatingCounter.of("" if is_elsewhere else info.name, info.model)
