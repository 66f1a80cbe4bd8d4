"""OpenAI's chat completions on the wire, to and from ours: pure functions, without the SDK.

What is read comes out again as it was, ``messages_to_wire(messages_from_wire(wire)) == wire``, up to these spellings,
which mean the same to the server: a list of one plain text part is written as a string; an assistant message without
text has ``content: null``, whether it was null or absent; one without text, calls or fields of its own has ``""``;
every other null field of a message or call is left out, as OpenAI refuses some, and so is ``tool_calls: []``; a file's
and picture's data is written as a data URL, a file's with a name, which OpenAI demands.

Where our values have no place for something, it rides along: unknown fields under ``openai-chat`` in the ``extra_json``
of the part or message (``refusal``, ``annotations``, ``audio``, ``name``, ``prompt_cache_breakpoint``, the role
``developer``), unknown parts as ``ProviderItem("openai", ...)``. What is there for other wires is not looked at. A
custom tool call keeps its input as a JSON string in ``arguments``: on any other wire it is a call like all others. The
legacy ``function_call`` and its result are a call and a result under the id ``function_call``. What an assistant
message carries as ``reasoning_content``, ``reasoning`` or ``reasoning_details`` (compatible servers) is a
``Reasoning`` and goes back; what Mistral puts into the content, as parts of the type ``thinking``, is one that stays
behind, as other servers refuse it. There is no field for ``ToolResult.is_error``: the content has to say it. Reasoning
and items of other providers are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from chatstack.errors import InputError
from chatstack.providers.call_ids import sendable_name
from chatstack.providers.extras import (
    WireObject,
    as_list,
    as_object,
    as_string,
    decoded_object,
    encoded_extra,
    extra_fields,
    extra_json_of,
    message_at,
    with_extra,
    without_nulls,
)
from chatstack.providers.openai.chat_calls import (
    LEGACY_CALL,
    REASONING_FIELDS,
    call_from_wire,
    call_to_wire,
    legacy_call,
    reasoning_from_fields,
    reasoning_to_wire,
    thought_in,
)
from chatstack.providers.openai.chat_options import MaxTokensField, options_from_wire, options_to_wire
from chatstack.providers.openai.chat_parts import PROVIDER, WIRE, content_from_wire, content_to_wire, parts_to_wire
from chatstack.values.messages import Message, Role
from chatstack.values.parts import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.requests import ChatRequest, declared_names
from chatstack.values.responses import FinishReason

_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_FINISHES: dict[str, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "model_context_window_exceeded": "length",
    "model_length": "length",  # Mistral
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "refused",
    "sensitive": "refused",  # Z.ai
}
FAILURES = frozenset({
    "error",
    "network_error",
    "insufficient_system_resource",
    "MALFORMED_FUNCTION_CALL",
    "UNEXPECTED_TOOL_CALL",
})  # fmt: skip
"""Finish reasons of compatible servers for an answer that failed on the way: Mistral and OpenRouter, Z.ai, DeepSeek,
and Google behind "function_call_filter: "."""


def request_to_wire(
    request: ChatRequest, *, model: str = "", max_tokens_field: MaxTokensField = "max_completion_tokens"
) -> WireObject:
    """Return the JSON body of a request; ``model`` is for options that name none. A streamed one asks for its usage."""
    body: WireObject = {"model": model} if model else {}
    if request.stream:
        body["stream_options"] = {"include_usage": True}
    options = request.options
    body["messages"] = messages_to_wire(request.messages, options.instructions, declared_names(options.tools))
    body.update(options_to_wire(request.options, max_tokens_field=max_tokens_field))
    # The caller decides about streaming, at the front: ``extra`` must not change that.
    body.pop("stream", None)
    if request.stream:
        body["stream"] = True
    return body


def request_from_wire(body: Mapping[str, object]) -> ChatRequest:
    """Return the request in a JSON body. Raises ``InputError``, naming the place, for malformed data."""
    options = options_from_wire({name: value for name, value in body.items() if name not in ("messages", "stream")})
    is_stream = body.get("stream") is True
    if is_stream and options.extra.get("stream_options") == {"include_usage": True}:
        options = options.but(extra={k: v for k, v in options.extra.items() if k != "stream_options"})
    return ChatRequest(messages_from_wire(as_list(body.get("messages"), "messages")), options, None, is_stream)


def messages_to_wire(
    messages: Sequence[Message], instructions: str = "", declared: Collection[str] | None = None
) -> list[WireObject]:
    """Return the messages as they go out; ``instructions`` are a system message before them, ``declared`` the names of
    the request's tools, if there is one."""
    wire: list[WireObject] = [{"role": "system", "content": instructions}] if instructions else []
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if message.role == "assistant":
            wire.append(_assistant_to_wire(message, declared, where))
        else:
            wire.extend(_others_to_wire(message, declared, where))
    return wire


def messages_from_wire(messages: Sequence[object]) -> tuple[Message, ...]:
    """Return recorded messages as ours. A result gets the name of the latest call of its id.

    Raises ``InputError``, naming the place, for malformed data.
    """
    names: dict[str, str] = {}
    found: list[Message] = []
    for position, each in enumerate(messages):
        where = f"messages[{position}]"
        fields = without_nulls(as_object(each, where))
        role = fields.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            raise InputError(f"{where}.role: expected one of {', '.join(_ROLES)}, got {type(role).__name__}")
        if role == "assistant":
            message = _assistant_from_wire(fields, where)
            names.update((call.id, call.name) for call in message.calls)
        elif role in ("tool", "function"):
            message = message_at(where, "tool", (_result_from_wire(fields, names, where),))
        else:
            content = content_from_wire(fields.get("content"), f"{where}.content")
            written: WireObject = {"content": None} if role == "developer" else {"role": role, "content": None}
            message = message_at(where, _ROLES[role], content, extra_json_of(fields, written, WIRE))
        found.append(message)
    return tuple(found)


def finish_from_wire(finish_reason: str, message: Message) -> FinishReason:
    """Return the reason why the model stopped. Calls win over ``stop``, which OpenAI sends when a named tool was
    forced."""
    finish = _FINISHES.get(finish_reason, "other")
    if finish == "stop" and message.calls:
        return "tool_calls"
    if finish == "stop" and extra_fields(message.extra_json, WIRE, "message").get("refusal"):
        return "refused"
    return finish


def _others_to_wire(message: Message, declared: Collection[str] | None, where: str) -> list[WireObject]:
    """Return a message of the user's or the system's; results in it become messages of their own, before the rest."""
    wire = [
        with_extra(_result_to_wire(part, declared, where), message.extra_json, WIRE, where)
        for part in message.parts
        if isinstance(part, ToolResult)
    ]
    rest = tuple(part for part in message.parts if not isinstance(part, ToolResult))
    if message.role == "tool":
        # Beside results, only content of the user can stand. Items there are outputs of Responses.
        rest = tuple(part for part in rest if not isinstance(part, ProviderItem))
        content = content_to_wire(rest, where)
        return [*wire, {"role": "user", "content": content}] if content else wire
    if rest or not wire:
        role: object = "user" if message.role == "user" else "system"
        role = extra_fields(message.extra_json, WIRE, where).get("role", role)
        written: WireObject = {"role": role, "content": content_to_wire(rest, where) or ""}
        wire.append(with_extra(written, message.extra_json, WIRE, where))
    return wire


def _result_to_wire(result: ToolResult, declared: Collection[str] | None, where: str) -> WireObject:
    output = result.output
    content = output if isinstance(output, str) else parts_to_wire(output, where) or ""
    written: WireObject = (
        {"role": "function", "name": sendable_name(result.name, declared), "content": content}
        if extra_fields(result.extra_json, WIRE, where).get("role") == "function"
        else {"role": "tool", "tool_call_id": result.call_id, "content": content}
    )
    return with_extra(written, result.extra_json, WIRE, where)


def _assistant_to_wire(message: Message, declared: Collection[str] | None, where: str) -> WireObject:
    wire: WireObject = {"role": "assistant", "content": None}
    content: list[Part] = []
    calls: list[WireObject] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            call = call_to_wire(part, sendable_name(part.name, declared), where)
            if LEGACY_CALL in call:
                wire.update(call)
            else:
                calls.append(call)
        elif isinstance(part, Reasoning):
            wire.update(reasoning_to_wire(part, where))
        elif isinstance(part, (Text, Image, File)) or (isinstance(part, ProviderItem) and _is_content(part, where)):
            content.append(part)
        elif isinstance(part, ToolResult):
            raise InputError(f"{where}: a ToolResult cannot be part of an assistant message")
    if calls:
        wire["tool_calls"] = calls
    if content:
        wire["content"] = content_to_wire(content, where)
    elif not calls and LEGACY_CALL not in wire and not any(extra_fields(message.extra_json, WIRE, where).values()):
        wire["content"] = ""  # also beside reasoning: servers refuse a message that has neither content nor calls
    return with_extra(wire, message.extra_json, WIRE, where)


def _is_content(item: ProviderItem, where: str) -> bool:
    """Return True if an item is content of an assistant message here: a refusal. Items of Responses have no place."""
    return item.provider == PROVIDER and decoded_object(item.json, where).get("type") == "refusal"


def _assistant_from_wire(fields: Mapping[str, object], where: str) -> Message:
    taken = {"role", "content"}
    parts: list[Part] = []
    reasoning = {name: fields[name] for name in REASONING_FIELDS if fields.get(name)}
    if reasoning:
        parts.append(reasoning_from_fields(reasoning))
        taken |= reasoning.keys()
    parts.extend(_thought_or(part, where) for part in content_from_wire(fields.get("content"), f"{where}.content"))
    legacy = fields.get(LEGACY_CALL)
    if legacy is not None:
        taken.add(LEGACY_CALL)
        call = as_object(legacy, f"{where}.{LEGACY_CALL}")
        parts.append(legacy_call(call, f"{where}.{LEGACY_CALL}"))
    calls = fields.get("tool_calls")
    if calls is not None:
        taken.add("tool_calls")
        for position, each in enumerate(as_list(calls, f"{where}.tool_calls")):
            parts.append(call_from_wire(each, f"{where}.tool_calls[{position}]"))
    extra = {name: value for name, value in fields.items() if name not in taken}
    return Message("assistant", tuple(parts), extra_json=encoded_extra(extra, WIRE))


def _thought_or(part: Part, where: str) -> Part:
    """Return the part, or the reasoning that it is, of which Mistral makes content."""
    thought = thought_in(decoded_object(part.json, where)) if isinstance(part, ProviderItem) else None
    return part if thought is None else Reasoning(thought)


def _result_from_wire(fields: Mapping[str, object], names: Mapping[str, str], where: str) -> ToolResult:
    is_legacy = fields.get("role") == "function"
    call_id = LEGACY_CALL if is_legacy else as_string(fields.get("tool_call_id"), f"{where}.tool_call_id")
    content, name = fields.get("content"), fields.get("name")
    output = content if isinstance(content, str) else content_from_wire(content, f"{where}.content")
    written: WireObject = {"content": None, "name": None} if is_legacy else {"role": "tool", "tool_call_id": None}
    return ToolResult(
        call_id,
        name if isinstance(name, str) else names.get(call_id, ""),
        output or "",
        extra_json=extra_json_of(fields, {"content": None, **written}, WIRE),
    )
