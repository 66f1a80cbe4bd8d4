"""Digests: how a history is recognised when it comes again, in the same objects or in fresh ones."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import msgspec
from msgspec.structs import force_setattr

from chatstack.values.messages import Message

_SIZE = 16
_encode = msgspec.msgpack.Encoder().encode


def digest(message: Message) -> bytes:
    """A digest of what the message is on the wire, and of its pin; worked out once per object, and kept on it.

    A message that is pinned later is another one: what was decided about it before must not be replayed.
    """
    known = message.__dict__.get("_digest")
    if known is not None:
        return cast("bytes", known)
    found = hashlib.blake2b(
        _encode((message.role, message.parts, message.extra_json, message.pinned)), digest_size=_SIZE
    ).digest()
    force_setattr(message, "_digest", found)
    return found


@dataclass(frozen=True, slots=True)
class History:
    """The conversation inside a list of messages: all but the system messages, which may change from call to call.

    ``positions`` are theirs in the list; ``chain[i]`` stands for the first ``i + 1`` of them, and for nothing else.
    """

    positions: tuple[int, ...]
    chain: tuple[bytes, ...]

    @classmethod
    def of(cls, messages: Sequence[Message], key: bytes = b"") -> History:
        """Digest a list of messages; a ``key`` makes digests that say nothing to whoever has not got it."""
        positions = tuple(position for position, message in enumerate(messages) if message.role != "system")
        link = hashlib.blake2b(b"", digest_size=_SIZE, key=key).digest()
        chain: list[bytes] = []
        for position in positions:
            link = hashlib.blake2b(link + digest(messages[position]), digest_size=_SIZE, key=key).digest()
            chain.append(link)
        return cls(positions, tuple(chain))
