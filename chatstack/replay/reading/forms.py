"""Recorded conversations as ours, from the form that each is written in.

What a recording holds and a request would not (ids, statuses, finish reasons, usage, times) rides along or is passed
over; of what stood beside the messages, instructions and tools are taken. Anthropic's ``system`` is a system message at
the head. The old ``functions`` are tools.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgspec

from chatstack.errors import InputError
from chatstack.providers.anthropic.wire import request_from_wire as anthropic_from_wire
from chatstack.providers.extras import WireObject, as_list, as_object, as_string, encoded, encoded_extra
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.chat_wire import request_from_wire as chat_from_wire
from chatstack.providers.openai.responses_parts import WIRE as RESPONSES
from chatstack.providers.openai.responses_wire import messages_from_wire as responses_from_wire
from chatstack.replay.reading.recordings import Recording
from chatstack.replay.reading.signs import Form
from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem
from chatstack.values.requests import ChatOptions, DeclaredTool, ToolDeclaration

_TEXTS: dict[str, tuple[str, ...]] = {
    "text": ("text",),
    "tool_use": ("id", "name"),
    "tool_result": ("tool_use_id",),
    "input_text": ("text",),
    "output_text": ("text",),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id",),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id",),
}
"""Fields that have to be text, by type: without them calls and results could not be paired, or words would be lost."""


class Conversation(msgspec.Struct, frozen=True):
    """A recorded conversation in our values. ``options`` hold its instructions and tools."""

    messages: tuple[Message, ...]
    options: ChatOptions


def conversation_of(recording: Recording) -> Conversation:
    """The conversation. Raises ``InputError``, naming the place inside, for what is malformed."""
    try:
        return _READERS[recording.form](recording.body)
    except RecursionError as error:
        raise InputError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise InputError("holds half a character (a lone surrogate) where none can be") from error


def _chat(body: WireObject) -> Conversation:
    tools = as_list(body.get("tools") or [], "tools")
    functions = as_list(body.get("functions") or [], "functions")
    tools += [{"type": "function", "function": each} for each in functions]
    request = chat_from_wire({"messages": body["messages"], "tools": tools})
    return Conversation(request.messages, ChatOptions(tools=request.options.tools))


def _anthropic(body: WireObject) -> Conversation:
    _check_items(body["messages"], "messages")
    request = anthropic_from_wire({name: body[name] for name in ("system", "messages", "tools") if name in body})
    return Conversation(request.messages, ChatOptions(tools=request.options.tools))


def _responses(body: WireObject) -> Conversation:
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else as_list(given, "input")
    _check_items(items, "input")
    instructions = as_string(body.get("instructions") or "", "instructions")
    tools = as_list(body.get("tools") or [], "tools")
    declared = tuple(_responses_tool(tool, f"tools[{position}]") for position, tool in enumerate(tools))
    return Conversation(responses_from_wire(items), ChatOptions(instructions=instructions, tools=declared))


_READERS: dict[Form, Callable[[WireObject], Conversation]] = {
    "chat": _chat,
    "messages": _anthropic,
    "responses": _responses,
}


def _check_items(items: object, where: str) -> None:
    for position, each in enumerate(as_list(items, where)):
        _check_texts(each, f"{where}[{position}]", is_message=True)


def _check_texts(value: object, where: str, *, is_message: bool = False) -> None:
    fields = as_object(value, where)
    kind = fields.get("type")
    for name in _TEXTS.get(kind, ()) if isinstance(kind, str) else ():
        as_string(fields.get(name), f"{where}.{name}")
    content = fields.get("content")
    if isinstance(content, list) and (is_message or kind == "tool_result"):
        for position, each in enumerate(cast("list[object]", content)):
            _check_texts(each, f"{where}.content[{position}]")


def _responses_tool(tool: object, where: str) -> DeclaredTool:
    """A function as a declaration, a tool of any other type as an item that goes back as it came."""
    fields = dict(as_object(tool, where))
    if fields.get("type") != "function":
        return ProviderItem(PROVIDER, encoded(fields))
    name = as_string(fields.get("name"), f"{where}.name")
    description, parameters, strict = (fields.get(each) for each in ("description", "parameters", "strict"))
    taken = ("type", "name", "description", "parameters", "strict")
    rest = {name: value for name, value in fields.items() if name not in taken and value is not None}
    return ToolDeclaration(
        name,
        description if isinstance(description, str) else "",
        encoded(cast("object", parameters)) if isinstance(parameters, dict) else "",
        strict if isinstance(strict, bool) else None,
        encoded_extra(rest, RESPONSES),
    )
