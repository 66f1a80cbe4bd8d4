"""Anthropic's content blocks and our parts, both ways. Pure functions; the SDK is not imported.

A field that exists here is mapped to it. Other fields (``cache_control``, ``citations``) ride under ``anthropic`` in
the part's ``extra_json``; its entries for other wires are ignored. A block that only Anthropic understands becomes a
``ProviderItem`` whole. Equivalent, hence not told apart: a field that is null and one that is absent; ``is_error:
false`` and none; a blank tool result and one without content; a citation's ``file_id`` and none. Blocks without visible
text are left out: the API accepts none.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from chatstack.errors import InputError
from chatstack.providers.call_ids import CallIds
from chatstack.providers.extras import (
    WireObject,
    as_list,
    as_object,
    call_input,
    decoded_object,
    encoded,
    encoded_extra,
    text_in,
    with_extra,
    without_nulls,
)
from chatstack.values.data_urls import split_data_url
from chatstack.values.parts import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult

PROVIDER = "anthropic"

WIRE = "anthropic"
"""Name of this wire in every ``extra_json``."""

_SOURCE_FIELDS = {
    "base64": {"data": "data", "media_type": "media_type"},
    "url": {"url": "url"},
    "file": {"file_id": "file_id"},
    "text": {"data": "text", "media_type": "media_type"},
}
_FAILED: Mapping[str, object] = {"type": "text", "text": "The tool failed:"}
"""The block that stands for ``is_error`` in a result with a picture or a file, where the API refuses the flag."""
_CALL_ID = re.compile("[a-zA-Z0-9_-]+")
THINKING = ("thinking", "redacted_thinking")
"""Types of blocks that hold reasoning."""


def part_to_block(part: Part) -> WireObject | None:
    """Return the block for a part, or None if it cannot be sent: empty text, and items of another provider."""
    match part:
        case Text():
            return _text_to_block(part) if part.text.strip() else None
        case Image():
            return _completed({"type": "image", "source": _image_source(part)}, part)
        case File():
            return _file_to_block(part)
        case ToolCall():
            given = call_input(part.arguments)
            return _completed({"type": "tool_use", "id": part.id, "name": part.name, "input": given}, part)
        case ToolResult():
            return _result_to_block(part)
        case Reasoning():
            is_ours = part.provider == PROVIDER and part.item_json
            return decoded_object(part.item_json, "Reasoning.item_json") if is_ours else None
        case ProviderItem():
            return decoded_object(part.json, "ProviderItem.json") if part.provider == PROVIDER else None


def block_to_part(block: Mapping[str, object], *, call_names: Mapping[str, str] | None = None) -> Part:
    """Return the part for a block. ``call_names`` maps ids of earlier calls to their names, for results."""
    kind = block.get("type")
    if kind == "text":
        return Text(text_in(block, "text"), _extra(block, "type", "text"))
    if kind == "tool_use":
        return block_to_call(block, call_arguments(block.get("input")))
    if kind == "tool_result":
        return _block_to_result(block, call_names or {})
    if kind in THINKING:
        return Reasoning(text_in(block, "thinking"), _json_of(block), PROVIDER)
    return _media_part(block) or _item_of(block)


def block_to_call(block: Mapping[str, object], arguments: str) -> ToolCall:
    """Return the call for a ``tool_use`` block, its arguments as the text that was received."""
    extra = _extra(block, "type", "id", "name", "input")
    return ToolCall(text_in(block, "id"), text_in(block, "name"), arguments, extra)


def call_ids(declared: Collection[str] | None) -> CallIds:
    """Return the ids for the calls of one message after the other, and for their results."""
    return CallIds(
        {"tool_use": "id"}, {"tool_result": "tool_use_id"}, allowed=_CALL_ID, declared=declared, longest_name=128
    )


def call_arguments(given: object) -> str:
    """Return the JSON text of a call's input that came as an object, spaced as the model itself writes it."""
    return json.dumps({} if given is None else given, ensure_ascii=False)


def _text_to_block(part: Text) -> WireObject:
    block = _completed({"type": "text", "text": part.text}, part)
    citations = block.get("citations")
    if isinstance(citations, list):
        block["citations"] = [_citation_to_wire(each) for each in cast("list[object]", citations)]
    return block


def _citation_to_wire(citation: object) -> object:
    """Return a citation without ``file_id``, which answers have and the API refuses in a request."""
    fields = _object(citation)
    return citation if fields is None else {name: value for name, value in fields.items() if name != "file_id"}


def _file_to_block(part: File) -> WireObject:
    block: WireObject = {"type": "document"}
    if part.name:
        block["title"] = part.name
    block = _completed(block, part)
    # A document made of content blocks keeps them as its source; its text is for counting, and for other providers.
    return block if "source" in block else {**block, "source": _file_source(part)}


def _image_source(part: Image) -> WireObject:
    if part.file_id:
        return {"type": "file", "file_id": part.file_id}
    inline = split_data_url(part.url)
    if inline is not None:
        return {"type": "base64", "media_type": inline[0], "data": inline[1]}
    if part.url:
        return {"type": "url", "url": part.url}
    return {"type": "base64", "media_type": part.media_type, "data": part.data}


def _file_source(part: File) -> WireObject:
    """Return the source of a file: plain text as text, PDF as base64; text that came as bytes is decoded."""
    if part.file_id:
        return {"type": "file", "file_id": part.file_id}
    inline = split_data_url(part.url)
    media_type, data = inline if inline is not None else (part.media_type, part.data)
    if part.url and inline is None:
        return {"type": "url", "url": part.url}
    if data and not media_type.startswith("text/"):
        return {"type": "base64", "media_type": media_type or "application/pdf", "data": data}
    text = _decoded(data) if data else part.text
    if text is None:
        raise InputError(f"File {part.name!r}: its data is not the base64 of UTF-8 text")
    return {"type": "text", "media_type": "text/plain", "data": text}


def _decoded(data: str) -> str | None:
    """Return the text that stands as base64, or None. The exception, which holds the text, is dropped here."""
    try:
        return base64.b64decode(data, validate=True).decode()
    except ValueError:
        return None


def _media_part(block: Mapping[str, object]) -> Image | File | None:
    """Return the part for an image or a document; None for other blocks, and for unknown kinds of source."""
    kind, source = block.get("type"), _object(block.get("source"))
    if source is None or kind not in ("image", "document"):
        return None
    form = str(source.get("type"))
    fields = _source_fields(form, source)
    if kind == "image":
        return Image(**fields, extra_json=_extra(block, "type", "source")) if fields and form != "text" else None
    name = text_in(block, "title")
    if fields:
        return File(**fields, name=name, extra_json=_extra(block, "type", "source", "title"))
    if form == "content":
        return File(text=_plain_text(source.get("content")), name=name, extra_json=_extra(block, "type", "title"))
    return None


def _source_fields(form: str, source: Mapping[str, object]) -> dict[str, str]:
    """Return a source's fields under our names; empty if it has any that we would lose."""
    names = _SOURCE_FIELDS.get(form, {})
    fields = {name: value for name, value in source.items() if name != "type" and value is not None}
    if fields.keys() != names.keys():
        return {}
    found = {names[name]: value for name, value in fields.items() if isinstance(value, str)}
    return found if len(found) == len(fields) else {}


def _result_to_block(part: ToolResult) -> WireObject:
    block: WireObject = {"type": "tool_result", "tool_use_id": part.call_id}
    content: str | list[WireObject] = ""
    if isinstance(part.output, str):
        content = part.output if part.output.strip() else ""
    else:
        content = [inner for each in part.output if (inner := part_to_block(each)) is not None]
        if part.is_error and _holds_media(content):
            return _completed({**block, "content": [{**_FAILED}, *content]}, part)
    if content:
        block["content"] = content
    if part.is_error:
        block["is_error"] = True
    return _completed(block, part)


def _block_to_result(block: Mapping[str, object], call_names: Mapping[str, str]) -> ToolResult:
    call_id, content = text_in(block, "tool_use_id"), block.get("content")
    is_error = block.get("is_error") is True
    output: str | tuple[Text | Image | File | ProviderItem, ...]
    if content is None or isinstance(content, str):
        output = content or ""
    else:
        blocks = objects(content, "tool_result.content")
        if blocks[:1] == [_FAILED] and _holds_media(blocks):
            is_error, blocks = True, blocks[1:]
        output = tuple(_output_part(each) for each in blocks)
    extra = _extra(block, "type", "tool_use_id", "content", "is_error")
    return ToolResult(call_id, call_names.get(call_id, ""), output, is_error, extra)


def _holds_media(content: Sequence[WireObject]) -> bool:
    return any(block.get("type") != "text" for block in content)


def _output_part(block: WireObject) -> Text | Image | File | ProviderItem:
    part = block_to_part(block)
    return part if isinstance(part, (Text, Image, File)) else _item_of(block)


def objects(value: object, where: str) -> list[WireObject]:
    """Return the value as a list of objects. Raises ``InputError`` naming ``where`` and the position of another
    value."""
    return [dict(as_object(each, f"{where}[{position}]")) for position, each in enumerate(as_list(value, where))]


def _plain_text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "".join(text_in(each, "text") for each in objects(content, "document.source.content"))


def _completed(block: WireObject, part: Text | Image | File | ToolCall | ToolResult) -> WireObject:
    return with_extra(block, part.extra_json, WIRE, type(part).__name__)


def _item_of(block: Mapping[str, object]) -> ProviderItem:
    return ProviderItem(PROVIDER, _json_of(without_nulls(block)))


def _json_of(block: Mapping[str, object]) -> str:
    return encoded(_in_order(block))


def _in_order(block: Mapping[str, object]) -> WireObject:
    """Return the block with its own fields sorted: streamed and whole answers order them differently, and values must
    be equal. Nested objects keep their order, by which the model recognises its own words."""
    return dict(sorted(block.items()))


def _extra(block: Mapping[str, object], *known: str) -> str:
    rest = {name: value for name, value in without_nulls(block).items() if name not in known}
    return encoded_extra(_in_order(rest), WIRE)


def _object(value: object) -> Mapping[str, object] | None:
    return cast("Mapping[str, object]", value) if isinstance(value, Mapping) else None
