"""The context memory: what has been decided and counted, for every conversation of a stack."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import ClassVar, Generic, TypeVar, cast

import msgspec
from msgspec.structs import force_setattr

from chatstack.context.digests import History, digest
from chatstack.errors import WiringError
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions

K = TypeVar("K")
V = TypeVar("V")


class Record(msgspec.Struct, frozen=True):
    """What was decided for one history: which of its messages are left out, stand edited, or follow something of
    ours. Positions are those in the history, without system messages."""

    drop: tuple[int, ...] = ()
    replace: tuple[tuple[int, Message], ...] = ()
    insert: tuple[tuple[int, Message], ...] = ()


class ContextMemory:
    """Remembers decisions, so that they are made once and replayed the same way; bounded, oldest use out first.

    A decision is kept under the digests of the very messages that it was made for, so it applies to whoever sends
    them again, also in fresh objects, and to nobody else: ids of calls or conversations are never enough. A stack has
    one; give one to several stacks to share it. ``max_entries`` bounds each kind of entry.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self, *, max_entries: int = 100_000) -> None:
        if max_entries < 1:
            raise WiringError(f"ContextMemory: max_entries={max_entries} must be greater than 0")
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._records: _Bounded[tuple[str, bytes], Record] = _Bounded(max_entries)
        self._levels: _Bounded[tuple[str, str | bytes], int] = _Bounded(max_entries)
        self._sizes: list[tuple[TokenCounter, _Bounded[object, int]]] = []

    def history_of(self, messages: Sequence[Message]) -> History:
        """The digests by which these messages are recognised."""
        return History.of(messages)

    def size_of(self, message: Message, counter: TokenCounter) -> int:
        """The size of a message by that counter, which is asked once for each distinct message."""
        kept = message.__dict__.get("_size")
        if kept is not None and kept[0] is counter:
            return cast("int", kept[1])
        sizes = self._sizes_by(counter)
        key = digest(message)
        with self._lock:
            known = sizes.get(key)
        if known is None:
            known = max(0, counter.count_message(message))
            with self._lock:
                sizes.put(key, known)
        force_setattr(message, "_size", (counter, known))
        return known

    def options_size(self, options: ChatOptions, counter: TokenCounter) -> int:
        """The size of instructions, tool schemas and answer schema; asked once for each distinct set."""
        sizes = self._sizes_by(counter)
        key = (options.instructions, options.tools, options.output_schema)
        with self._lock:
            known = sizes.get(key)
        if known is None:
            known = max(0, counter.count_options(options))
            with self._lock:
                sizes.put(key, known)
        return known

    @property
    def has_decisions(self) -> bool:
        """Whether anything was decided yet."""
        return bool(self._records)

    def recall(self, owner: str, history: History) -> Record | None:
        """What was last decided for this history, or for the longest beginning of it that is known."""
        with self._lock:
            for link in reversed(history.chain):
                found = self._records.get((owner, link))
                if found is not None:
                    return found
        return None

    def latch(self, owner: str, history: History, record: Record, *, replaces: Record | None = None) -> Record:
        """Keep a decision for this history; ``replaces`` is the one that it was made on top of.

        The first writer wins: whoever finds another record there than the one it replaces gets that one back.
        """
        key = (owner, history.chain[-1])
        with self._lock:
            known = self._records.get(key)
            if known is not None and known != replaces:
                return known
            self._records.put(key, record)
            return record

    def level(self, owner: str, keys: Sequence[str | bytes]) -> int:
        """How far a conversation had come by the last call, as its layer counts; 0 if that is not known.

        ``keys`` are what it is known by, the most telling one first: its id, or the digests of its history.
        """
        with self._lock:
            for key in keys:
                found = self._levels.get((owner, key))
                if found is not None:
                    return found
        return 0

    def set_level(self, owner: str, keys: Sequence[str | bytes], level: int) -> None:
        """Keep how far a conversation has come, under the first of its keys."""
        if keys:
            with self._lock:
                self._levels.put((owner, keys[0]), level)

    def forget(self, *, conversation_id: str | None = None, messages: Sequence[Message] | None = None) -> None:
        """Forget what is kept under a conversation's id, for these messages and every beginning of them, or all."""
        with self._lock:
            if conversation_id is None and messages is None:
                self._records.clear()
                self._levels.clear()
                self._sizes.clear()
                return
            keys: set[str | bytes] = set() if conversation_id is None else {conversation_id}
            if messages is not None:
                keys.update(History.of(messages).chain)
            self._records.drop(key for key in self._records if key[1] in keys)
            self._levels.drop(key for key in self._levels if key[1] in keys)

    def _sizes_by(self, counter: TokenCounter) -> _Bounded[object, int]:
        for known, sizes in self._sizes:
            if known is counter:
                return sizes
        with self._lock:
            del self._sizes[:-7]
            sizes = _Bounded[object, int](self._max_entries)
            self._sizes.append((counter, sizes))
            return sizes

    def __repr__(self) -> str:
        return f"ContextMemory(max_entries={self._max_entries})"


class _Bounded(OrderedDict[K, V], Generic[K, V]):
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
