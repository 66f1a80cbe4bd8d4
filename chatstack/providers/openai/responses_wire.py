"""The items of OpenAI's Responses API, to and from our messages: pure functions, without the SDK.

An answer is one assistant message: reasoning, texts, calls and server-side items in the order of their items. Fields of
an item beside its text ride along in ``extra_json``, under ``openai-responses``: annotations under their own name, the
fields of the message item around a text (``id``, ``status``, ``phase``) under ``message``. Reasoning keeps its item,
encrypted content included, in ``Reasoning.item_json``; items of other types are ``ProviderItem("openai", ...)``. All of
them go back as they came. Null fields, which dumped objects of the SDK have, are kept in items of other types alone.

The assistant's text goes out in the form of the API's own output items, a message of ``output_text``, also if it came
from elsewhere: servers that implement only the documented form refuse a string. Text that was read from a string is
written as one; ``content: null`` under ``message`` marks it. An item without an ``id`` does not get one. A file's data
is written as a data URL with a name, which the API demands.

A custom tool call keeps its input as a JSON string in ``arguments``: on any other wire it is a call like all others.
An ``async`` call is a ``ProviderItem``, and so is its result, which may come anywhere behind it, or never: no layer
moves it, or answers in its place. A result of no call is one, too.
Fields of other wires are ignored; reasoning and items of other providers, and the reasoning of chat completions, are
left out. So is reasoning behind which its message has no item, as in an answer that was cut off: the API refuses it.
An answer with reasoning or items names its server under ``server``: to others, which have neither, they are not sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from chatstack.errors import InputError
from chatstack.providers.call_ids import CallIds
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
    message_at,
    text_in,
    with_extra,
    without_nulls,
)
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.hosts import is_openai_or_azure
from chatstack.providers.openai.responses_items import (
    CALLS,
    CUSTOM_CALL,
    RESULTS,
    is_async,
    is_late,
    portable,
    with_known_ids,
)
from chatstack.providers.openai.responses_parts import WIRE, content_to_wire, output_from_wire, output_to_wire
from chatstack.values.messages import Message, Role
from chatstack.values.native import server_of
from chatstack.values.parts import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult

_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user"}
_CALL_FIELDS: Mapping[str, str] = {kind: "call_id" for kind in CALLS}
_RESULT_FIELDS: Mapping[str, str] = {kind: "call_id" for kind in RESULTS}
_IDS = re.compile(".{0,64}", re.DOTALL)
"""The ids of calls that OpenAI takes; other servers give longer ones."""
_ANSWERS = ("_output", "_response")
"""Ends of the types of items that answer an item of the model's."""
_SERVER = "server"
"""Field of an answer's ``extra_json`` that names the server it came from. See ``server_of``."""


def messages_to_wire(
    messages: Sequence[Message], declared: Collection[str] | None = None, *, server: str = ""
) -> list[WireObject]:
    """Return the input items of the messages; ``declared`` are the names of the request's tools, if there is one.
    ``server`` is the one that they are for: of answers that another one has, it gets what it can read."""
    items: list[WireObject] = []
    customs: set[str] = set()
    is_strict = is_openai_or_azure(server)
    ids = CallIds(_CALL_FIELDS, _RESULT_FIELDS, allowed=_IDS if is_strict else None, declared=declared)
    is_foreign = False
    for position, message in enumerate(messages):
        where = f"messages[{position}]"
        if message.role == "assistant":
            customs.update(call.id for call in message.calls if _is_custom(call, where))
            ids.begin()
            new = _assistant_items(message, where)
            is_foreign = bool(server) and server_of(message) not in ("", server)
        else:
            new = _other_items(message, customs, where)
        new = portable(new) if is_foreign else with_known_ids(new) if is_strict else new
        for item in new:
            ids.rename(item)
        items.extend(new)
    return items


def messages_from_wire(items: Sequence[object]) -> tuple[Message, ...]:
    """Return our messages for input items; the model's items in a row are one message. ``InputError`` names the
    place."""
    return tuple(message for message, _ in messages_in_place(items))


def messages_in_place(items: Sequence[object]) -> Iterator[tuple[Message, slice]]:
    """Yield our messages for input items, each with the place of its items."""
    names: dict[str, str] = {}
    of_async: set[str] = set()
    output: list[Mapping[str, object]] = []

    def closed(end: int) -> Iterator[tuple[Message, slice]]:
        if output:
            message = message_from_wire(output)
            names.update((call.id, call.name) for call in message.calls)
            yield message, slice(end - len(output), end)
            output.clear()

    for position, each in enumerate(items):
        where = f"input[{position}]"
        item = as_object(each, where)
        kind, role = item_type(item), item.get("role", "assistant")
        if kind == "message" and not isinstance(role, str):
            raise InputError(f"{where}.role: expected text, got {type(role).__name__}")
        here = slice(position, position + 1)
        if kind == "message" and role in _ROLES:
            yield from closed(position)
            yield _input_message(without_nulls(item), where), here
        elif kind in RESULTS and not is_late(item, of_async):
            yield from closed(position)
            yield message_at(where, "tool", (_result_from_item(item, names, where),)), here
        elif isinstance(kind, str) and kind.endswith(_ANSWERS):
            yield from closed(position)
            yield Message("tool", (ProviderItem(PROVIDER, encoded(dict(item))),)), here
        else:
            output.append(item)
            of_async.update([text_in(item, "call_id")] if is_async(item) else ())
    yield from closed(len(items))


def message_from_wire(output: Iterable[object]) -> Message:
    """Return the assistant message for the output items of a response."""
    parts: list[Part] = []
    for position, each in enumerate(output):
        where = f"output[{position}]"
        item = as_object(each, where)
        kind = item_type(item)
        if kind == "message":
            parts.extend(_texts_of(without_nulls(item), where))
        elif kind == "reasoning":
            parts.append(Reasoning(_thought(item), encoded(without_nulls(item)), PROVIDER))
        elif kind in CALLS and not is_async(item):
            parts.append(_call_from_item(item, where))
        else:
            parts.append(ProviderItem(PROVIDER, encoded({**item, "type": kind})))  # nulls too: the API demands some
    return Message("assistant", tuple(parts))


def unheld(items: list[WireObject]) -> list[WireObject]:
    """Return the input for a conversation at the server, which holds what it has answered, and what that answered:
    nothing but the results of its own calls, if the last items are such. It refuses an item whose id it has."""
    end = 1 + max((position for position, item in enumerate(items) if "id" in item), default=-1)
    is_answered = 0 < end < len(items) and str(items[end].get("type")).endswith(_ANSWERS)
    return items[end:] if is_answered else items


def with_server(message: Message, server: str) -> Message:
    """Return an answer with the server that it came from, if it holds what nobody else can read: reasoning, and items
    that stand for what lies there."""
    if not any(isinstance(part, Reasoning | ProviderItem) for part in message.parts):
        return message
    return replace(message, extra_json=encoded_extra({_SERVER: server}, WIRE))


def item_type(item: Mapping[str, object]) -> object:
    """Return the type of an item. One without, or whose type is null, is a message, or, if it has only an ``id``, a
    reference to an item that the server has."""
    kind = item.get("type")
    if kind is None:
        return "item_reference" if "id" in item and not item.keys() & {"role", "content"} else "message"
    return kind


def _assistant_items(message: Message, where: str) -> list[WireObject]:
    items: list[WireObject] = []
    for part in message.parts:
        if isinstance(part, Text):
            _add_text(items, part, where)
        elif isinstance(part, ToolCall):
            items.append(_call_to_item(part, where))
        elif isinstance(part, Reasoning):
            item = decoded_object(part.item_json, where) if part.provider == PROVIDER and part.item_json else {}
            if "type" in item:  # without one it came from chat completions
                items.append(item)
        elif isinstance(part, ProviderItem):
            if part.provider == PROVIDER:
                item = decoded_object(part.json, where)
                # From chat completions it comes without the message around it.
                is_refusal = item.get("type") == "refusal"
                _add_item(items, {"type": "message", "role": "assistant", "content": [item]} if is_refusal else item)
        else:
            raise InputError(f"{where}: a {type(part).__name__} cannot be part of an assistant message")
    while items and items[-1].get("type") == "reasoning":  # cut off: the API refuses it without the item behind it
        items.pop()
    return items


def _add_text(items: list[WireObject], text: Text, where: str) -> None:
    """Add a text as a message item."""
    extra = extra_fields(text.extra_json, WIRE, where)
    around = dict(as_object(extra.pop("message", {}), f"{where}: message"))
    if "content" in around:
        items.append({"role": "assistant", **around, "content": text.text})
        return
    part: WireObject = {"type": "output_text", "text": text.text, "annotations": [], **extra}
    _add_item(items, {"type": "message", "role": "assistant", **around, "content": [part]})


def _add_item(items: list[WireObject], item: WireObject) -> None:
    """Add an item; pieces of one message are joined again, as the API refuses two items of one id."""
    last = items[-1] if items else {}
    before, more = last.get("content"), item.get("content")
    is_one = item.get("type") == "message" and item.get("id") and last.get("id") == item["id"]
    if is_one and isinstance(before, list) and isinstance(more, list):
        last["content"] = [*cast("list[object]", before), *cast("list[object]", more)]
    else:
        items.append(item)


def _texts_of(item: Mapping[str, object], where: str) -> list[Part]:
    """Return the texts of an assistant's message item; an item with a refusal is kept whole."""
    content = item.get("content")
    if isinstance(content, str):
        around = {name: value for name, value in item.items() if name != "role"}
        return [Text(content, encoded_extra({"message": {**around, "content": None}}, WIRE))]
    around = {name: value for name, value in item.items() if name not in ("type", "role", "content")}
    kept: WireObject = {"message": around} if around else {}
    parts: list[Part] = []
    for position, each in enumerate(as_list(content, f"{where}.content")):
        fields = as_object(each, f"{where}.content[{position}]")
        if fields.get("type") != "output_text":
            parts.append(ProviderItem(PROVIDER, encoded({**item, "content": [dict(fields)]})))
            continue
        extra = {name: value for name, value in fields.items() if name not in ("type", "text") and value}
        text = as_string(fields.get("text"), f"{where}.content[{position}].text")
        parts.append(Text(text, encoded_extra({**kept, **extra}, WIRE)))
    return parts


def _is_custom(call: ToolCall, where: str) -> bool:
    return extra_fields(call.extra_json, WIRE, where).get("type") == CUSTOM_CALL


def _call_to_item(call: ToolCall, where: str) -> WireObject:
    written: WireObject
    if _is_custom(call, where):
        written = {"type": CUSTOM_CALL, "call_id": call.id, "name": call.name}
        written["input"] = decoded_text(call.arguments)
    else:
        written = {"type": "function_call", "call_id": call.id, "name": call.name}
        written["arguments"] = json_arguments(call.arguments)
    return with_extra(written, call.extra_json, WIRE, where)


def _call_from_item(item: Mapping[str, object], where: str) -> ToolCall:
    call_id = as_string(item.get("call_id"), f"{where}.call_id")
    name = as_string(item.get("name"), f"{where}.name")
    extra = {key: value for key, value in without_nulls(item).items() if key not in ("type", "call_id", "name")}
    if item.get("type") == CUSTOM_CALL:
        text = as_string(extra.pop("input", ""), f"{where}.input")
        return ToolCall(call_id, name, encoded(text), encoded_extra({"type": CUSTOM_CALL, **extra}, WIRE))
    arguments = as_string(extra.pop("arguments", ""), f"{where}.arguments")
    return ToolCall(call_id, name, arguments or "{}", encoded_extra(extra, WIRE))


def _other_items(message: Message, customs: set[str], where: str) -> list[WireObject]:
    items: list[WireObject] = []
    content: list[Text | Image | File | ProviderItem] = []
    for part in message.parts:
        if isinstance(part, ToolResult):
            items.append(_result_to_item(part, part.call_id in customs, where))
        elif isinstance(part, ProviderItem) and part.provider == PROVIDER and not _is_content(part, where):
            items.append(decoded_object(part.json, where))
        elif isinstance(part, (Text, Image, File, ProviderItem)):
            content.append(part)
        else:
            raise InputError(f"{where}: a {type(part).__name__} cannot be part of a {message.role} message")
    if content or not items:
        extra = extra_fields(message.extra_json, WIRE, where)
        role = extra.get("role", "user" if message.role == "tool" else message.role)
        item: WireObject = {"role": role, "content": content_to_wire(content, where) or ""}
        items.append(with_extra(item, message.extra_json, WIRE, where))
    return items


def _is_content(item: ProviderItem, where: str) -> bool:
    return str(decoded_object(item.json, where).get("type", "")).startswith("input_")


def _input_message(item: Mapping[str, object], where: str) -> Message:
    role = str(item.get("role"))
    written: WireObject = {"content": None} if role == "developer" else {"role": role, "content": None}
    content = output_from_wire(item.get("content"), f"{where}.content")
    parts = (Text(content),) if isinstance(content, str) else content
    return message_at(where, _ROLES[role], parts, extra_json_of(item, written, WIRE))


def _result_to_item(result: ToolResult, is_custom: bool, where: str) -> WireObject:
    kind = "custom_tool_call_output" if is_custom else "function_call_output"
    written: WireObject = {"type": kind, "call_id": result.call_id, "output": output_to_wire(result.output, where)}
    return with_extra(written, result.extra_json, WIRE, where)


def _result_from_item(item: Mapping[str, object], names: Mapping[str, str], where: str) -> ToolResult:
    call_id = as_string(item.get("call_id"), f"{where}.call_id")
    extra = {name: value for name, value in without_nulls(item).items() if name not in ("type", "call_id", "output")}
    return ToolResult(
        call_id,
        names.get(call_id, ""),
        output_from_wire(item.get("output"), f"{where}.output"),
        extra_json=encoded_extra(extra, WIRE),
    )


def _thought(item: Mapping[str, object]) -> str:
    """Return the summary of a reasoning item, or, from servers that show it, the reasoning itself."""
    for name in ("summary", "content"):
        pieces = [as_object(each, f"reasoning.{name}").get("text") for each in as_list(item.get(name) or [], name)]
        if pieces:
            return "\n\n".join(piece for piece in pieces if isinstance(piece, str))
    return ""
