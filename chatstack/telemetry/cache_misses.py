"""Warnings of tokens that a call did not read from the prompt cache."""

from __future__ import annotations

from chatstack import semconv
from chatstack.client.protocol import ProviderInfo
from chatstack.telemetry.caches import CacheMiss, MissReason
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.spans import Value
from chatstack.telemetry.usage import conversation_key
from chatstack.values.items import usage_of_request
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse

_TOLD: dict[MissReason, str] = {
    "head": "the system prompt or the instructions are not those of the call before",
    "tools": "the tools are not those of the call before",
    "order": "the tools, or the fields of their JSON, are in another order than in the call before",
}


def compare_with_last(
    telemetry: Telemetry, request: ChatRequest, info: ProviderInfo, started: float, answer: ChatResponse
) -> CacheMiss | None:
    """Return what a call has missed of the prompt cache; None if that is nothing.

    Warns (``cache_missed``) once per reason and conversation, where the reason is known. ``started`` is the time by the
    clock of ``telemetry.caches``.
    """
    miss = telemetry.caches.missed(request, info, usage_of_request(answer), started)
    if (
        miss is not None
        and miss.reason
        and telemetry.is_first("cache_missed", (miss.reason, conversation_key(request)))
    ):
        why = _TOLD.get(miss.reason) or (
            f"the call before was {miss.pause_seconds:,.0f} s ago, and the cache lives {miss.cache_seconds:,.0f} s"
        )
        told = f"{miss.tokens:,} tokens were not read from the prompt cache, where they had been: {why}"
        telemetry.warn("cache_missed", told, attributes_of(miss), span_name="prompt_cache")
    return miss


def attributes_of(miss: CacheMiss) -> dict[str, Value]:
    """Return the attributes of a span that tell what was missed, and why if that is known."""
    known: dict[str, Value] = {semconv.CACHE_MISSED: miss.tokens}
    return {**known, semconv.CACHE_MISS_REASON: miss.reason} if miss.reason else known
