"""An LRU cache: a mapping of bounded size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Lru(OrderedDict[K, V], Generic[K, V]):
    """A mapping of at most ``max_entries``: the least recently used one makes room. Locking is up to its owner.

    ``get`` and ``put`` count as use; ``peek``, ``pop`` and the subscript do not. A value is never None.
    """

    peek = OrderedDict[K, V].get
    """Return a value without marking it as used, so that no lock is needed."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def get(self, key: K) -> V | None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        found = self.peek(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        """Set a value, and mark it as used."""
        self[key] = value
        self.move_to_end(key)
        if len(self) > self._max_entries:
            self.popitem(last=False)

    def drop(self, keys: Iterable[K]) -> None:
        """Remove all of these, each of which is there."""
        for key in list(keys):
            del self[key]
