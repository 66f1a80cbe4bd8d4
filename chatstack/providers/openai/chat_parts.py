"""The content parts of OpenAI's chat completions, to and from ours. Pure functions."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from chatstack.errors import InputError
from chatstack.providers.extras import (
    WireObject,
    as_object,
    as_string,
    decoded_object,
    encoded,
    extra_json_of,
    plain_text,
    text_in,
    with_extra,
)
from chatstack.values.data_urls import data_url, split_data_url
from chatstack.values.parts import File, Image, Part, ProviderItem, Text

ContentPart = Text | Image | File | ProviderItem

PROVIDER = "openai"
"""Marks the items that only OpenAI's wires can carry."""

WIRE = "openai-chat"
"""The name of this wire in every ``extra_json``."""

_UNTOLD = "application/pdf"
"""The media type of data without one."""
_OFFICE = "application/vnd.openxmlformats-officedocument"
_EXTENSIONS: Mapping[str, str] = {
    "text/plain": "txt",
    "text/markdown": "md",
    "text/csv": "csv",
    "text/html": "html",
    "application/json": "json",
    "application/msword": "doc",
    "application/vnd.ms-excel": "xls",
    "application/vnd.ms-powerpoint": "ppt",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}.presentationml.presentation": "pptx",
}
"""Extensions that are not the media type's own name. Those of ``mimetypes`` differ between machines."""
_TYPES = {extension: kind for kind, extension in _EXTENSIONS.items()}


def content_to_wire(parts: Sequence[Part], where: str) -> str | list[WireObject]:
    """Return a single plain text as a string, else the list of content parts. Items of others are left out."""
    text = plain_text(parts, WIRE, where)
    return parts_to_wire(parts, where) if text is None else text


def parts_to_wire(parts: Iterable[Part], where: str) -> list[WireObject]:
    """Return the list of content parts. Raises ``InputError`` for a part that cannot be content."""
    found: list[WireObject] = []
    for part in parts:
        if isinstance(part, ProviderItem):
            if part.provider == PROVIDER:
                found.append(decoded_object(part.json, where))
        elif isinstance(part, (Text, Image, File)):
            found.append(_part_to_wire(part, where))
        else:
            raise InputError(f"{where}: a {type(part).__name__} cannot be part of this message")
    return found


def content_from_wire(content: object, where: str) -> tuple[ContentPart, ...]:
    """Return our parts for a message's ``content``: a string, a list of parts, or nothing."""
    if content is None:
        return ()
    if isinstance(content, str):
        return (Text(content),)
    if isinstance(content, list | tuple):
        return parts_from_wire(content, where)  # pyright: ignore[reportUnknownArgumentType]
    raise InputError(f"{where}: expected text or a list of parts, got {type(content).__name__}")


def parts_from_wire(parts: Sequence[object], where: str) -> tuple[ContentPart, ...]:
    """Return our parts for a list of content parts; those of other kinds are kept as they are."""
    return tuple(_part_from_wire(part, f"{where}[{position}]") for position, part in enumerate(parts))


def inline_file(part: File) -> WireObject:
    """Return the fields of a file that goes along: a data URL, and the name that the API demands. Where there is none,
    it is made of the media type, so that it is the same each time, as prompt caches need. Data without a media type
    is what its name tells, else a PDF."""
    media_type, data = split_data_url(part.url) or (part.media_type, part.data)
    if part.text:
        media_type, data = media_type or "text/plain", base64.b64encode(part.text.encode()).decode()
    media_type = media_type or _TYPES.get(part.name.rpartition(".")[2].lower(), _UNTOLD)
    return {"file_data": data_url(media_type, data), "filename": part.name or _name_of(media_type)}


def inline_name(name: str, media_type: str) -> str:
    """Return the name of a file that came with its data; "" for the one that it would have gone out under without any,
    so that a file without a name comes back as it was."""
    return "" if name == _name_of(media_type or _UNTOLD) else name


def _name_of(media_type: str) -> str:
    kind = media_type.partition(";")[0].lower()
    subtype = kind.rpartition("/")[2]
    return f"file.{_EXTENSIONS.get(kind) or (subtype if subtype.isalnum() else 'bin')}"


def _part_to_wire(part: Text | Image | File, where: str) -> WireObject:
    if isinstance(part, Text):
        written: WireObject = {"type": "text", "text": part.text}
    elif isinstance(part, Image):
        if part.file_id:
            raise InputError(f"{where}: chat completions take no picture by file_id; send its url or data")
        image: WireObject = {"url": data_url(part.media_type, part.data) if part.data else part.url}
        if part.detail:
            image["detail"] = part.detail
        written = {"type": "image_url", "image_url": image}
    else:
        written = {"type": "file", "file": _file_to_wire(part, where)}
    return with_extra(written, part.extra_json, WIRE, where)


def _file_to_wire(part: File, where: str) -> WireObject:
    if part.file_id:
        return {"file_id": part.file_id, **({"filename": part.name} if part.name else {})}
    if part.url and split_data_url(part.url) is None:
        raise InputError(f"{where}: chat completions take no file by url; send its data or file_id, or use Responses")
    return inline_file(part)


def _part_from_wire(part: object, where: str) -> ContentPart:
    fields = as_object(part, where)
    kind = fields.get("type")
    if kind == "text":
        text = as_string(fields.get("text"), f"{where}.text")
        return Text(text, extra_json_of(fields, {"type": kind, "text": text}, WIRE))
    found: Image | File | None = None
    if kind == "image_url":
        found = _image_from_wire(as_object(fields.get("image_url"), f"{where}.image_url"), where)
    elif kind == "file":
        found = _file_from_wire(as_object(fields.get("file"), f"{where}.file"))
    if found is None:
        return ProviderItem(PROVIDER, encoded(dict(fields)))
    return replace(found, extra_json=extra_json_of(fields, _part_to_wire(found, where), WIRE))


def _image_from_wire(image: object, where: str) -> Image:
    fields = as_object(image, where)
    url = as_string(fields.get("url"), f"{where}.image_url.url")
    detail, split = text_in(fields, "detail"), split_data_url(url)
    if split is not None:
        return Image(data=split[1], media_type=split[0], detail=detail)
    return Image(url=url, detail=detail)


def _file_from_wire(file: object) -> File | None:
    """Return a file, or None if it has both an id and data, or neither, or an address in their place, as OpenRouter
    takes it: then it is kept as it is."""
    fields = as_object(file, "file")
    data, file_id, called = fields.get("file_data"), fields.get("file_id"), text_in(fields, "filename")
    if isinstance(file_id, str) and file_id and data is None:
        return File(file_id=file_id, name=called)
    if isinstance(data, str) and data and file_id is None:
        media_type, data = split_data_url(data) or ("", data)
        if ":" in data:
            return None
        return File(data=data, media_type=media_type, name=inline_name(called, media_type))
    return None
