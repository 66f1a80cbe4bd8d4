"""10xgraph's content blocks and our parts, both ways, as far as both have a field for it.

Blocks are read and written as the JSON that they dump to. What chatstack has no part for (audio, video, annotations,
errors, calls of tools that ran at the provider) becomes ``ProviderItem("10xgraph", ...)``: it comes back, and no model
sees it. The other way round, an item of another provider's is a data block of a type of ours.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, cast

from chatstack import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.nodes.remainder import as_list, as_object, is_deep

type Block = dict[str, Any]

WIRE = "10xgraph"
"""The name under which fields of 10xgraph's ride along in our messages."""

ITEM_TYPE = "application/vnd.chatstack.provider-item+json"
"""The MIME type of a data block that holds an item of a provider's."""

_OUTPUT = Text | Image | File | ProviderItem


def block_of(part: Part) -> Block:
    """The block for a part."""
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            return {"type": "image", "media": _media(part)}
        case File():
            media = {**_media(part), "filename": part.name} if part.name else _media(part)
            return {"type": "document", "media": media, "text": part.text or None}
        case Reasoning():
            return {"type": "reasoning", "summary": part.text}
        case ToolCall():
            return {
                "type": "tool_call",
                "id": part.id,
                "name": part.name,
                "args": arguments_object(part.arguments) or {},
            }
        case ToolResult():
            output = part.output if isinstance(part.output, str) else [block_of(each) for each in part.output]
            status = "failed" if part.is_error else "completed"
            result = {"type": "tool_result", "call_id": part.call_id, "output": output}
            return {**result, "is_error": part.is_error, "status": status}
        case ProviderItem():
            return _item_block(part)


def part_of(block: Block, *, result_name: str = "") -> Part:
    """The part for a block."""
    if block.get("type") == "tool_result":
        return _result(block, result_name)
    found = _READERS.get(str(block.get("type")), _no_part)(block)
    return found if found is not None else _kept_whole(block)


def arguments_object(text: str) -> dict[str, Any] | None:
    """A call's arguments as an object; None for text that is none, as of a call that was cut off."""
    try:
        found = as_object(json.loads(text.strip() or "{}", parse_constant=_refuse))
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # half a character, too
        return None
    return None if is_deep(found) else found


def arguments_text(given: object) -> str:
    """A value as JSON text, spaced as models write it."""
    return json.dumps(given, ensure_ascii=False, default=str)


def _media(part: Image | File) -> Block:
    kind = "data" if part.data else "file_id" if part.file_id else "url"
    fields = {"url": part.url, "file_id": part.file_id, "data_base64": part.data, "mime_type": part.media_type}
    return {"kind": kind, **{name: value for name, value in fields.items() if value}}


def _item_block(part: ProviderItem) -> Block:
    if part.provider == WIRE:
        try:
            theirs = as_object(json.loads(part.json))
        except (ValueError, RecursionError):
            theirs = None
        if theirs is not None and theirs.get("type") in _KEPT_WHOLE:
            return theirs
    held = json.dumps({"provider": part.provider, "json": part.json})
    return {"type": "data", "mime_type": ITEM_TYPE, "data_base64": base64.b64encode(held.encode()).decode()}


def _text(block: Block) -> Text | None:
    return Text(block["text"]) if isinstance(block.get("text"), str) else None


def _image(block: Block) -> Image | None:
    fields = _content(block)
    return Image(**fields) if fields.keys() & {"url", "data", "file_id"} else None


def _document(block: Block) -> File | None:
    fields = _content(block)
    if isinstance(block.get("text"), str):
        fields["text"] = block["text"]
    name = (as_object(block.get("media")) or {}).get("filename")
    if isinstance(name, str):
        fields["name"] = name
    return File(**fields) if fields.keys() & {"url", "data", "file_id", "text"} else None


def _reasoning(block: Block) -> Reasoning | None:
    return Reasoning(block["summary"]) if isinstance(block.get("summary"), str) else None


def _call(block: Block) -> ToolCall | None:
    id, name = block.get("id"), block.get("name")
    if not isinstance(id, str) or not isinstance(name, str) or block.get("tool_type") is not None:
        return None
    return ToolCall(id, name, arguments_text(block.get("args") or {}))


def _data(block: Block) -> ProviderItem | None:
    if block.get("mime_type") != ITEM_TYPE:
        return None
    try:
        held = as_object(json.loads(base64.b64decode(block["data_base64"]))) or {}
        return ProviderItem(held["provider"], held["json"])
    except (LookupError, TypeError, ValueError):
        return None


def _result(block: Block, name: str) -> ToolResult:
    output, items = block.get("output"), as_list(block.get("output"))
    call_id, is_error = str(block.get("call_id", "")), block.get("is_error") is True
    if isinstance(output, str):
        return ToolResult(call_id, name, output, is_error)
    parts = [_output_part(each) for each in items or ()]
    if items is not None and all(part is not None for part in parts):
        return ToolResult(call_id, name, cast("tuple[_OUTPUT, ...]", tuple(parts)), is_error)
    return ToolResult(call_id, name, "" if output is None else arguments_text(output), is_error)


def _output_part(item: object) -> Text | Image | File | ProviderItem | None:
    """The part for an item of a tool's output; None for one that is no block."""
    block = as_object(item)
    if block is None or block.get("type") not in (*_READERS, *_KEPT_WHOLE):
        return None
    part = part_of(block)
    return part if isinstance(part, Text | Image | File | ProviderItem) else _kept_whole(block)


def _kept_whole(block: Block) -> ProviderItem:
    return ProviderItem(WIRE, json.dumps(block, default=str))


def _no_part(block: Block) -> None:
    return None


_READERS: dict[str, Callable[[Block], Part | None]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "reasoning": _reasoning,
    "tool_call": _call,
    "data": _data,
}
_KEPT_WHOLE = (*_READERS, "audio", "video", "remote_tool_call", "annotation", "error")


def _content(block: Block) -> dict[str, str]:
    media = as_object(block.get("media")) or {}
    names = {"url": "url", "file_id": "file_id", "data": "data_base64", "media_type": "mime_type"}
    return {ours: media[theirs] for ours, theirs in names.items() if isinstance(media.get(theirs), str)}


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
