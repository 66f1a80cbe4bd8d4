"""Conversion of a tool's return value into the form that a model gets."""

from __future__ import annotations

import json
import math
from collections import UserString
from collections.abc import Iterable, Mapping, MappingView, Sequence, Set
from pathlib import PurePath
from typing import TypeAlias, cast

import msgspec
from msgspec.structs import replace

from chatstack.errors import InputError, ToolError
from chatstack.values.parts import File, Image, ProviderItem, Text, check_media
from chatstack.values.surrogates import without_lone_surrogates

_BYTES = (bytes, bytearray, memoryview)

_MEDIA = ('"type":"image"', '"type":"file"')
"""Marks of a picture or a file in JSON, so that a result is searched only where there may be one."""

_MANY = 3_000
"""Number of values that take some milliseconds to be written."""
_CONTAINERS = (list, tuple, set, frozenset)
_SCALARS = (str, int, float, bool, type(None))

Output: TypeAlias = str | tuple[Text | Image | File | ProviderItem, ...]


class UnwritableError(ToolError, TypeError):
    """A value of a type for which JSON has no form. Says which type, never what is in it."""


def output_of(value: object) -> Output:
    """Return text, paths and parts as they are, anything else as JSON; lone surrogates (file names!) become U+FFFD.

    Raises ``ToolError``, which the model reads, for a value that JSON has no form for or would change (bytes, and
    numbers that are not finite), and for a picture or file that no provider would take: as part of the history, it
    would have every later request refused. What the value itself raises when it is read comes through.
    """
    if isinstance(value, PurePath | UserString):
        value = str(value)
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if value is None:
        return ""
    if isinstance(value, Text | Image | File):
        return (_clean(value),)
    return _parts(value) or _json(value)


def _parts(value: object) -> tuple[Text | Image | File, ...]:
    """Return the items of a list that holds only parts, or parts and texts beside them; else an empty tuple."""
    if not isinstance(value, list | tuple):
        return ()
    items = cast("Sequence[object]", value)
    if not any(isinstance(each, Text | Image | File) for each in items):
        return ()
    parts = [Text(each) if isinstance(each, str) else each for each in items]
    found = tuple(_clean(each) for each in parts if isinstance(each, Text | Image | File))
    return found if len(found) == len(items) else ()


def _json(value: object) -> str:
    plain: object = msgspec.to_builtins(value, str_keys=True, builtin_types=_BYTES, enc_hook=plain_model)
    _refuse_changed(plain)
    try:
        text = msgspec.json.encode(plain).decode()
    except UnicodeEncodeError:
        return without_lone_surrogates(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))
    if any(tag in text for tag in _MEDIA) and _holds_media(value):
        raise ToolError(
            "The result holds a picture or a file within another value, where its bytes would be read as text; "
            "the tool must return a list of parts and texts instead."
        )
    return text


def _refuse_changed(plain: object) -> None:
    """Raise ``ToolError`` for what msgspec silently writes as something else: bytes as base64, and NaN as null."""
    left = [plain]
    while left:
        each = left.pop()
        kind = type(each)
        if kind is dict:
            left += cast("dict[str, object]", each).values()
        elif kind in _CONTAINERS:
            left += cast("Iterable[object]", each)
        elif kind is float and not math.isfinite(cast("float", each)):
            raise ToolError(
                "The result holds a number that is not finite (NaN or infinite), for which JSON has no form; the tool "
                "must return null or a text instead."
            )
        elif kind in _BYTES:
            raise ToolError(
                f"The result holds {kind.__name__}, for which JSON has no form; the tool must return text, or "
                "Image.from_bytes(...) or File.from_bytes(...)."
            )


def is_large(value: object) -> bool:
    """Return True if a value holds so many others that to write them would hold up an event loop. It looks into
    Python's own containers, and at the attributes of objects in them."""
    left = [value]
    for each in left:
        if len(left) > _MANY:
            return True
        kind = type(each)
        if kind is dict:
            left += cast("dict[object, object]", each).values()
        elif kind in _CONTAINERS:
            left += cast("Iterable[object]", each)
        elif kind not in _SCALARS:
            left += getattr(each, "__dict__", {}).values()
    return False


def _holds_media(value: object) -> bool:
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, Image | File):
            return True
        if isinstance(each, str | int | float | None):
            continue
        if isinstance(each, Mapping):
            left += cast("Mapping[object, object]", each).values()
        elif _is_list(each):
            left += cast("Iterable[object]", each)
        else:
            fields = getattr(each, "__struct_fields__", None) or getattr(each, "__dataclass_fields__", ())
            left += [getattr(each, name, None) for name in cast("Iterable[str]", fields)]
    return False


def _is_list(value: object) -> bool:
    """Return True for whatever has items in an order, and for sets; not for a sequence of characters or bytes."""
    return isinstance(value, Sequence | Set | MappingView) and not isinstance(value, (str, UserString, *_BYTES))


def plain_model(value: object) -> object:
    """Return a pydantic model as plain JSON values, a path as text, and numbers, arrays, mappings and sequences of
    other types as Python's own.

    Raises ``UnwritableError`` for anything else that msgspec does not know.
    """
    for name, options in (("model_dump", {"mode": "json"}), ("tolist", {})):
        convert = getattr(value, name, None)
        if callable(convert) and not isinstance(value, type):
            plain: object = convert(**options)
            return plain
    if isinstance(value, str):  # subclasses, which msgspec does not take
        return str.__str__(value)
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) else int(value)
    if isinstance(value, PurePath | UserString):
        return str(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if _is_list(value):
        return list(cast("Iterable[object]", value))
    raise UnwritableError(
        f"In the result, a {type(value).__name__} cannot be written as JSON; the tool must return text or plain values "
        "instead."
    )


def _clean(part: Text | Image | File) -> Text | Image | File:
    if isinstance(part, Text):
        text = without_lone_surrogates(part.text)
        return part if text is part.text else replace(part, text=text)
    try:
        check_media(part)
    except InputError as error:
        raise ToolError(f"The result cannot be sent: {error}.") from error
    if isinstance(part, File):
        text, name = without_lone_surrogates(part.text), without_lone_surrogates(part.name)
        return part if text is part.text and name is part.name else replace(part, text=text, name=name)
    return part
