"""Mappings that do not grow without end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

_MOST_TERMS = 64
"""A conversation keeps its state for that many layers, models and sets of options; else it is worked out again."""


class Bounded(OrderedDict[K, V], Generic[K, V]):
    """A mapping that forgets what was not used for longest."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def get(self, key: K) -> V | None:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        found = super().get(key)
        if found is not None:
            self.move_to_end(key)
        return found

    def put(self, key: K, value: V) -> None:
        self[key] = value
        self.move_to_end(key)
        while len(self) > self._max_entries:
            self.popitem(last=False)

    def drop(self, keys: Iterable[K]) -> None:
        for key in list(keys):
            del self[key]


def put_term(entries: dict[K, V], term: K, value: V) -> None:
    """Put an entry of a conversation under what it depends on; where there are too many of others, these go."""
    if term not in entries and len(entries) >= _MOST_TERMS:
        entries.clear()
    entries[term] = value
