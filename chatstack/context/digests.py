"""Digests: how a history is recognised in another process, or when it was forgotten here."""

from __future__ import annotations

import hashlib
import json
from typing import cast

import msgspec
from msgspec.structs import force_setattr

from chatstack.values.messages import Message

_SIZE = 16
_pack = msgspec.msgpack.Encoder().encode
_blake2b = hashlib.blake2b


def written(value: object) -> bytes:
    """A value as bytes, the same ones in every process; also where text in it has half a character."""
    try:
        return _pack(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def digest(message: Message) -> bytes:
    """A digest of what the message is on the wire, and of its pin; worked out once per object, and kept on it.

    A message that is pinned later is another one: what was decided about it before must not be replayed.
    """
    known = message.__dict__.get("_digest")
    if known is not None:
        return cast("bytes", known)
    found = _blake2b(
        written((message.role, message.parts, message.extra_json, message.pinned)), digest_size=_SIZE
    ).digest()
    force_setattr(message, "_digest", found)
    return found


def first_link(key: bytes) -> bytes:
    """Where a chain begins; a ``key`` makes digests that say nothing to whoever has not got it."""
    return _blake2b(b"", digest_size=_SIZE, key=key).digest()


def next_link(link: bytes, message: Message, key: bytes) -> bytes:
    """The link that stands for all messages up to this one, and for nothing else."""
    return _blake2b(link + digest(message), digest_size=_SIZE, key=key).digest()
