"""Responses of Pydantic AI's models as updates of ours; their usage and reasons, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic_ai.messages import ModelResponse
from pydantic_ai.usage import RequestUsage

from chatstack import ChatUpdate, Usage
from chatstack.client.answers import updates_of
from chatstack.providers.foreign import finish_reason_of
from chatstack_pydantic_ai.messages import from_response

_THEIRS: dict[str | None, Literal["stop", "length", "content_filter", "tool_call", "error"]] = {
    "stop": "stop",
    "length": "length",
    "refused": "content_filter",
    "tool_calls": "tool_call",
}


def answer_of(response: ModelResponse, *, streamed: bool = False) -> Iterator[ChatUpdate]:
    """Yield the updates that bring a response."""
    return updates_of(
        from_response(response),
        streamed=streamed,
        usage=from_usage(response.usage),
        finish_reason=finish_reason_of(response.finish_reason),
        response_id=response.provider_response_id or "",
        model=response.model_name or "",
        raw=response,
    )


def from_usage(usage: RequestUsage) -> Usage | None:
    """Return the usage as ours; None if nothing was reported."""
    if not usage.has_values():
        return None
    reasoning = usage.details.get("reasoning_tokens", 0)
    return Usage(usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens, reasoning)


def to_usage(usage: Usage) -> RequestUsage:
    """Return the usage as theirs."""
    return RequestUsage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
        details={"reasoning_tokens": usage.reasoning_tokens} if usage.reasoning_tokens else {},
    )


def to_finish_reason(reason: str | None) -> Literal["stop", "length", "content_filter", "tool_call", "error"] | None:
    """Return the reason as theirs."""
    return _THEIRS.get(reason)
