"""Records that are put into a store: those under way, and those that it did not take, which are put again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from typing import NamedTuple

_MOST = 10_000
_MOST_BYTES = 8_000_000
_ENTRY_BYTES = 400
"""Estimated bytes of an entry beside its record."""


class Entry(NamedTuple):
    """A record to put, and the link from which it is to be reached when that is forgotten."""

    owner: str
    link: bytes
    record: bytes
    under: bytes


class Unkept:
    """A queue, bounded in entries and in bytes: the oldest are dropped. Works from several threads."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()
        self._under_way: list[Entry] = []
        self._bytes = 0
        self._lock = threading.Lock()

    def begin(self, entry: Entry) -> None:
        """Note that an entry is being put."""
        with self._lock:
            self._under_way.append(entry)

    def end(self, entry: Entry, *, is_kept: bool) -> bool:
        """End that, and add the entry if it is not kept. Return False if it was forgotten meanwhile."""
        with self._lock:
            if entry not in self._under_way:
                return False
            self._under_way.remove(entry)
        if not is_kept:
            self.add(entry)
        return True

    def add(self, entry: Entry) -> None:
        """Add one at the end."""
        with self._lock:
            self._entries.append(entry)
            self._bytes += _size_of(entry)
            while len(self._entries) > _MOST or self._bytes > _MOST_BYTES:
                self._bytes -= _size_of(self._entries.popleft())

    def take(self) -> Entry | None:
        """Take out the oldest one; None if there is none."""
        with self._lock:
            if not self._entries:
                return None
            entry = self._entries.popleft()
            self._bytes -= _size_of(entry)
            return entry

    def forget(self, links: Collection[bytes] | None = None) -> None:
        """Drop those under these links, or reached from them, or all."""
        with self._lock:
            kept, self._under_way = (
                [] if links is None else [e for e in entries if e.link not in links and e.under not in links]
                for entries in (self._entries, self._under_way)
            )
            self._entries = deque(kept)
            self._bytes = sum(map(_size_of, kept))

    def __len__(self) -> int:
        return len(self._entries)


def _size_of(entry: Entry) -> int:
    return len(entry.record) + _ENTRY_BYTES
