"""Conversions of another framework's messages, each done once: an agent hands over its whole history on each call."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from chatstack.lru import Lru

R = TypeVar("R")
T = TypeVar("T")

_ENCODER = msgspec.msgpack.Encoder()  # JSON has one spelling for null and NaN


class Conversions(Generic[R, T]):
    """An intern table: equal messages of another framework's are converted to the same objects of ours.

    Layers then recognise a history by identity. ``content_of`` gives all that ``convert`` reads of a message, as data:
    it is encoded and hashed, so a message that somebody changes in place is another one, and one that a checkpoint
    restores is the same. What cannot be encoded is converted each time. ``max_bytes`` bounds the encoded size of what
    is kept: 64 MB are the histories of a few hundred long conversations. Threads may share a table.
    """

    def __init__(
        self, convert: Callable[[R], T], content_of: Callable[[R], object], *, max_bytes: int = 64_000_000
    ) -> None:
        self._convert = convert
        self._content_of = content_of
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: Lru[bytes, tuple[T, int]] = Lru(max_bytes)
        self._lock = threading.Lock()

    def of(self, message: R) -> T:
        """Return the conversion of a message. Raises what ``convert`` does."""
        try:
            content = _ENCODER.encode(self._content_of(message))
        except (TypeError, ValueError, OverflowError, RecursionError):
            return self._convert(message)
        key = hashlib.blake2b(content, digest_size=16).digest()
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known[0]
        made = self._convert(message)
        with self._lock:
            first = self._known.get(key)
            if first is not None:  # another thread was faster
                return first[0]
            self._known.put(key, (made, len(content)))
            self._bytes += len(content)
            while self._bytes > self._max_bytes:
                self._bytes -= self._known.popitem(last=False)[1][1]
        return made
