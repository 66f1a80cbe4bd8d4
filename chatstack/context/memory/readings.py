"""Readings: what strategies have read of the conversations edited last, so that the next edit reads what is new."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from weakref import WeakKeyDictionary

from chatstack.context.histories.conversations import Conversation
from chatstack.context.histories.growth import Reading

_SHARE = 16
"""Divisor: the part of the memory's bound that is for readings."""
_WORD_BYTES = 400
"""Estimated bytes kept for a word that is gone: the word, its counts, and its place in the order."""
_MOST = 32
"""Maximum number of conversations."""


class Readings:
    """A bounded LRU cache of readings: one for a conversation, with what else it depends on, and gone with it.

    A reading is with one call at a time: another call of that conversation reads for itself.
    """

    def __init__(self, budget: int, lock: threading.RLock) -> None:
        self._max_bytes = budget // _SHARE
        self._lock = lock
        self._kept: WeakKeyDictionary[Conversation, tuple[Hashable, Reading]] = WeakKeyDictionary()

    @property
    def held_bytes(self) -> int:
        """The estimated size in bytes."""
        if not self._kept:  # read on every call, and few strategies read
            return 0
        with self._lock:
            return sum([_weight_of(reading) for _, reading in self._kept.values()])

    def take(self, conversation: Conversation, terms: Hashable) -> Reading | None:
        """Take out the reading of a conversation; None if there is none."""
        with self._lock:
            kept = self._kept.get(conversation)
            if kept is None or kept[0] != terms:
                return None
            del self._kept[conversation]
        return kept[1]

    def keep(self, conversation: Conversation, terms: Hashable, reading: Reading) -> None:
        """Keep the reading of a conversation, unless it is too large; the least recently used ones are evicted, down to
        the bounds."""
        if _weight_of(reading) > self._max_bytes:
            return
        reading.said.clear()  # its keys are the caller's
        with self._lock:
            self._kept.pop(conversation, None)  # to be the last one
            self._kept[conversation] = (terms, reading)
            while self.held_bytes > self._max_bytes or len(self._kept) > _MOST:
                del self._kept[next(iter(self._kept))]

    def clear(self) -> None:
        """Forget all readings."""
        with self._lock:
            self._kept.clear()


def _weight_of(reading: Reading) -> int:
    return 0 if reading.gone is None else _WORD_BYTES * len(reading.gone)
