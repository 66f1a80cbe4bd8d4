"""Options of a call: those of Agent Framework's as ours, and ours as theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agent_framework import FunctionTool, normalize_tools
from pydantic import BaseModel

from chatstack import ChatOptions, InputError, OutputSchema, ProviderItem, ToolDeclaration
from chatstack.providers.openai.chat_options import options_to_wire
from chatstack.values.requests import DeclaredTool
from chatstack_agent_framework.contents import FRAMEWORK

_SAME = ("model", "instructions", "temperature", "top_p", "max_tokens", "seed")
_LOCAL_HISTORY = "agent_framework_local_history_persistence"
"""A conversation id by which Agent Framework marks a history that it keeps itself."""


def from_their_options(options: Mapping[str, Any] | None) -> ChatOptions:
    """Return the options as ours. What has no field there goes into the request as it is."""
    rest = {name: value for name, value in (options or {}).items() if value is not None}
    given: dict[str, Any] = {name: rest.pop(name) for name in _SAME if name in rest}
    stop: str | Sequence[str] = rest.pop("stop", ())
    tools = declared(rest.pop("tools", None))
    choice = _choice(rest.pop("tool_choice", None))
    held: object = rest.pop("conversation_id", None)
    if isinstance(held, str) and held != _LOCAL_HISTORY:  # the history lies at the service
        rest["previous_response_id" if held.startswith("resp_") else "conversation"] = held
    return ChatOptions(
        **given,
        tools=tools,
        tool_choice=choice if tools else None,
        parallel_tool_calls=rest.pop("allow_multiple_tool_calls", None),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        output_schema=_schema(rest.pop("response_format", None)),
        extra=rest,
    )


def to_their_options(options: ChatOptions) -> dict[str, Any]:
    """Return the options as theirs. Tools are declared, not handed over: the stack's tool loop carries them out.

    Raises ``InputError`` for an effort of reasoning, which each of their clients has under another name.
    """
    if options.reasoning_effort is not None:
        raise InputError("AgentFrameworkClient: reasoning_effort: put it into extra={...}, as the client calls it")
    chosen = {name: getattr(options, name) for name in _SAME}
    found: dict[str, Any] = {name: value for name, value in chosen.items() if value not in (None, "")}
    if options.stop:
        found["stop"] = list(options.stop)
    if options.tools:
        found["tools"] = list(map(_their_tool, options.tools))
    if options.tool_choice in ("auto", "none", "required"):
        found["tool_choice"] = options.tool_choice
    elif options.tool_choice:
        found["tool_choice"] = {"mode": "required", "required_function_name": options.tool_choice}
    if options.parallel_tool_calls is not None:
        found["allow_multiple_tool_calls"] = options.parallel_tool_calls
    shape = options.output_schema
    if shape is not None:
        found |= options_to_wire(ChatOptions(output_schema=shape))
    rest = dict(options.extra)
    held = rest.pop("previous_response_id", None) or rest.pop("conversation", None)
    return {**found, **({"conversation_id": held} if held else {}), **rest}


def declared(tools: Any) -> tuple[DeclaredTool, ...]:
    """Return the declarations of tools: functions, and what a provider knows."""
    known: list[Any] = normalize_tools(tools)
    return tuple(_declaration(tool) for tool in known if isinstance(tool, (FunctionTool, Mapping)))


def _declaration(tool: Any) -> DeclaredTool:
    if isinstance(tool, FunctionTool):
        return ToolDeclaration(tool.name, tool.description or "", json.dumps(tool.parameters()))
    function: Mapping[str, Any] = tool.get("function") or {}
    if "name" not in function:
        return ProviderItem(FRAMEWORK, json.dumps(dict(tool), default=str))
    parameters = json.dumps(function.get("parameters") or {})
    return ToolDeclaration(function["name"], function.get("description") or "", parameters, function.get("strict"))


def _their_tool(tool: DeclaredTool) -> FunctionTool | dict[str, Any]:
    if isinstance(tool, ProviderItem):
        return cast("dict[str, Any]", json.loads(tool.json))
    schema = json.loads(tool.parameters or '{"type": "object", "properties": {}}')
    return FunctionTool(name=tool.name, description=tool.description, func=None, input_model=schema)


def _choice(choice: Any) -> str | None:
    if isinstance(choice, Mapping):
        named = cast("Mapping[str, Any]", choice)
        choice = named.get("required_function_name") or named.get("mode")
    return cast("str | None", choice)


def _schema(asked: Any) -> OutputSchema | None:
    if isinstance(asked, type) and issubclass(asked, BaseModel):
        return OutputSchema(asked.__name__, json.dumps(asked.model_json_schema()))
    if not isinstance(asked, Mapping):
        return None
    found = cast("Mapping[str, Any]", asked)
    found = cast("Mapping[str, Any]", found.get("json_schema") or found)
    if "schema" not in found:
        return OutputSchema(str(found.get("title") or "answer"), json.dumps(dict(found)))
    return OutputSchema(str(found.get("name") or "answer"), json.dumps(found["schema"]), found.get("strict"))
