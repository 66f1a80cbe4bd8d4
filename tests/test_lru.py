"""The LRU cache: what counts as use, and what makes room."""

from __future__ import annotations

from chatstack.lru import Lru


def full() -> Lru[str, int]:
    cache: Lru[str, int] = Lru(3)
    for value, key in enumerate("abc"):
        cache.put(key, value)
    return cache


def test_the_least_recently_used_entry_makes_room() -> None:
    cache = full()
    assert cache.get("a") == 0
    cache.put("b", 7)
    cache.put("d", 3)
    assert dict(cache) == {"a": 0, "b": 7, "d": 3}


def test_a_peek_is_no_use() -> None:
    cache = full()
    assert cache.peek("a") == 0
    cache.put("d", 3)
    assert cache.peek("a") is None
    assert cache.get("a") is None


def test_entries_can_be_taken_out() -> None:
    cache = full()
    assert cache.pop("a") == 0
    cache.drop(key for key in cache if key != "b")
    assert dict(cache) == {"b": 1}
