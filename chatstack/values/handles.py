"""Handles: short names of tool results."""

from __future__ import annotations

import hashlib
import json

import msgspec

from chatstack.values.parts import ToolResult

_pack = msgspec.msgpack.Encoder().encode


def written(value: object) -> bytes:
    """Serialize a value to bytes, the same in every process; text may contain a lone surrogate."""
    try:
        return _pack(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def handle_of(result: ToolResult) -> str:
    """Return a short name of a result, a hash of its content and call id: the same in every process."""
    return hashlib.blake2b(written(result), digest_size=5).hexdigest()
