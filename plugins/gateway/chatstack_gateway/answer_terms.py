"""Terms of an answer in the form of each wire: reasons to stop, usage, refusals."""

from __future__ import annotations

from collections.abc import Mapping

from chatstack import ChatResponse, ProviderItem
from chatstack.providers.extras import WireObject, extra_fields
from chatstack.providers.wires import Form
from chatstack.values.responses import FinishReason, Usage
from chatstack_gateway.converting import refusal_in

CHAT_FINISHES: Mapping[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "refused": "content_filter",
    "paused": "stop",
    "other": "stop",
}
STOP_REASONS: Mapping[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "refused": "refusal",
    "paused": "pause_turn",
    "other": "end_turn",
}
INCOMPLETE: Mapping[FinishReason, str] = {"length": "max_output_tokens", "refused": "content_filter"}
"""Reasons for which a response of Responses is incomplete."""


def refusal_of(response: ChatResponse) -> str:
    """Return the words in which the model refused; "" if it did not."""
    for message in response.messages:
        told = extra_fields(message.extra_json, "openai-chat", "message").get("refusal")
        if told:
            return str(told)
        for part in message.parts:
            found = refusal_in(part) if isinstance(part, ProviderItem) else None
            if found:
                return found
    return ""


def usage_of(form: Form, usage: Usage) -> WireObject:
    """Return the tokens as that API reports them."""
    if form == "messages":
        written, hour = usage.cache_write_tokens, usage.hour_write_tokens
        lifetimes = {"ephemeral_5m_input_tokens": max(0, written - hour), "ephemeral_1h_input_tokens": hour}
        return {
            "input_tokens": max(0, usage.input_tokens - usage.cache_read_tokens - written),
            "cache_read_input_tokens": usage.cache_read_tokens,
            "cache_creation_input_tokens": written,
            "cache_creation": lifetimes,
            "output_tokens": usage.output_tokens,
        }
    taken, said = ("prompt", "completion") if form == "chat" else ("input", "output")
    details = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return {
        f"{taken}_tokens": usage.input_tokens,
        f"{said}_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        f"{taken}_tokens_details": details,
        f"{said}_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
