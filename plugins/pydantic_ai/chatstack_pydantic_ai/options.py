"""Options of a call: Pydantic AI's settings and parameters as ours, and ours as theirs."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence, Set
from typing import Any, cast

from pydantic_ai.messages import InstructionPart, ModelMessage
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition

from chatstack import ChatOptions, InputError, OutputSchema, ToolDeclaration

_SAME = ("temperature", "top_p", "seed", "max_tokens", "parallel_tool_calls")
"""Names that are the same on both sides."""
_SENT = ("frequency_penalty", "presence_penalty", "logit_bias", "top_k", "service_tier")
"""Settings that go into the request under their names. An API that has none of that name refuses it."""
_THEIRS = ("thinking", "cache", "request_timeout", "first_event_timeout", "framing_announcement")
"""Settings that Pydantic AI itself carries out, or leaves out where a model's profile says so."""
_EFFORTS: dict[object, Any] = {True: "medium", False: "none"}


def declared(parameters: ModelRequestParameters) -> tuple[ToolDeclaration, ...]:
    """Return our declarations of the tools of a call, those for its output included."""
    return tuple(
        ToolDeclaration(tool.name, tool.description or "", json.dumps(tool.parameters_json_schema), tool.strict)
        for tool in (*parameters.function_tools, *parameters.output_tools)
    )


def weighed(model: Model, messages: Sequence[ModelMessage], parameters: ModelRequestParameters) -> ChatOptions:
    """Return what takes room in a call, as ``model`` has prepared its parameters: instructions, tools, a schema."""
    schema = parameters.output_object if parameters.output_mode == "native" else None
    parts = model._get_instruction_parts(messages, parameters)  # pyright: ignore[reportPrivateUsage]
    return ChatOptions(
        instructions=InstructionPart.join(parts or []) or "",
        tools=declared(parameters),
        output_schema=None if schema is None else _schema(schema),
    )


def options_from(
    model: Model, messages: Sequence[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
) -> ChatOptions:
    """Return our options for a call as ``model`` has prepared it. Warns of settings that have no place in a request.

    Raises ``InputError`` for a tool that runs at their provider.
    """
    if parameters.native_tools:
        kinds = ", ".join(type(tool).__name__ for tool in parameters.native_tools)
        raise InputError(
            f"ChatStackModel: {kinds}: tools that run at a provider are declared in the stack's own options"
        )
    given = {name: value for name, value in cast("dict[str, Any]", settings or {}).items() if value is not None}
    left = given.keys() - {*_SAME, *_SENT, *_THEIRS, "tool_choice", "stop_sequences", "extra_body"}
    if left:
        told = f"ChatStackModel: {', '.join(sorted(left))}: no place in a request of a stack's, and left out"
        warnings.warn(told, UserWarning, stacklevel=2)
    options = weighed(model, messages, parameters)
    choice, names = _chosen(given.get("tool_choice"), parameters)
    tools, thinking = cast("tuple[ToolDeclaration, ...]", options.tools), parameters.thinking
    return options.but(
        **{name: given[name] for name in _SAME if name in given},
        tools=tuple(each for each in tools if names is None or each.name in names),
        tool_choice=choice if tools else None,
        stop=tuple(given.get("stop_sequences", ())),
        reasoning_effort=_EFFORTS.get(thinking, thinking),
        extra={**{name: given[name] for name in _SENT if name in given}, **given.get("extra_body", {})},
    )


def _chosen(given: Any, parameters: ModelRequestParameters) -> tuple[str | None, Set[str] | None]:
    """Return the choice of tools, and the names of those that are left to choose from; None for all of them."""
    output = {tool.name for tool in parameters.output_tools}
    unforced = "auto" if parameters.allow_text_output else "required"
    if isinstance(given, ToolOrOutput):
        return unforced, output.union(given.function_tools)
    if given in ("none", []):
        return (unforced, output) if output else ("none", None)
    if isinstance(given, list):
        (first, *others) = cast("list[str]", given)
        return ("required", {first, *others}) if others else (first, None)
    if given == "required":
        return given, {tool.name for tool in parameters.function_tools}
    return (given if parameters.allow_text_output else "required"), None


def settings_of(options: ChatOptions) -> ModelSettings:
    """Return Pydantic AI's settings for our options. Raises ``InputError`` for another model than the client's."""
    if options.model is not None:
        raise InputError(f"PydanticAIClient: model={options.model!r}: the model is the client's own")
    settings: dict[str, Any] = {name: getattr(options, name) for name in _SAME}
    settings["stop_sequences"] = list(options.stop) or None
    settings["tool_choice"] = _choice(options)
    settings["thinking"] = False if options.reasoning_effort == "none" else options.reasoning_effort
    settings["extra_body"] = dict(options.extra) or None
    return cast("ModelSettings", {name: value for name, value in settings.items() if value is not None})


def parameters_of(options: ChatOptions) -> ModelRequestParameters:
    """Return the parameters of a request to a model of theirs. Raises ``InputError`` for a provider's own tool."""
    tools: list[ToolDefinition] = []
    for tool in options.tools:
        if not isinstance(tool, ToolDeclaration):
            raise InputError(f"PydanticAIClient: {tool.provider}: a tool of a provider's own cannot be declared there")
        schema = json.loads(tool.parameters or '{"type": "object", "properties": {}}')
        described = tool.description or None
        tools.append(
            ToolDefinition(name=tool.name, parameters_json_schema=schema, description=described, strict=tool.strict)
        )
    shape = options.output_schema
    if shape is None:
        return ModelRequestParameters(function_tools=tools)
    wanted = OutputObjectDefinition(
        json_schema=json.loads(shape.schema),
        name=shape.name,
        description=shape.description or None,
        strict=shape.strict,
    )
    return ModelRequestParameters(function_tools=tools, output_mode="native", output_object=wanted)


def _choice(options: ChatOptions) -> str | list[str] | None:
    choice = options.tool_choice
    return choice if choice in (None, "auto", "none", "required") else [choice]


def _schema(wanted: OutputObjectDefinition) -> OutputSchema:
    return OutputSchema(
        wanted.name or "output", json.dumps(wanted.json_schema), wanted.strict, wanted.description or ""
    )
