"""Gemini's content parts and ours, both ways. Pure functions; the SDK is not imported.

A field without a counterpart here (``thoughtSignature``, ``partMetadata``) rides under ``gemini`` in the part's
``extra_json`` and goes back as it came. A part that only Gemini understands is a ``ProviderItem`` whole.
"""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterable, Mapping
from typing import cast

from chatstack.errors import InputError
from chatstack.providers.extras import (
    WireObject,
    as_object,
    call_input,
    decoded_object,
    encoded,
    encoded_extra,
    text_in,
    with_extra,
)
from chatstack.values.data_urls import split_data_url
from chatstack.values.parts import File, Image, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult

PROVIDER = "gcp.gemini"
"""The GenAI name of the provider."""

WIRE = "gemini"
"""Name of this wire in every ``extra_json``."""

MADE_ID = "made_"
"""Beginning of the ids that calls get here if the API gave none. They are never sent."""

UNCHECKED_SIGNATURE = "skip_thought_signature_validator"
"""Signature for a call that another model made: without any, Gemini 3 and later refuse the request."""


def part_to_wire(part: Part) -> WireObject | None:
    """Return the part as Gemini spells it; None if it cannot be sent: empty text, and items of another provider.

    Raises ``InputError`` for a tool result: it needs the name of its call, see ``result_to_wire``.
    """
    match part:
        case Text():
            text = with_extra({"text": part.text}, part.extra_json, WIRE, "Text")
            return text if part.text or len(text) > 1 else None
        case Image():
            return with_extra(_media("Image", part, "image/png"), part.extra_json, WIRE, "Image")
        case File():
            return with_extra(_file(part), part.extra_json, WIRE, "File")
        case ToolCall():
            call: WireObject = {**_id_field(part.id), "name": part.name, "args": call_input(part.arguments)}
            return with_extra({"functionCall": call}, part.extra_json, WIRE, "ToolCall")
        case Reasoning():
            is_ours = part.provider == PROVIDER and part.item_json
            return decoded_object(part.item_json, "Reasoning.item_json") if is_ours else None
        case ProviderItem():
            return decoded_object(part.json, "ProviderItem.json") if part.provider == PROVIDER else None
        case ToolResult():
            raise InputError(f"the result of the call {part.call_id!r} does not follow its call")


def written(parts: Iterable[Part]) -> list[WireObject]:
    """Return those of the parts that can be sent, as Gemini spells them."""
    return [found for part in parts if (found := part_to_wire(part)) is not None]


def part_from_wire(fields: Mapping[str, object], made_id: str) -> Part:
    """Return our part for one of an answer's. ``made_id`` is for a call without an id."""
    call, text = fields.get("functionCall"), fields.get("text")
    if call is not None:
        return _call_from_wire(fields, as_object(call, "functionCall"), made_id)
    if isinstance(text, str):
        if fields.get("thought") is True:
            return Reasoning(text, encoded(fields), PROVIDER)
        return Text(text, _extra(fields, "text"))
    return _picture(fields) or ProviderItem(PROVIDER, encoded(fields))


def result_to_wire(part: ToolResult, name: str) -> WireObject:
    """Return the result as the response to the call of that name: text, or a list if it has several texts, and media
    beside it."""
    texts: object = part.output
    media: list[WireObject] = []
    if not isinstance(part.output, str):
        said: list[object] = []
        for each in part.output:
            found = _result_part(each)
            if "text" in found:
                said.append(found["text"])
            elif found:
                media.append(found)
        texts = said if len(said) > 1 else "".join(map(str, said))
    response: WireObject = {
        **_id_field(part.call_id),
        "name": name,
        "response": {"error" if part.is_error else "output": texts},
    }
    if media:
        response["parts"] = media
    return with_extra({"functionResponse": response}, part.extra_json, WIRE, "ToolResult")


def missing_result(call: ToolCall) -> WireObject:
    """Return a response for a call whose result is not in the history: the API refuses a call without one."""
    return result_to_wire(ToolResult(call.id, call.name, "the call has no result", is_error=True), call.name)


def _call_from_wire(fields: Mapping[str, object], call: Mapping[str, object], made_id: str) -> ToolCall:
    if call.get("partialArgs") or call.get("willContinue"):
        raise InputError("functionCall: comes in pieces; leave out streamFunctionCallArguments")
    args = json.dumps(call.get("args") or {}, ensure_ascii=False)
    rest = {name: value for name, value in fields.items() if name != "functionCall"}
    more = {name: value for name, value in call.items() if name not in ("id", "name", "args")}
    if more:
        rest["functionCall"] = more
    return ToolCall(text_in(call, "id") or made_id, text_in(call, "name"), args, encoded_extra(rest, WIRE))


def _picture(fields: Mapping[str, object]) -> Image | None:
    blob = fields.get("inlineData")
    if not isinstance(blob, Mapping):
        return None
    inline = cast("Mapping[str, object]", blob)
    kind = text_in(inline, "mimeType")
    if set(inline) != {"data", "mimeType"} or not kind.startswith("image/"):
        return None
    return Image(data=text_in(inline, "data"), media_type=kind, extra_json=_extra(fields, "inlineData"))


def _result_part(part: Text | Image | File | ProviderItem) -> WireObject:
    """Return a piece of a result; nothing for an item of another provider."""
    match part:
        case Text():
            return {"text": part.text}
        case Image():
            return _media("Image", part, "image/png")
        case File():
            return _file(part)
        case ProviderItem():
            return decoded_object(part.json, "ProviderItem.json") if part.provider == PROVIDER else {}


def _file(part: File) -> WireObject:
    if part.text and not (part.data or part.url or part.file_id):
        return {"text": f"{part.name}:\n{part.text}" if part.name else part.text}
    return _media(f"File {part.name!r}", part, "application/pdf")


def _media(what: str, part: Image | File, default_type: str) -> WireObject:
    inline = split_data_url(part.url)
    kind, data = inline if inline is not None else (part.media_type, part.data)
    address = "" if inline is not None else part.url or part.file_id
    name = part.name if isinstance(part, File) else ""
    kind = kind or mimetypes.guess_type(name or address.partition("?")[0])[0] or default_type
    if address:
        return {"fileData": {"mimeType": kind, "fileUri": address}}
    if not data:
        raise InputError(f"{what}: has neither data nor an address")
    return {"inlineData": {"mimeType": kind, "data": data}}


def _id_field(id: str) -> WireObject:
    return {} if not id or id.startswith(MADE_ID) else {"id": id}


def _extra(fields: Mapping[str, object], known: str) -> str:
    return encoded_extra({name: value for name, value in sorted(fields.items()) if name != known}, WIRE)
