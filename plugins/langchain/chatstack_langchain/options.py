"""Options of a call: tools, choices and schemas of LangChain's as ours, and ours as the arguments of its models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from langchain_core.utils.function_calling import convert_to_openai_tool

from chatstack import ChatOptions, InputError, OutputSchema, ProviderItem, ToolDeclaration
from chatstack.providers.openai.chat_options import options_to_wire
from chatstack.values.requests import DeclaredTool

_CHOICES = {"any": "required", True: "required", False: None, "required": "required"}
_SAME = ("temperature", "top_p", "seed", "max_tokens", "parallel_tool_calls", "reasoning_effort", "model")
"""Names that are the same on both sides."""


def declared(tools: Sequence[Any]) -> tuple[DeclaredTool, ...]:
    """Return our declarations of LangChain's tools: functions, classes, ``BaseTool`` and dicts.

    What is no function, as a provider's own search, goes along as the provider's item.
    """
    return tuple(map(_declaration, tools))


def options_from(kwargs: Mapping[str, Any], stop: Sequence[str] | None = None) -> ChatOptions:
    """Return our options for the arguments that LangChain gives a model. Others go into the request as they are."""
    rest = dict(kwargs)
    given: dict[str, Any] = {name: rest.pop(name) for name in _SAME if name in rest}
    tools = declared(rest.pop("tools", None) or ())
    schema = _schema(rest.pop("response_format", None))
    strict = rest.pop("strict", None)
    if strict is not None:
        tools = tuple(_strict(tool, strict) for tool in tools)
    for noted in ("ls_structured_output_format", "stream"):  # LangChain's own notes
        rest.pop(noted, None)
    return ChatOptions(
        **given,
        tools=tools,
        tool_choice=_choice(rest.pop("tool_choice", None)),
        stop=tuple(stop or ()),
        output_schema=schema,
        extra=rest,
    )


def kwargs_of(options: ChatOptions) -> dict[str, Any]:
    """Return the arguments for a model of LangChain's, tools and ``tool_choice`` apart: those that were chosen."""
    return options_to_wire(options.but(tools=(), tool_choice=None), max_tokens_field="max_tokens")


def tools_of(options: ChatOptions) -> list[dict[str, Any]]:
    """Return the declared tools as LangChain's models take them, in OpenAI's form."""
    return [_theirs(tool) for tool in options.tools]


def _declaration(tool: Any) -> DeclaredTool:
    try:
        found: dict[str, Any] = convert_to_openai_tool(tool)
    except ValueError:
        if not isinstance(tool, dict):
            raise
        found = cast("dict[str, Any]", tool)  # a provider's own
    function = found.get("function")
    if not isinstance(function, dict):
        return ProviderItem("langchain", json.dumps(found, default=str))
    known = cast("dict[str, Any]", function)
    return ToolDeclaration(
        known["name"], known.get("description", ""), json.dumps(known.get("parameters", {})), known.get("strict")
    )


def _theirs(tool: DeclaredTool) -> dict[str, Any]:
    if isinstance(tool, ProviderItem):
        return cast("dict[str, Any]", json.loads(tool.json))
    function: dict[str, Any] = {"name": tool.name, "description": tool.description}
    function["parameters"] = json.loads(tool.parameters or '{"type": "object", "properties": {}}')
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _strict(tool: DeclaredTool, strict: bool) -> DeclaredTool:
    if isinstance(tool, ProviderItem):
        return tool
    return ToolDeclaration(tool.name, tool.description, tool.parameters, strict, tool.extra_json)


def _choice(choice: object) -> str | None:
    if isinstance(choice, dict):
        named = cast("dict[str, Any]", choice)
        name: object = named.get("name") or cast("dict[str, Any]", named.get("function") or {}).get("name")
        if not isinstance(name, str):
            raise InputError("tool_choice: names no function; pass 'auto', 'none', 'any' or the name of a tool")
        return name
    if isinstance(choice, str | bool):
        return _CHOICES.get(choice, choice if isinstance(choice, str) else None)
    return None


def _schema(asked: object) -> OutputSchema | None:
    """Return the schema in OpenAI's ``response_format``, or of a class or a schema in its place."""
    if asked is None:
        return None
    found = cast("dict[str, Any]", asked) if isinstance(asked, dict) else {}
    if found and found.get("type") in ("json_object", "text"):
        raise InputError(f"response_format: {found['type']!r} has no schema; pass a schema")
    shape = found.get("json_schema")
    if not isinstance(shape, dict):
        function = cast("dict[str, Any]", convert_to_openai_tool(cast("Any", asked))["function"])
        return OutputSchema(function["name"], json.dumps(function.get("parameters", {})))
    known = cast("dict[str, Any]", shape)
    return OutputSchema(known["name"], json.dumps(known["schema"]), known.get("strict"), known.get("description", ""))
