"""Message content in the shape of the GenAI conventions; recorded only if the standard opt-in asks for it.

Source: OpenTelemetry's JSON schemas for input messages, output messages, system instructions and tool definitions.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias, cast, get_args

import msgspec

from chatstack import semconv
from chatstack.errors import WiringError
from chatstack.values.data_urls import split_data_url
from chatstack.values.messages import Message
from chatstack.values.parts import File, Image, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.requests import ChatRequest, ToolDeclaration
from chatstack.values.responses import ChatResponse
from chatstack.values.surrogates import plain_without_lone_surrogates
from chatstack.values.surrogates import without_lone_surrogates as clean

ContentCapture: TypeAlias = Literal["no_content", "span_only", "event_only", "span_and_event"]
"""Destination of message text: none, spans, log events, or both."""
VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

_FINISH: Final[dict[str, str]] = {"tool_calls": "tool_call", "refused": "content_filter"}
"""Names of finish reasons in the conventions' messages, where they differ from ours."""

_DEEPEST = 64
_INTEGERS = range(-(2**63), 2**63)

JSON: TypeAlias = Any
Content: TypeAlias = dict[str, JSON]
"""Message content as plain JSON values, by attribute."""


class _Declared(msgspec.Struct):
    """Declaration of a tool that runs at the provider."""

    type: str = ""
    name: str = ""


def capture_of(given: ContentCapture | None) -> ContentCapture:
    """Return the given setting, else that of the environment; an unknown word there is a ``RuntimeWarning``."""
    known = get_args(ContentCapture)
    if given is not None:
        if given not in known:
            raise WiringError(
                f"Telemetry: capture_content={given!r} must be one of {', '.join(known)}", parameter="capture_content"
            )
        return given
    said = os.environ.get(VARIABLE, "").strip().lower() or "no_content"
    if said not in known:
        warnings.warn(
            f"{VARIABLE} must be one of {', '.join(known)} in upper case: no content is captured",
            RuntimeWarning,
            stacklevel=3,
        )
        return "no_content"
    return said  # type: ignore[return-value]


def content_of(request: ChatRequest, answer: ChatResponse | None) -> Content:
    """Return the content of a request, and of its answer up to now."""
    options, found = request.options, Content()
    if options.instructions:
        found[semconv.SYSTEM_INSTRUCTIONS] = [{"type": "text", "content": options.instructions}]
    found[semconv.INPUT_MESSAGES] = [_message(message) for message in request.messages]
    if options.tools:
        found[semconv.TOOL_DEFINITIONS] = [_tool(tool) for tool in options.tools]
    if answer is not None and answer.messages:
        messages = [_message(message) for message in answer.messages]
        if answer.finish_reason:
            messages[-1]["finish_reason"] = _FINISH.get(answer.finish_reason, answer.finish_reason)
        found[semconv.OUTPUT_MESSAGES] = messages
    return _clean(found)


def tool_content(call: ToolCall, result: ToolResult | None) -> Content:
    """Return the arguments and the result of a tool call."""
    found = Content({semconv.TOOL_CALL_ARGUMENTS: _parsed(call.arguments)})
    if result is not None:
        found[semconv.TOOL_CALL_RESULT] = _output(result)
    return _clean(found)


def as_attributes(content: Content) -> dict[str, str]:
    """Return content as span attributes, which are flat: as JSON text."""
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in content.items()
    }


def shown_input(messages: Sequence[Message]) -> str:
    """Return the text of the latest user message, for a cell in a list."""
    return clean(next((message.text for message in reversed(messages) if message.role == "user"), ""))


def shown_output(story: str, answer: str) -> str:
    """Return the story of a turn, and its answer, for a cell in a list."""
    return clean("\n\n".join(filter(None, (story, answer))))


def _message(message: Message) -> dict[str, JSON]:
    return {"role": message.role, "parts": _parts(message.parts)}


def _part(part: object) -> dict[str, JSON] | None:
    match part:
        case Text():
            return {"type": "text", "content": part.text}
        case Reasoning():
            return {"type": "reasoning", "content": part.text}
        case ToolCall():
            return {"type": "tool_call", "id": part.id, "name": part.name, "arguments": _parsed(part.arguments)}
        case ToolResult():
            return {"type": "tool_call_response", "id": part.call_id, "response": _output(part)}
        case Image():
            return _medium("image", part)
        case File():
            return {"type": "text", "content": part.text} if part.text else _medium("document", part)
        case _:
            return None  # only its provider understands it


def _medium(modality: str, part: Image | File) -> dict[str, JSON]:
    """Return a picture or a file; of one that goes along, its size in place of its bytes, which are no text."""
    inline = split_data_url(part.url)
    media_type, data = inline or (part.media_type, part.data)
    known: dict[str, JSON] = {"modality": modality, "mime_type": media_type or None}
    if part.url and inline is None:
        return {"type": "uri", **known, "uri": part.url}
    if part.file_id:
        return {"type": "file", **known, "file_id": part.file_id}
    return {"type": "blob", **known, "content": "", "size_bytes": len(data.rstrip("=")) * 3 // 4}


def _output(result: ToolResult) -> JSON:
    return result.output if isinstance(result.output, str) else _parts(result.output)


def _parts(parts: Sequence[object]) -> list[dict[str, JSON]]:
    return [found for part in parts if (found := _part(part)) is not None]


def _tool(tool: ToolDeclaration | ProviderItem) -> dict[str, JSON]:
    if isinstance(tool, ProviderItem):
        try:
            declared = msgspec.json.decode(tool.json, type=_Declared)
        except (msgspec.DecodeError, RecursionError):
            declared = _Declared()
        return {"type": declared.type, "name": declared.name or declared.type}
    known = {"type": "function", "name": tool.name, "description": tool.description or None}
    return {**known, "parameters": _parsed(tool.parameters) if tool.parameters else None}


def _parsed(text: str) -> JSON:
    """Return the value of a JSON text. Text that is no JSON, or that exporters cannot write (lone surrogates, too deep,
    an integer of more than 64 bits), stays text."""
    try:
        value = msgspec.json.decode(text)
        msgspec.json.encode(value)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text
    return value if _is_exportable(value) else text


def _is_exportable(value: JSON) -> bool:
    """Return True if the value is nested no deeper than exporters accept, and its integers fit into 64 bits."""
    level: list[JSON] = [value]
    for _ in range(_DEEPEST):
        below: list[JSON] = []
        for each in level:
            if isinstance(each, dict):
                below += cast("dict[str, JSON]", each).values()
            elif isinstance(each, list):
                below += cast("list[JSON]", cast("object", each))
            elif isinstance(each, int) and each not in _INTEGERS:
                return False
        if not below:
            return True
        level = below
    return False


def _clean(content: Content) -> Content:
    """Return content without lone surrogates, which no exporter takes: names and ids that a model invents may hold
    them."""
    return cast("Content", plain_without_lone_surrogates(content))
