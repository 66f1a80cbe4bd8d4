"""Content parts of the Responses API's input, to and from ours. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from chatstack.providers.extras import (
    WireObject,
    as_list,
    as_object,
    as_string,
    decoded_object,
    encoded,
    extra_json_of,
    plain_text,
    text_in,
    with_extra,
    without_nulls,
)
from chatstack.providers.openai.chat_parts import PROVIDER, ContentPart, inline_file, inline_name
from chatstack.values.data_urls import data_url, split_data_url
from chatstack.values.parts import File, Image, ProviderItem, Text

WIRE = "openai-responses"
"""The name of this wire in every ``extra_json``."""

_OF_ANSWERS = frozenset({"annotations", "logprobs", "message"})
"""Fields that a text has only in an answer: the API refuses them on a text that was moved into an input message."""


def content_to_wire(parts: Sequence[ContentPart], where: str) -> str | list[WireObject]:
    """Return a single plain text as a string, else the list of input parts."""
    text = plain_text(parts, WIRE, where)
    return _parts_to_wire(parts, where) if text is None else text


def _parts_to_wire(parts: Iterable[ContentPart], where: str) -> list[WireObject]:
    """Return the list of input parts; items of other providers are left out."""
    found: list[WireObject] = []
    for part in parts:
        if isinstance(part, ProviderItem):
            if part.provider == PROVIDER:
                found.append(decoded_object(part.json, where))
        else:
            found.append(with_extra(_part_to_wire(part), part.extra_json, WIRE, where, left_out=_OF_ANSWERS))
    return found


def output_to_wire(output: str | tuple[ContentPart, ...], where: str) -> str | list[WireObject]:
    """Return the output of a tool for the wire: text, or parts."""
    return output if isinstance(output, str) else _parts_to_wire(output, where) or ""


def output_from_wire(content: object, where: str) -> str | tuple[ContentPart, ...]:
    """Return a string, or our parts for a list of input parts; those of other types are kept as they are."""
    if isinstance(content, str):
        return content
    parts = as_list(content, where)
    return tuple(
        _part_from_wire(without_nulls(as_object(part, f"{where}[{position}]")), f"{where}[{position}]")
        for position, part in enumerate(parts)
    )


def _part_to_wire(part: Text | Image | File) -> WireObject:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    written: WireObject
    if isinstance(part, Image):
        written = {"type": "input_image"}
        if part.file_id:
            written["file_id"] = part.file_id
        else:
            written["image_url"] = data_url(part.media_type, part.data) if part.data else part.url
        if part.detail:
            written["detail"] = part.detail
        return written
    is_inline = not part.file_id and (not part.url or split_data_url(part.url) is not None)
    if is_inline:
        return {"type": "input_file", **inline_file(part)}
    written = {"type": "input_file", **({"file_id": part.file_id} if part.file_id else {"file_url": part.url})}
    if part.name:
        written["filename"] = part.name
    return written


def _part_from_wire(fields: Mapping[str, object], where: str) -> ContentPart:
    kind = fields.get("type")
    if kind == "input_text":
        text = as_string(fields.get("text"), f"{where}.text")
        return Text(text, extra_json_of(fields, {"type": kind, "text": text}, WIRE))
    found: Image | File | None = None
    if kind == "input_image":
        found = _image_from_wire(fields)
    elif kind == "input_file":
        found = _file_from_wire(fields)
    if found is None:
        return ProviderItem(PROVIDER, encoded(fields))
    return replace(found, extra_json=extra_json_of(fields, _part_to_wire(found), WIRE))


def _image_from_wire(fields: Mapping[str, object]) -> Image | None:
    """Return a picture, or None if it is given in two ways at once: then it is kept as it is."""
    url, file_id, detail = text_in(fields, "image_url"), text_in(fields, "file_id"), text_in(fields, "detail")
    if bool(url) == bool(file_id):
        return None
    split = split_data_url(url)
    media_type, data = split or ("", "")
    return Image(url="" if split else url, data=data, media_type=media_type, file_id=file_id, detail=detail)


def _file_from_wire(fields: Mapping[str, object]) -> File | None:
    """Return a file, or None if it is given in two ways at once, or its data is none: then it is kept as it is."""
    url, data, file_id = (text_in(fields, name) for name in ("file_url", "file_data", "file_id"))
    media_type, data = split_data_url(data) or ("", data)
    if sum(map(bool, (url, data, file_id))) != 1 or ":" in data:
        return None
    name = text_in(fields, "filename")
    name = inline_name(name, media_type) if data else name
    return File(url=url, data=data, media_type=media_type, file_id=file_id, name=name)
