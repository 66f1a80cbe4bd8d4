"""Fields without a counterpart in our values: kept as JSON text when read, put back when written.

Reading and writing follow one rule: reading keeps every field that writing would not reproduce, and writing puts a kept
field only where nothing was written. Every field is kept under the name of the wire that it came from, and goes back
over that wire alone: fields of one API are refused by another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

import msgspec

from chatstack.errors import InputError
from chatstack.values.messages import Message, Role
from chatstack.values.parts import Part, Text
from chatstack.values.requests import ChatOptions

WireObject: TypeAlias = dict[str, object]
"""A JSON object as it goes over the wire."""

_MESSAGE = "Message: "
_skip = msgspec.json.Decoder(msgspec.Raw).decode


def message_at(where: str, role: Role, parts: tuple[Part, ...], extra_json: str = "") -> Message:
    """Return the message; the ``InputError`` for one that cannot be sent names its place."""
    try:
        return Message(role, parts, extra_json=extra_json)
    except InputError as error:
        raise InputError(f"{where}: {str(error).removeprefix(_MESSAGE)}") from None


def extra_json_of(original: Mapping[str, object], written: Mapping[str, object], wire: str) -> str:
    """Return the fields of ``original`` missing in ``written``, as an ``extra_json`` of that wire; "" if there are
    none."""
    return encoded_extra(fields_missing(original, written), wire)


def encoded_extra(fields: Mapping[str, object], wire: str) -> str:
    """Return fields as an ``extra_json`` of that wire; "" if there are none."""
    return encoded({wire: fields}) if fields else ""


def extra_fields(extra_json: str, wire: str, where: str) -> WireObject:
    """Return the extra fields for that wire. Raises ``InputError`` naming the place unless it is an object of
    objects."""
    if not extra_json:
        return {}
    try:
        return msgspec.json.decode(extra_json, type=dict[str, WireObject]).get(wire, {})
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(
            f"{where}: extra_json must be a JSON object that holds, under the name of each wire, an object of fields: "
            f'{{"{wire}": {{...}}}}'
        ) from error


def plain_text(parts: Sequence[Part], wire: str, where: str) -> str | None:
    """Return the text of parts that are a single one without extra fields for that wire; None for all others."""
    only = parts[0] if len(parts) == 1 else None
    return only.text if isinstance(only, Text) and not extra_fields(only.extra_json, wire, where) else None


def with_extra(
    written: WireObject, extra_json: str, wire: str, where: str, *, left_out: frozenset[str] = frozenset()
) -> WireObject:
    """Return ``written``, completed by the extra fields for that wire; its own fields win.

    ``left_out`` names fields that have no place here though they are of the same wire. Raises ``InputError`` naming the
    place unless ``extra_json`` is an object of objects.
    """
    extra = extra_fields(extra_json, wire, where)
    return _completed(written, {name: value for name, value in extra.items() if name not in left_out})


def with_options_extra(body: WireObject, options: ChatOptions) -> WireObject:
    """Return a body with ``options.extra``, which wins, save over a choice of no tools: the last round of a tool loop
    has to forbid them, whatever the caller chose."""
    whole = {**body, **options.extra}
    if options.tool_choice == "none" and "tool_choice" in body:
        whole["tool_choice"] = body["tool_choice"]
    return whole


def encoded(value: object) -> str:
    """Return the value as JSON text."""
    return msgspec.json.encode(value).decode()


def no_json(arguments: str) -> WireObject:
    """Return the object that stands for arguments which are none, as those of a call that was cut off: so the model
    sees what it wrote, as Anthropic recommends for fine-grained tool streaming."""
    return {"INVALID_JSON": arguments}


def call_input(arguments: str) -> WireObject:
    """Return a call's arguments as the object that the wire wants.

    ``null`` are no arguments. Those of a call that was cut off are no object: see ``no_json``.
    """
    try:
        return msgspec.json.decode(arguments.strip() or "{}", type=dict[str, object] | None) or {}
    except (msgspec.DecodeError, RecursionError):
        return no_json(arguments)


def json_arguments(arguments: str) -> str:
    """Return the arguments of a call as JSON, as some servers read them, those of a call that was cut off too. Blank
    ones are none."""
    try:
        _skip(arguments)
    except (msgspec.DecodeError, RecursionError):
        return encoded(no_json(arguments)) if arguments.strip() else "{}"
    return arguments


def decoded_object(text: str, where: str) -> WireObject:
    """Return the JSON object in that text. Raises ``InputError`` naming the place if it holds none."""
    try:
        found: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{where}: is not JSON") from error
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected a JSON object, got {type(found).__name__}")
    return cast("WireObject", found)


def decoded_text(text: str) -> str:
    """Return the text of a JSON string; text that is no JSON string is returned as it is."""
    try:
        found: object = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return found if isinstance(found, str) else text


def without_nulls(fields: Mapping[str, object]) -> WireObject:
    """Return the fields without those that are null: the SDKs' objects, dumped, have them for absent ones, and OpenAI
    refuses some."""
    return {name: value for name, value in fields.items() if value is not None}


def as_object(value: object, where: str) -> Mapping[str, object]:
    """Return the value, if it is an object. Raises ``InputError`` naming the place if it is not."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: expected an object, got {type(value).__name__}")
    return cast("Mapping[str, object]", value)


def object_or_empty(value: object) -> WireObject:
    """Return the value, if it is an object; an empty one if it is not."""
    return cast("WireObject", value) if isinstance(value, dict) else {}


def as_list(value: object, where: str) -> list[object]:
    """Return the value, if it is a list. Raises ``InputError`` naming the place if it is not."""
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{where}: expected a list, got {type(value).__name__}")
    return list(cast("list[object]", value))


def as_string(value: object, where: str) -> str:
    """Return the value, if it is text. Raises ``InputError`` naming the place if it is not."""
    if not isinstance(value, str):
        raise InputError(f"{where}: expected text, got {type(value).__name__}")
    return value


def field_of(value: object, name: str) -> object:
    """Return a field of what may be an object; None where there is none."""
    return cast("WireObject", value).get(name) if isinstance(value, Mapping) else None


def objects_in(value: object) -> list[WireObject]:
    """Return the objects in a list, the very same ones; none for any other value, as ``extra`` and answers may hold
    anything."""
    if not isinstance(value, (list, tuple)):
        return []
    # A dict first: for a request of a thousand blocks, the ABC alone takes milliseconds.
    return [cast("WireObject", each) for each in cast("Sequence[object]", value) if isinstance(each, (dict, Mapping))]


def text_in(fields: Mapping[str, object], name: str) -> str:
    """Return the text in a field; "" where there is none."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def fields_missing(original: Mapping[str, object], written: Mapping[str, object]) -> WireObject:
    """Return the fields of ``original`` missing in ``written``; objects in both are compared field by field."""
    missing: WireObject = {}
    for name, value in original.items():
        if name not in written:
            missing[name] = value
        elif isinstance(value, Mapping) and isinstance(written[name], Mapping):
            inner = fields_missing(cast("Mapping[str, object]", value), cast("Mapping[str, object]", written[name]))
            if inner:
                missing[name] = inner
    return missing


def _completed(written: WireObject, extra: Mapping[str, object]) -> WireObject:
    whole = dict(written)
    for name, value in extra.items():
        mine = whole.get(name)
        if name not in whole:
            whole[name] = value
        elif isinstance(mine, dict) and isinstance(value, Mapping):
            whole[name] = _completed(cast("WireObject", mine), cast("Mapping[str, object]", value))
    return whole
