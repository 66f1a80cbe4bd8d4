"""Sizes: tokens of messages and options, counted once by each counter."""

from __future__ import annotations

import threading
from collections.abc import Callable

from msgspec.structs import force_setattr

from chatstack.context.histories.digests import digest
from chatstack.lru import Lru
from chatstack.tokens.counter import TokenCounter, whole_count
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions

_MOST_PAIRS = 4_096
_COUNTED_EXTRAS = ("thinking", "output_format", "response_format", "functions")


class Sizes:
    """A bounded LRU cache of token counts, by counter."""

    def __init__(self, max_entries: int, lock: threading.RLock) -> None:
        self._max_entries = max_entries
        self._lock = lock
        self._latest: tuple[ChatOptions, TokenCounter, int] | None = None
        self._by_counter: list[tuple[TokenCounter, Lru[object, int]]] = []
        self._pairs: dict[tuple[int, int], tuple[TokenCounter, int]] = {}
        """The pairs that messages keep, one for all of the same size: by the counter's id, and by size."""

    def by(self, counter: TokenCounter) -> Callable[[Message], int]:
        """Return a function that gives the size of a message by that counter. Each message object is counted once; if
        counting costs more than a digest, each distinct message is."""

        def size_of(message: Message) -> int:
            kept: tuple[TokenCounter, int] | None = getattr(message, "_size", None)
            return kept[1] if kept is not None and kept[0] is counter else self._counted(message, counter)

        return size_of

    def _counted(self, message: Message, counter: TokenCounter) -> int:
        if counter.is_cheap:
            known = counter.count_message(message)
            if type(known) is not int or known < 0:
                known = whole_count(counter, "count_message", known)
        else:
            sizes = self._sizes_by(counter)
            key = digest(message)
            with self._lock:
                found = sizes.get(key)
            known = whole_count(counter, "count_message", counter.count_message(message)) if found is None else found
            if found is None:
                with self._lock:
                    sizes.put(key, known)
        pair = self._pairs.get((id(counter), known)) or self._new_pair(counter, known)
        force_setattr(message, "_size", pair)
        return known

    def _new_pair(self, counter: TokenCounter, size: int) -> tuple[TokenCounter, int]:
        if len(self._pairs) >= min(_MOST_PAIRS, self._max_entries):
            self._pairs.clear()
        pair = self._pairs[id(counter), size] = (counter, size)
        return pair

    def options_size(self, options: ChatOptions, counter: TokenCounter) -> int:
        """Return the size of instructions, tool schemas and output schema; counted once for each distinct set."""
        latest = self._latest
        if latest is not None and latest[0] is options and latest[1] is counter:
            return latest[2]
        sizes = self._sizes_by(counter)
        given = (options.instructions, options.tools, options.output_schema, options.tool_choice)
        extras = ""
        if options.extra:  # the extras that counters read; they can be anything, so by their repr
            extras = repr([options.extra.get(name) for name in _COUNTED_EXTRAS])
        key = (hash(given), len(options.instructions or ""), hash(extras))  # not the texts: they may be long, and many
        with self._lock:
            known = sizes.get(key)
        if known is None:
            known = whole_count(counter, "count_options", counter.count_options(options))
            with self._lock:
                sizes.put(key, known)
        if not options.extra:  # extras may hold mutable values
            self._latest = (options, counter, known)
        return known

    def _sizes_by(self, counter: TokenCounter) -> Lru[object, int]:
        for known, sizes in self._by_counter:
            if known is counter:
                return sizes
        with self._lock:
            del self._by_counter[:-7]
            sizes = Lru[object, int](self._max_entries)
            self._by_counter.append((counter, sizes))
            return sizes

    def clear(self) -> None:
        """Clear the cache; the sizes cached on messages stay."""
        self._by_counter.clear()
        self._pairs.clear()
        self._latest = None

    def __len__(self) -> int:
        count = len(self._pairs)
        for _, sizes in self._by_counter:  # asked on every call: a generator would take longer than all else in here
            count += len(sizes)
        return count


def sized(message: Message, tokens: int, counter: TokenCounter) -> Message:
    """Give a message a fixed size by that counter, for a placeholder of a summary that is not written yet."""
    force_setattr(message, "_size", (counter, tokens))
    return message
