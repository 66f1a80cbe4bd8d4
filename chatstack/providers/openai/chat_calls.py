"""Tool calls and reasoning of an assistant message in chat completions, to and from ours. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from chatstack.providers.extras import (
    WireObject,
    as_list,
    as_object,
    as_string,
    decoded_object,
    decoded_text,
    encoded,
    encoded_extra,
    extra_fields,
    extra_json_of,
    json_arguments,
    text_in,
    with_extra,
    without_nulls,
)
from chatstack.providers.openai.chat_completions import grown
from chatstack.providers.openai.chat_parts import PROVIDER, WIRE
from chatstack.values.parts import Reasoning, ToolCall

LEGACY_CALL = "function_call"
"""Id under which a legacy function call and its result are paired: they have none of their own."""

_GROWING: Mapping[object, str] = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""Types of ``reasoning_details`` that come in pieces, and the field that grows."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details")
"""Names of compatible servers for the reasoning of a message."""


def reasoning_to_wire(part: Reasoning, where: str) -> WireObject:
    """Return the fields that a reasoning came from; none for an item of Responses, or of another provider."""
    if part.provider != PROVIDER or not part.item_json:
        return {}
    fields = decoded_object(part.item_json, where)
    return {} if "type" in fields else fields  # with a type it is an item of Responses


def call_to_wire(call: ToolCall, name: str, where: str) -> WireObject:
    """Return an entry of ``tool_calls`` under that name, or, for a legacy call, the field ``function_call``."""
    kind = extra_fields(call.extra_json, WIRE, where).get("type", "function")
    if kind == LEGACY_CALL:
        return {LEGACY_CALL: {"name": name, "arguments": json_arguments(call.arguments)}}
    written: WireObject = {"id": call.id, "type": kind}
    if kind == "custom":
        written["custom"] = {"name": name, "input": decoded_text(call.arguments)}
    elif kind == "function":
        written["function"] = {"name": name, "arguments": json_arguments(call.arguments)}
    return with_extra(written, call.extra_json, WIRE, where)


def reasoning_from_fields(fields: Mapping[str, object]) -> Reasoning:
    """Return the reasoning from the fields of compatible servers; it goes back as it came."""
    text = fields.get("reasoning_content") or fields.get("reasoning")
    return Reasoning(text if isinstance(text, str) else "", encoded(dict(fields)), PROVIDER)


def grown_details(held: object, value: object) -> list[WireObject]:
    """Merge a delta into ``reasoning_details``. OpenRouter sends a block in pieces of one type and ``index``, the
    signature in the last: in pieces it would be refused."""
    details = cast("list[WireObject]", held) if isinstance(held, list) else []
    for each in as_list(value or [], "reasoning_details"):
        piece = as_object(each, "reasoning_details")
        key = piece.get("type"), piece.get("index")
        last: WireObject = details[-1] if details else {}
        if key[0] not in _GROWING or not isinstance(key[1], int) or key != (last.get("type"), last.get("index")):
            last = {}
            details.append(last)
        for name, field in piece.items():
            if name in _GROWING.values():
                last[name] = grown(last.get(name), field)
            elif field is not None or name not in last:
                last[name] = field
    return details


def thought_in(part: Mapping[str, object]) -> str | None:
    """Return the thinking in a part of an answer's content, as Mistral sends it; None for another part."""
    if part.get("type") != "thinking":
        return None
    said = part.get("thinking")
    if isinstance(said, str):
        return said
    return "".join(text_in(as_object(each, "thinking"), "text") for each in as_list(said or [], "thinking"))


def legacy_call(fields: Mapping[str, object], where: str) -> ToolCall:
    """Return a legacy function call, from the time before tools: one at most, and without an id."""
    name = as_string(fields.get("name"), f"{where}.name")
    arguments = as_string(fields.get("arguments"), f"{where}.arguments")
    return ToolCall(LEGACY_CALL, name, arguments or "{}", encoded_extra({"type": LEGACY_CALL}, WIRE))


def call_from_wire(call: object, where: str) -> ToolCall:
    """Return the call for an entry of ``tool_calls``. Raises ``InputError``, naming the place, for malformed data."""
    fields = without_nulls(as_object(call, where))
    id = as_string(fields.get("id"), f"{where}.id")
    kind = fields.get("type", "function")
    if kind == "custom":
        custom = as_object(fields.get("custom"), f"{where}.custom")
        name = as_string(custom.get("name"), f"{where}.custom.name")
        text = as_string(custom.get("input"), f"{where}.custom.input")
        written: WireObject = {"id": id, "custom": {"name": name, "input": text}}
        return ToolCall(id, name, encoded(text), extra_json_of(fields, written, WIRE))
    if kind != "function":
        return ToolCall(id, str(kind), "{}", extra_json_of(fields, {"id": id}, WIRE))
    function = as_object(fields.get("function"), f"{where}.function")
    name = as_string(function.get("name"), f"{where}.function.name")
    arguments = as_string(function.get("arguments"), f"{where}.function.arguments")
    written = {"id": id, "type": kind, "function": {"name": name, "arguments": arguments}}
    return ToolCall(id, name, arguments or "{}", extra_json_of(fields, written, WIRE))
