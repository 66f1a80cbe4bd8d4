"""Clean-up of received data, before it is interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import msgspec

from chatstack.providers.extras import WireObject
from chatstack.values.surrogates import without_lone_surrogates


def readable(fields: WireObject) -> WireObject:
    """Return the same object with U+FFFD for lone surrogates: JSON can spell them, but nothing can send them.

    Raises ``RecursionError`` for data that nests too deeply to be kept.
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
