"""The body of a Responses request, to and from our request. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec.structs import replace

from chatstack.errors import InputError
from chatstack.providers.extras import (
    WireObject,
    as_list,
    decoded_object,
    encoded_extra,
    field_of,
    with_extra,
    with_options_extra,
    without_nulls,
)
from chatstack.providers.openai.chat_options import (
    MODES,
    choice_to_wire,
    chosen_type,
    declaration_in,
    is_of_chat,
    schema_to_wire,
    tools_read,
)
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.responses_parts import WIRE
from chatstack.providers.openai.responses_wire import messages_from_wire, messages_to_wire, unheld
from chatstack.values.native import NativeCompaction, NativeEdit
from chatstack.values.requests import (
    ChatOptions,
    ChatRequest,
    DeclaredTool,
    ToolDeclaration,
    declared_names,
)

_PLAIN = ("model", "temperature", "top_p")
_TOOLS = frozenset({"tools", "prompt"})
"""Fields of ``extra`` that bring tools: a stored prompt may have some."""

_FIRST_COMPACTION = 1_000
"""Lowest threshold of a compaction, in tokens, by OpenAI's reference."""


def problem_with(edit: NativeEdit) -> str:
    """Return what the API would refuse of an edit, in words; "" if it takes it."""
    if not isinstance(edit, NativeCompaction):
        return "OpenAI cannot clear tool results"
    if edit.trigger_tokens < _FIRST_COMPACTION:
        return f"OpenAI compacts from {_FIRST_COMPACTION:,} tokens on, not from {edit.trigger_tokens:,}"
    return ""


def request_to_wire(request: ChatRequest, *, model: str = "", server: str = "") -> WireObject:
    """Return the JSON body of a request; ``model`` is for options that name none, and ``extra`` wins, save
    over a choice of no tools. Results go alone into a ``conversation`` that has their calls. ``server`` is the one that
    is asked.

    Raises ``InputError`` for options without a field in this API: ``stop`` and ``seed``.
    """
    options = request.options
    body: WireObject = {"model": model} if model else {}
    items = messages_to_wire(request.messages, declared_names(options.tools), server=server)
    if options.extra.get("store") is False:
        items = [item for item in items if not _is_reference(item)]
    body["input"] = unheld(items) if options.extra.get("conversation") else items
    body.update(_options_to_wire(options))
    body.pop("stream", None)
    if request.stream:
        body["stream"] = True
    return body


def _is_reference(item: WireObject) -> bool:
    """Return True for reasoning that is nothing but an id. A server that stores nothing does not find it, and refuses
    the request."""
    return item.get("type") == "reasoning" and not (item.get("encrypted_content") or item.get("content"))


def request_from_wire(body: Mapping[str, object]) -> ChatRequest:
    """Return the request in a JSON body; fields without a counterpart here, in any spelling that we would not write, go
    into ``options.extra``. Raises ``InputError``, naming the place, for malformed data."""
    given = body.get("input", "")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else as_list(given, "input")
    fields: dict[str, object] = {"tools": tools_from_wire(body.get("tools") or [])}
    for name, kind in _KINDS.items():
        value = body.get(name)
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            fields[name] = value
    bound = body.get("max_output_tokens")
    if isinstance(bound, int) and not isinstance(bound, bool) and bound >= 0:
        fields["max_tokens"] = bound
    effort, choice = field_of(body.get("reasoning"), "effort"), body.get("tool_choice")
    if isinstance(effort, str):
        fields["reasoning_effort"] = effort
    named = cast("WireObject", choice).get("name") if isinstance(choice, Mapping) else choice
    if isinstance(named, str) and (isinstance(choice, Mapping) or named in MODES):
        fields["tool_choice"] = named
    options = ChatOptions().but(**fields)
    written = {
        "stream": False,
        **choice_to_wire(options, _by_name(options)),
        **_options_to_wire(options),
        "input": given,
    }
    # A tool that we would write otherwise than it came still is the same tool.
    written["tools"] = body.get("tools")
    extra = {name: value for name, value in body.items() if name != "stream" and written.get(name, _ABSENT) != value}
    return ChatRequest(messages_from_wire(items), options.but(extra=extra), None, body.get("stream") is True)


_ABSENT = object()
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "model": str,
    "instructions": str,
    "parallel_tool_calls": bool,
    "temperature": (int, float),
    "top_p": (int, float),
}


def _options_to_wire(options: ChatOptions) -> WireObject:
    for name in ("stop", "seed"):
        if getattr(options, name) not in (None, ()):
            raise InputError(f"options: Responses has no {name!r}; leave it out, or use chat completions")
    written = without_nulls({name: getattr(options, name) for name in _PLAIN})
    if options.instructions:
        written["instructions"] = options.instructions
    if options.max_tokens is not None:
        written["max_output_tokens"] = options.max_tokens
    if options.reasoning_effort is not None:
        written["reasoning"] = {"effort": options.reasoning_effort}
    tools = tools_to_wire(options.tools)
    if tools:
        written["tools"] = tools
    if tools or _TOOLS & options.extra.keys():
        written |= choice_to_wire(options, _by_name(options))
    if options.output_schema is not None:
        written["text"] = {"format": {"type": "json_schema", **schema_to_wire(options.output_schema)}}
    compactions = [each for each in options.native_edits if isinstance(each, NativeCompaction)]
    if compactions:
        written["context_management"] = [
            {"type": "compaction", "compact_threshold": each.trigger_tokens} for each in compactions
        ]
    return with_options_extra(written, options)


def _by_name(options: ChatOptions) -> WireObject:
    return {"type": chosen_type(options), "name": options.tool_choice}


def tools_to_wire(tools: tuple[DeclaredTool, ...]) -> list[WireObject]:
    """Return declarations as functions, items of OpenAI's as they are, and none of other providers or of chat
    completions.

    A function without ``strict`` is strict to this API, and not strict to chat completions. A declaration without it
    means the same on both, and is written as not strict.
    """
    found: list[WireObject] = []
    for tool in tools:
        if isinstance(tool, ToolDeclaration):
            found.append(_tool_to_wire(tool))
        elif tool.provider == PROVIDER and not is_of_chat(tool):
            found.append(decoded_object(tool.json, "tools"))
    return found


def tools_from_wire(tools: object) -> tuple[DeclaredTool, ...]:
    """Return functions as declarations; tools of any other type as items that go back as they came."""
    return tools_read(tools, _tool_from_wire)


def _tool_from_wire(fields: Mapping[str, object], where: str) -> ToolDeclaration:
    taken = ("type", "name", "description", "parameters", "strict")
    rest = {name: value for name, value in fields.items() if name not in taken and value is not None}
    return replace(declaration_in(fields, where), extra_json=encoded_extra(rest, WIRE))


def _tool_to_wire(tool: ToolDeclaration) -> WireObject:
    written: WireObject = {"type": "function", "name": tool.name, "strict": bool(tool.strict)}
    if tool.description:
        written["description"] = tool.description
    where = f"tool {tool.name!r}"
    written["parameters"] = decoded_object(tool.parameters, f"{where}: parameters") if tool.parameters else None
    return with_extra(written, tool.extra_json, WIRE, where)
