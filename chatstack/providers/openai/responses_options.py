"""The body of a Responses request, from our request. Pure functions."""

from __future__ import annotations

from chatstack.errors import InputError
from chatstack.providers.extras import WireObject, decoded_object, with_extra
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.responses_parts import WIRE
from chatstack.providers.openai.responses_wire import messages_to_wire
from chatstack.values.native import NativeCompaction, NativeEdit
from chatstack.values.requests import ChatOptions, ChatRequest, DeclaredTool, OutputSchema, ToolDeclaration

_MODES = frozenset({"auto", "none", "required"})
_PLAIN = ("model", "parallel_tool_calls", "temperature", "top_p")


_FIRST_COMPACTION = 1_000
"""Lowest threshold of a compaction, in tokens, by OpenAI's reference."""


def problem_with(edit: NativeEdit) -> str:
    """Return what the API would refuse of an edit, in words; "" if it takes it."""
    if not isinstance(edit, NativeCompaction):
        return "OpenAI cannot clear tool results"
    if edit.trigger_tokens < _FIRST_COMPACTION:
        return f"OpenAI compacts from {_FIRST_COMPACTION:,} tokens on, not from {edit.trigger_tokens:,}"
    return ""


def request_to_wire(request: ChatRequest, *, model: str = "") -> WireObject:
    """Return the JSON body of a request; ``model`` is for options that name none, and ``extra`` wins.

    Raises ``InputError`` for options without a field in this API: ``stop`` and ``seed``.
    """
    options = request.options
    body: WireObject = {"model": model} if model else {}
    body["input"] = messages_to_wire(request.messages)
    body.update(_options_to_wire(options))
    body.pop("stream", None)
    if request.stream:
        body["stream"] = True
    return body


def _options_to_wire(options: ChatOptions) -> WireObject:
    for name in ("stop", "seed"):
        if getattr(options, name) not in (None, ()):
            raise InputError(f"options: Responses has no {name!r}; leave it out, or use chat completions")
    written: WireObject = {}
    for name in _PLAIN:
        value = getattr(options, name)
        if value is not None:
            written[name] = value
    if options.instructions:
        written["instructions"] = options.instructions
    if options.max_tokens is not None:
        written["max_output_tokens"] = options.max_tokens
    if options.reasoning_effort is not None:
        written["reasoning"] = {"effort": options.reasoning_effort}
    if options.tools:
        written["tools"] = tools_to_wire(options.tools)
    if options.tool_choice is not None:
        by_name = {"type": "function", "name": options.tool_choice}
        written["tool_choice"] = options.tool_choice if options.tool_choice in _MODES else by_name
    if options.output_schema is not None:
        written["text"] = {"format": _schema_to_wire(options.output_schema)}
    compactions = [each for each in options.native_edits if isinstance(each, NativeCompaction)]
    if compactions:
        written["context_management"] = [
            {"type": "compaction", "compact_threshold": each.trigger_tokens} for each in compactions
        ]
    return {**written, **options.extra}


def tools_to_wire(tools: tuple[DeclaredTool, ...]) -> list[WireObject]:
    """Return declarations as functions, items of OpenAI's as they are, and none of other providers.

    A function without ``strict`` is strict to this API, and not strict to chat completions. A declaration without it
    means the same on both, and is written as not strict.
    """
    found: list[WireObject] = []
    for tool in tools:
        if isinstance(tool, ToolDeclaration):
            found.append(_tool_to_wire(tool))
        elif tool.provider == PROVIDER:
            found.append(decoded_object(tool.json, "tools"))
    return found


def _tool_to_wire(tool: ToolDeclaration) -> WireObject:
    written: WireObject = {"type": "function", "name": tool.name, "strict": bool(tool.strict)}
    if tool.description:
        written["description"] = tool.description
    where = f"tool {tool.name!r}"
    written["parameters"] = decoded_object(tool.parameters, f"{where}: parameters") if tool.parameters else None
    return with_extra(written, tool.extra_json, WIRE, where)


def _schema_to_wire(schema: OutputSchema) -> WireObject:
    written: WireObject = {
        "type": "json_schema",
        "name": schema.name,
        "schema": decoded_object(schema.schema, "output_schema"),
    }
    if schema.description:
        written["description"] = schema.description
    if schema.strict is not None:
        written["strict"] = schema.strict
    return written
