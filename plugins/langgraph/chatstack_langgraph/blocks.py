"""LangChain's content blocks and our parts, both ways, as far as both have a field for it.

Standard blocks are written, except for reasoning that its provider wants back as it came: that goes in the provider's
own block, which LangChain's integrations know. Read are also the older spellings, and those of OpenAI and Anthropic.
A block that nothing here stands for becomes ``ProviderItem("langchain", ...)``: it comes back, and no model sees it.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, TypeAlias, cast

from chatstack import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall
from chatstack.nodes.remainder import is_deep
from chatstack.values.data_urls import split_data_url

Block: TypeAlias = dict[str, Any]

WIRE = "langchain"
"""The name under which fields of LangChain's ride along in our messages."""

_THINKING = ("thinking", "redacted_thinking")
_REASONING_TYPES = {"anthropic": _THINKING, "openai": ("reasoning",)}


def block_of(part: Part) -> Block:
    """The block for a part that is no tool result."""
    match part:
        case Text():
            return {"type": "text", "text": part.text}
        case Image():
            return _media_block("image", part)
        case File():
            return _file_block(part)
        case Reasoning():
            return _own_reasoning(part) or {"type": "reasoning", "reasoning": part.text}
        case ToolCall():
            given = arguments_object(part.arguments)
            kind = "invalid_tool_call" if given is None else "tool_call"
            return {"type": kind, "id": part.id, "name": part.name, "args": part.arguments if given is None else given}
        case ProviderItem():
            item = _loaded(part.json)
            if part.provider == WIRE and isinstance(item, dict):
                return cast("Block", item)
            return {"type": "non_standard", "value": {"provider": part.provider, "item": item}}
        case _:
            raise TypeError(f"{type(part).__name__} has no content block")


def part_of(block: Block | str) -> Text | Image | File | Reasoning | ToolCall | ProviderItem:
    """The part for a block, or for text in the place of one."""
    if isinstance(block, str):
        return Text(block)
    found = _READERS.get(str(block.get("type")), _no_part)(block)
    return found if found is not None else ProviderItem(WIRE, json.dumps(block, default=str))


def arguments_object(text: str) -> dict[str, Any] | None:
    """A call's arguments as an object; None for text that is none, as of a call that was cut off."""
    found = _loaded(text.strip() or "{}")
    return cast("dict[str, Any]", found) if isinstance(found, dict) else None


def arguments_text(given: object) -> str:
    """An object of arguments as JSON text, spaced as models write it."""
    return json.dumps(given, ensure_ascii=False, default=str)


def _file_block(part: File) -> Block:
    if part.text:
        return _known(type="text-plain", text=part.text, title=part.name, mime_type=part.media_type or "text/plain")
    block = _media_block("file", part)
    return {**block, "extras": {"filename": part.name}} if part.name else block


def _media_block(kind: str, part: Image | File) -> Block:
    """The block for content that is no text. No integration takes a data URL in the place of an address."""
    fields = {"url": part.url, "data": part.data, "media_type": part.media_type, **_held_in(part.url)}
    url, data, media_type = (fields[name] for name in ("url", "data", "media_type"))
    return _known(type=kind, url=url, base64=data, file_id=part.file_id, mime_type=media_type)


def _own_reasoning(part: Reasoning) -> Block | None:
    item = _loaded(part.item_json) if part.item_json else None
    if not isinstance(item, dict):
        return None
    block = cast("Block", item)
    return block if block.get("type") in _REASONING_TYPES.get(part.provider, ()) else None


def _read_text(block: Block) -> Text | None:
    return Text(block["text"]) if isinstance(block.get("text"), str) else None


def _read_image(block: Block) -> Image | None:
    source = block.get("source")
    if isinstance(source, dict):
        fields = _source(cast("Block", source))
    elif "source_type" in block:
        fields = _first_version(block)
    else:
        fields = _fields(block, url="url", data="base64", file_id="file_id", media_type="mime_type")
    return Image(**fields) if _has_content(fields) else None


def _read_image_url(block: Block) -> Image | None:
    found = block.get("image_url")
    if isinstance(found, str):
        return Image(url=found)
    fields = _fields(cast("Block", found), url="url", detail="detail") if isinstance(found, dict) else {}
    return Image(**fields) if _has_content(fields) else None


def _read_file(block: Block) -> File | None:
    theirs = block.get("file")
    source = block.get("source")
    if isinstance(theirs, dict):  # as OpenAI's chat completions spell it
        fields = _fields(cast("Block", theirs), data="file_data", file_id="file_id", name="filename")
        fields |= _held_in(fields.get("data", ""))
    elif isinstance(source, dict):
        fields = {**_source(cast("Block", source)), **_fields(block, name="title")}
    elif "source_type" in block:
        fields = {**_first_version(block), **_fields(block, text="text")}
    else:
        fields = _fields(block, url="url", data="base64", file_id="file_id", text="text", media_type="mime_type")
        extras = block.get("extras")
        named = _fields(cast("Block", extras), name="filename") if isinstance(extras, dict) else {}
        fields |= {**_fields(block, name="title"), **named}
    return File(**fields) if _has_content(fields) else None


def _read_plain_text(block: Block) -> File | None:
    fields = _fields(block, url="url", data="base64", file_id="file_id", text="text", name="title")
    if fields.keys() - {"name", "text"} or block.get("mime_type") != "text/plain":
        fields |= _fields(block, media_type="mime_type")
    return File(**fields) if _has_content(fields) else None


def _read_reasoning(block: Block) -> Reasoning | None:
    if isinstance(block.get("summary"), list):  # an item of OpenAI's Responses API
        pieces = [cast("Block", each) for each in cast("list[object]", block["summary"]) if isinstance(each, dict)]
        text = "\n\n".join(str(each.get("text", "")) for each in pieces)
        return Reasoning(text, _item_json(block), "openai")
    return Reasoning(block["reasoning"]) if isinstance(block.get("reasoning"), str) else None


def _read_thinking(block: Block) -> Reasoning:
    text = block.get("thinking")
    return Reasoning(text if isinstance(text, str) else "", _item_json(block), "anthropic")


def _read_call(block: Block) -> ToolCall | None:
    id, name, given = block.get("id"), block.get("name"), block.get("args")
    if not isinstance(id, str) or not isinstance(name, str):
        return None
    if isinstance(given, dict):
        return ToolCall(id, name, arguments_text(cast("Block", given)))
    return ToolCall(id, name, given) if isinstance(given, str) else None


def _read_foreign(block: Block) -> ProviderItem | None:
    value = block.get("value")
    if not isinstance(value, dict):
        return None
    held = cast("Block", value)
    if held.keys() != {"provider", "item"} or not isinstance(held["provider"], str):
        return None
    return ProviderItem(held["provider"], json.dumps(held["item"], default=str))


def _no_part(block: Block) -> None:
    return None


_READERS = {
    "text": _read_text,
    "image": _read_image,
    "image_url": _read_image_url,
    "file": _read_file,
    "document": _read_file,
    "text-plain": _read_plain_text,
    "reasoning": _read_reasoning,
    "thinking": _read_thinking,
    "redacted_thinking": _read_thinking,
    "tool_call": _read_call,
    "invalid_tool_call": _read_call,
    "non_standard": _read_foreign,
}


def _source(source: Block) -> dict[str, str]:
    """The source of a picture or a document in Anthropic's spelling."""
    if source.get("type") == "text":
        return _fields(source, text="data")
    return _fields(source, url="url", data="data", file_id="file_id", media_type="media_type")


def _first_version(block: Block) -> dict[str, str]:
    """The fields of a block from before LangChain 1."""
    named = {"url": "url", "base64": "data", "id": "file_id"}
    read = {"url": "url", "base64": "data", "id": "id"}
    kind = str(block.get("source_type"))
    fields = _fields(block, **{named[kind]: read[kind]}) if kind in named else {}
    return fields | _fields(block, media_type="mime_type")


def _held_in(url: str) -> dict[str, str]:
    """The fields that a data URL stands for; none for any other address."""
    inline = split_data_url(url)
    return {} if inline is None else {"url": "", "media_type": inline[0], "data": inline[1]}


def _item_json(block: Block) -> str:
    """The provider's own item: without LangChain's ``index``, which its API would refuse."""
    return json.dumps({name: value for name, value in block.items() if name != "index"}, default=str)


def _fields(block: Block, **names: str) -> dict[str, str]:
    return {ours: block[theirs] for ours, theirs in names.items() if isinstance(block.get(theirs), str)}


def _has_content(fields: dict[str, str]) -> bool:
    return any(fields.get(name) for name in ("url", "data", "file_id", "text"))


def _known(**fields: str) -> Block:
    return {name: value for name, value in fields.items() if value}


def _loaded(text: str) -> object:
    """What the JSON text says; the text itself where it is none, or says what a checkpoint cannot hold."""
    try:
        found = cast("object", json.loads(text, parse_constant=_refused, parse_int=_whole, parse_float=_fraction))
        if "\\u" in text:
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # half a character, too
        return text
    return text if is_deep(found) else found


def _whole(digits: str) -> int:
    number = int(digits)
    return number if -(2**63) <= number < 2**64 else _refused(digits)


def _fraction(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refused(digits)


def _refused(constant: str) -> NoReturn:
    raise ValueError(f"{constant} has no place in a checkpoint")
