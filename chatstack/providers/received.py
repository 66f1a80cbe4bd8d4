"""Clean-up of received data, before it is interpreted."""

from __future__ import annotations

from typing import cast

import msgspec

from chatstack.providers.extras import WireObject
from chatstack.values.surrogates import plain_without_lone_surrogates


def readable(fields: WireObject) -> WireObject:
    """Return the same object with U+FFFD for lone surrogates: JSON can spell them, but nothing can send them.

    Raises ``RecursionError`` for data that nests too deeply to be kept.
    """
    try:
        msgspec.json.encode(fields)
    except UnicodeEncodeError:
        return cast("WireObject", plain_without_lone_surrogates(fields))
    return fields
