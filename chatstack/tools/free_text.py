"""Arguments of calls whose input is free text, as that of OpenAI's ``custom`` tools, for functions with parameters."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import msgspec

from chatstack.client.hints import bound_names
from chatstack.providers.extras import decoded_text
from chatstack.tools.tool import Tool
from chatstack.values.parts import ToolCall

_FREE_TEXT = ("custom", "custom_tool_call")
"""Types by which OpenAI's two wires mark such a call in its ``extra_json``."""


def arguments_of(tool: Tool[..., Any], call: ToolCall) -> dict[str, Any]:
    """Return the validated arguments of a call. Free text is the tool's only parameter, if that takes text, else the
    JSON object of its arguments. Raises ``msgspec.ValidationError`` or ``DecodeError``."""
    if not _is_free_text(call):
        return tool.arguments_from(call.arguments)
    text, names = decoded_text(call.arguments), _names_of(tool)
    readings = [msgspec.json.encode({names[0]: text}).decode(), text] if len(names) == 1 else [text]
    failures: list[msgspec.DecodeError] = []
    for reading in readings:
        try:
            return tool.arguments_from(reading)
        except msgspec.DecodeError as error:
            failures.append(error)
    told = f"; the input has to be a JSON object with {', '.join(names)}" if len(names) > 1 else ""
    raise msgspec.ValidationError(f"{failures[0]}{told}") from failures[0]


def _is_free_text(call: ToolCall) -> bool:
    if not call.extra_json:
        return False
    try:
        by_wire = msgspec.json.decode(call.extra_json, type=dict[str, _Fields])
    except (msgspec.DecodeError, RecursionError):  # the provider's to refuse
        return False
    return any(each.type in _FREE_TEXT for each in by_wire.values())


class _Fields(msgspec.Struct):
    type: Any = None


def _names_of(tool: Tool[..., Any]) -> Sequence[str]:
    """Return the names of the parameters that a model fills in."""
    if tool.arguments is not None:
        return tool.arguments.__struct_fields__
    declared = msgspec.json.decode(tool.parameters, type=_Schema).properties
    own = inspect.signature(tool.function).parameters.values()
    open_ended = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    named = [each.name for each in own if each.kind not in open_ended]
    return [*declared] or [each for each in named if each not in bound_names(tool.function)]


class _Schema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}
