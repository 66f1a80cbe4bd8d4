"""What a tool returned, in the form in which a model gets it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeAlias, cast

import msgspec
from msgspec.structs import replace

from chatstack.values.parts import File, Image, ProviderItem, Text
from chatstack.values.surrogates import without_lone_surrogates

Output: TypeAlias = str | tuple[Text | Image | File | ProviderItem, ...]


def output_of(value: object) -> Output:
    """Text as it is, parts as they are, anything else as JSON; halves of characters (file names!) as U+FFFD.

    Raises ``TypeError`` or ``ValueError`` for what cannot be written as JSON.
    """
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if value is None:
        return ""
    if isinstance(value, Text | Image | File):
        return (_clean(value),)
    return _parts(value) or _json(value)


def _parts(value: object) -> tuple[Text | Image | File, ...]:
    """A list of nothing but parts, or an empty tuple."""
    if not isinstance(value, list | tuple):
        return ()
    items = cast("Sequence[object]", value)
    parts = tuple(_clean(each) for each in items if isinstance(each, Text | Image | File))
    return parts if len(parts) == len(items) else ()


def _json(value: object) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=_plain).decode()
    except UnicodeEncodeError:
        plain: object = msgspec.to_builtins(value, str_keys=True, enc_hook=_plain)
        return without_lone_surrogates(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))


def _plain(value: object) -> object:
    """What msgspec does not know: pydantic models say themselves what they are as JSON."""
    dump = getattr(value, "model_dump", None)
    if not callable(dump) or isinstance(value, type):
        raise TypeError(f"a {type(value).__name__} cannot be written as JSON")
    plain: object = dump(mode="json")
    return plain


def _clean(part: Text | Image | File) -> Text | Image | File:
    if isinstance(part, Text):
        text = without_lone_surrogates(part.text)
        return part if text is part.text else replace(part, text=text)
    if isinstance(part, File):
        text, name = without_lone_surrogates(part.text), without_lone_surrogates(part.name)
        return part if text is part.text and name is part.name else replace(part, text=text, name=name)
    return part
