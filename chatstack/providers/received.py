"""What a provider sent, before anything is made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from chatstack.providers.extras import WireObject
from chatstack.values.surrogates import without_lone_surrogates


def readable(fields: WireObject) -> WireObject:
    """The same object, with U+FFFD in place of halves of characters: JSON can spell them, and nothing can send them.

    Raises ``RecursionError`` for what nests too deeply to be kept.
    """
    try:
        msgspec.json.encode(fields)
    except UnicodeEncodeError:
        return cast("WireObject", _whole(fields))
    return fields


def _whole(value: object) -> object:
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {without_lone_surrogates(name): _whole(each) for name, each in items}
    if isinstance(value, list):
        return [_whole(each) for each in cast("list[object]", value)]
    return value
