"""Settings of a call for a provider of ours: they go into the request under the names that OpenAI's APIs have."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, cast

from chatstack import ChatClient, ChatOptions, ChatRequest, find
from chatstack.providers.openai.responses import OpenAIResponsesClient
from chatstack.providers.openai.responses_options import request_to_wire
from chatstack_openai_agents.calls import ModelCall, options_of

_SENT = {
    **{name: name for name in ("frequency_penalty", "presence_penalty", "verbosity", "top_logprobs", "truncation")},
    **{name: name for name in ("store", "metadata", "prompt_cache_retention", "prompt_cache_options")},
    "context_management": "context_management",
    "response_include": "include",
}
"""Settings that have no option of ours, with their names in a request. An API that has none of that name refuses it."""
_HTTP = ("extra_headers", "extra_query")


def options_for(call: ModelCall, client: ChatClient) -> ChatOptions:
    """Return the options of a call for a provider of ours. Warns of settings that have no place in a request."""
    settings, options = call.model_settings, options_of(call)
    left = [name for name in _HTTP if getattr(settings, name)]
    sent: dict[str, Any] = {
        wire: value for name, wire in _SENT.items() if (value := getattr(settings, name, None)) is not None
    }
    if call.prompt is not None:
        sent["prompt"] = call.prompt
    if settings.tool_choice is not None and not isinstance(settings.tool_choice, str):
        left.append("tool_choice")  # of a tool that a server of MCP has
    reasoning = {} if settings.reasoning is None else settings.reasoning.model_dump(exclude_none=True)
    if find(client, OpenAIResponsesClient) is not None:
        if reasoning:
            sent["reasoning"] = reasoning
        if "verbosity" in sent:
            text = cast("Mapping[str, Any]", request_to_wire(ChatRequest((), options)).get("text") or {})
            sent["text"] = {**text, "verbosity": sent.pop("verbosity")}
    else:
        left += [f"reasoning.{name}" for name in reasoning if name != "effort"]
    if left:
        told = f"StackModel: {', '.join(left)}: no place in the request of this provider, and left out"
        warnings.warn(told, UserWarning, stacklevel=2)
    return options.but(extra={**sent, **options.extra})
