"""Options of a request and tool declarations, to and from the body of an OpenAI chat completion. Pure functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, cast

from msgspec.structs import replace

from chatstack.providers.extras import (
    WireObject,
    as_list,
    as_object,
    as_string,
    decoded_object,
    encoded,
    extra_json_of,
    field_of,
    with_extra,
    with_options_extra,
    without_nulls,
)
from chatstack.providers.openai.chat_parts import PROVIDER, WIRE
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import ChatOptions, DeclaredTool, OutputSchema, ToolDeclaration, declared_names

MaxTokensField: TypeAlias = Literal["max_completion_tokens", "max_tokens"]
"""The server's name for the limit on output tokens: OpenAI uses the first, most older compatible servers the second."""

MODES = frozenset({"auto", "none", "required"})
"""Values of ``tool_choice`` that name no tool."""
_PLAIN: dict[str, type | tuple[type, ...]] = {
    "model": str,
    "temperature": (int, float),
    "top_p": (int, float),
    "seed": int,
    "reasoning_effort": str,
}  # fmt: skip
_READ = {**_PLAIN, "parallel_tool_calls": bool}
_TOOLS = frozenset({"tools", "functions"})
"""Fields of ``extra`` that bring tools."""


def options_to_wire(options: ChatOptions, *, max_tokens_field: MaxTokensField = "max_completion_tokens") -> WireObject:
    """Return the fields of the body for the options; ``extra`` wins over ours, save over a choice of no tools.

    A limit on output tokens in ``extra``, in either spelling, is the only one sent: so a body read with ``max_tokens``
    goes out with ``max_tokens``. Where no tools are sent, their choice is not: the API refuses it.
    """
    written = without_nulls({name: getattr(options, name) for name in _PLAIN})
    if options.max_tokens is not None and not {"max_tokens", "max_completion_tokens"} & options.extra.keys():
        written[max_tokens_field] = options.max_tokens
    tools = tools_to_wire(options.tools)
    if tools:
        written["tools"] = tools
    if tools or _TOOLS & options.extra.keys():
        written |= choice_to_wire(options, _by_name(options))
    if options.stop:
        written["stop"] = list(options.stop)
    if options.output_schema is not None:
        written["response_format"] = {"type": "json_schema", "json_schema": schema_to_wire(options.output_schema)}
    return with_options_extra(written, options)


def options_from_wire(body: Mapping[str, object]) -> ChatOptions:
    """Return the options: known fields, and in ``extra`` all others, with every spelling that we would not write."""
    fields: dict[str, object] = {}
    for name, kinds in _READ.items():
        value = body.get(name)
        if isinstance(value, kinds) and (kinds is bool or not isinstance(value, bool)):
            fields[name] = value
    bound = body.get("max_completion_tokens", body.get("max_tokens"))
    if isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0:
        fields["max_tokens"] = bound
    if isinstance(body.get("tools"), list):
        fields["tools"] = tools_from_wire(body["tools"])
    fields["tool_choice"] = _choice_from_wire(body.get("tool_choice"))
    fields["stop"] = _stop_from_wire(body.get("stop"))
    fields["output_schema"] = _schema_from_wire(body.get("response_format"))
    options = ChatOptions().but(**fields)
    written = {**choice_to_wire(options, _by_name(options)), **options_to_wire(options)}
    return options.but(extra={name: value for name, value in body.items() if written.get(name, _ABSENT) != value})


_ABSENT = object()


def tools_to_wire(tools: tuple[DeclaredTool, ...]) -> list[WireObject]:
    """Return declarations as functions, items of OpenAI's as they are, and none of other providers."""
    found: list[WireObject] = []
    for tool in tools:
        if isinstance(tool, ToolDeclaration):
            found.append(_tool_to_wire(tool))
        elif tool.provider == PROVIDER:
            found.append(decoded_object(tool.json, "tools"))
    return found


def tools_known(tools: tuple[DeclaredTool, ...]) -> tuple[DeclaredTool, ...]:
    """Return the tools that OpenAI's own chat completions know. Those of Responses (``web_search``) they refuse, while
    compatible servers have such tools, too."""
    return tuple(each for each in tools if isinstance(each, ToolDeclaration) or is_of_chat(each))


def is_of_chat(item: ProviderItem) -> bool:
    """Return True for a tool whose fields stand under the name of its type, as chat completions have it."""
    fields = decoded_object(item.json, "tools")
    return isinstance(fields.get(str(fields.get("type"))), Mapping)


def tools_from_wire(tools: object) -> tuple[DeclaredTool, ...]:
    """Return functions as declarations; tools of any other type as items that go back as they came."""
    return tools_read(tools, _tool_from_wire)


def tools_read(
    tools: object, function: Callable[[Mapping[str, object], str], ToolDeclaration]
) -> tuple[DeclaredTool, ...]:
    """Return the tools of a body of either API: ``function`` reads one at a place."""
    found: list[DeclaredTool] = []
    for position, tool in enumerate(as_list(tools, "tools")):
        where = f"tools[{position}]"
        fields = as_object(tool, where)
        is_function = fields.get("type") == "function"
        found.append(function(fields, where) if is_function else ProviderItem(PROVIDER, encoded(dict(fields))))
    return tuple(found)


def declaration_in(fields: Mapping[str, object], where: str) -> ToolDeclaration:
    """Return the declaration that these fields of a function are, in the spelling of both APIs."""
    description, parameters, strict = (fields.get(each) for each in ("description", "parameters", "strict"))
    return ToolDeclaration(
        as_string(fields.get("name"), f"{where}.name"),
        description if isinstance(description, str) else "",
        encoded(cast("object", parameters)) if isinstance(parameters, Mapping) else "",
        strict if isinstance(strict, bool) else None,
    )


def _tool_to_wire(tool: ToolDeclaration) -> WireObject:
    function: WireObject = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    where = f"tool {tool.name!r}"
    if tool.parameters:
        function["parameters"] = decoded_object(tool.parameters, f"{where}: parameters")
    if tool.strict is not None:
        function["strict"] = tool.strict
    return with_extra({"type": "function", "function": function}, tool.extra_json, WIRE, where)


def _tool_from_wire(fields: Mapping[str, object], where: str) -> ToolDeclaration:
    where = f"{where}.function"
    tool = declaration_in(as_object(fields.get("function"), where), where)
    return replace(tool, extra_json=extra_json_of(fields, _tool_to_wire(tool), WIRE))


def _by_name(options: ChatOptions) -> WireObject:
    kind = chosen_type(options)
    return {"type": kind, kind: {"name": options.tool_choice}}


def chosen_type(options: ChatOptions) -> str:
    """Return the type of the tool that is chosen by its name: ``custom`` if its input is free text, else
    ``function``."""
    items = [each for each in options.tools if isinstance(each, ProviderItem) and each.provider == PROVIDER]
    chosen = [each for each in items if options.tool_choice in declared_names((each,))]
    types = [decoded_object(each.json, "tools").get("type") for each in chosen]
    return "custom" if "custom" in types else "function"


def choice_to_wire(options: ChatOptions, by_name: WireObject) -> WireObject:
    """Return ``tool_choice`` and ``parallel_tool_calls``, where they are given; ``by_name`` is how the API is told the
    choice of one tool."""
    choice = options.tool_choice if options.tool_choice in (None, *MODES) else by_name
    return without_nulls({"tool_choice": choice, "parallel_tool_calls": options.parallel_tool_calls})


def _choice_from_wire(choice: object) -> str | None:
    if isinstance(choice, str):
        return choice if choice in MODES else None
    name = field_of(field_of(choice, "function"), "name")
    return name if isinstance(name, str) else None


def _stop_from_wire(stop: object) -> tuple[str, ...]:
    if isinstance(stop, str):
        return (stop,)
    if isinstance(stop, list):
        return tuple(each for each in cast("list[object]", stop) if isinstance(each, str))
    return ()


def schema_to_wire(schema: OutputSchema) -> WireObject:
    """Return the fields by which both APIs are told the shape of the answer."""
    written: WireObject = {"name": schema.name, "schema": decoded_object(schema.schema, "output_schema")}
    if schema.description:
        written["description"] = schema.description
    if schema.strict is not None:
        written["strict"] = schema.strict
    return written


def _schema_from_wire(response_format: object) -> OutputSchema | None:
    fields = field_of(response_format, "json_schema")
    name, schema, strict, description = (field_of(fields, each) for each in ("name", "schema", "strict", "description"))
    if not isinstance(name, str) or not isinstance(schema, Mapping):
        return None
    return OutputSchema(
        name,
        encoded(cast("Mapping[str, object]", schema)),
        strict if isinstance(strict, bool) else None,
        description if isinstance(description, str) else "",
    )
