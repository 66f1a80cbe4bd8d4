"""A server with Gemini's API: its replies are read with the SDK's own types before they are sent, and requests to it
are held to the SDK's types and to the order that the API demands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from google.genai import types
from pydantic import TypeAdapter

from chatstack.testing.provider_contract import ModelAnswer, ServerRefusal, ServerReply
from chatstack.testing.provider_server import ReceivedRequest
from chatstack.values.responses import FinishReason

Fields = dict[str, Any]
FINISHES: dict[FinishReason, str] = {"stop": "STOP", "tool_calls": "STOP", "length": "MAX_TOKENS", "refused": "SAFETY"}


def checked(chunk: Fields) -> Fields:
    """Return a chunk, if the SDK's strict models have each of its fields."""
    types.GenerateContentResponse.model_validate(chunk)
    return chunk


def chunk(parts: Sequence[Fields], **more: object) -> Fields:
    """Return one chunk of an answer with these parts; ``finishReason`` is the candidate's."""
    finish = {name: more.pop(name) for name in ("finishReason",) if name in more}
    candidate = {"content": {"role": "model", "parts": list(parts)}, "index": 0, **finish}
    return checked({"candidates": [candidate], "modelVersion": "contract-model-001", "responseId": "resp1", **more})


def usage(said: ModelAnswer) -> Fields:
    spent = said.usage
    return {
        "promptTokenCount": spent.input_tokens,
        "candidatesTokenCount": spent.output_tokens - spent.reasoning_tokens,
        "totalTokenCount": spent.total_tokens,
        "cachedContentTokenCount": spent.cache_read_tokens,
        "thoughtsTokenCount": spent.reasoning_tokens,
    }


def answer_reply(said: ModelAnswer, parts: list[Fields], *, stream: bool) -> ServerReply:
    """Return the reply for an answer: its parts, then its calls, text in two pieces where it streams."""
    calls = [
        {"functionCall": {"id": call.id, "name": call.name, "args": json.loads(call.arguments)}} for call in said.calls
    ]
    end: Fields = {"finishReason": FINISHES[said.finish_reason], "usageMetadata": usage(said)}
    if not stream:
        return ServerReply.json(chunk([*parts, *calls], **end))
    pieces: list[Fields] = []
    for part in parts:
        half = len(part["text"]) // 2
        more = {name: value for name, value in part.items() if name != "text"}
        pieces += [{"text": part["text"][:half]}, {"text": part["text"][half:], **more}] if half else [part]
    running = {"usageMetadata": {"promptTokenCount": said.usage.input_tokens}}
    chunks = [chunk([piece], **running) for piece in (*pieces, *calls)]
    return ServerReply.events(*chunks, chunk([], **running), chunk([], **end))


def error_reply(said: ServerRefusal) -> ServerReply:
    """Return the reply that refuses a request, in the form of Google's errors."""
    code, status = {
        "authentication": (400, "INVALID_ARGUMENT"),
        "rate_limit": (429, "RESOURCE_EXHAUSTED"),
        "overflow": (400, "INVALID_ARGUMENT"),
        "bad_request": (400, "INVALID_ARGUMENT"),
        "server": (503, "UNAVAILABLE"),
    }[said.kind]
    text, details = said.message, []
    if said.kind == "authentication":
        reason = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}
        details.append(reason | {"domain": "googleapis.com"})
    if said.retry_after_seconds is not None:
        delay = f"{said.retry_after_seconds:g}s"
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    if said.kind == "overflow":
        text = f"The input token count exceeds the maximum number of tokens allowed. {text}"
        if said.limit_tokens is not None:
            text = (
                f"The input token count ({said.actual_tokens}) exceeds the maximum number of tokens allowed "
                f"({said.limit_tokens}). {said.message}"
            )
    error = {"code": code, "message": text, "status": status, **({"details": details} if details else {})}
    return ServerReply.json({"error": error}, status=code)


def check_request(request: ReceivedRequest) -> Fields:
    """Return the body of a request, checked."""
    return check_body(json.loads(request.body))


def check_body(body: Fields) -> Fields:
    """Return a body. Raises unless the SDK's strict types take each of its fields, and the contents are in an order
    that the API takes. Fields that begin with ``mark_`` are a test's own."""
    asked = body.get("generateContentRequest", body)
    known: dict[str, Any] = {
        "contents": list[types.Content],
        "systemInstruction": types.Content,
        "tools": list[types.Tool],
        "toolConfig": types.ToolConfig,
        "generationConfig": types.GenerationConfig,
        "cachedContent": str,
        "safetySettings": list[types.SafetySetting],
        "continuationToken": str,
        "model": str,
    }
    for name, value in asked.items():
        if not name.startswith("mark_"):
            # JSON, so that bytes are read as base64.
            TypeAdapter(known[name]).validate_json(json.dumps(value))
    check_order(asked["contents"])
    return body


def check_order(contents: Sequence[Fields]) -> None:
    """Raise unless roles alternate from the user on, and responses follow their calls, one for each, in order."""
    assert contents, "no contents"
    calls: list[Fields] = []
    for position, content in enumerate(contents):
        assert content["role"] == ("user", "model")[position % 2], f"contents[{position}] is out of turn"
        assert content["parts"], f"contents[{position}] has no parts"
        found = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        assert [(each.get("id"), each["name"]) for each in found] == [(each.get("id"), each["name"]) for each in calls]
        for part in content["parts"]:
            kinds = part.keys() & {"text", "functionCall", "functionResponse", "inlineData", "fileData"}
            assert len(kinds) <= 1, f"contents[{position}] has a part of two kinds"
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
