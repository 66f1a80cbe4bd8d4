"""The context memory: what has been decided and counted, for every conversation of a stack."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, cast

from msgspec.structs import force_setattr

from chatstack.context.bounded import Bounded
from chatstack.context.digests import digest
from chatstack.context.history import Recognised, Recogniser
from chatstack.context.records import Decision, Record, covered
from chatstack.context.sharing import DecisionStore, SharedDecisions
from chatstack.errors import WiringError
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions

MOST_TERMS = 64
"""A history keeps what it was found by last under that many terms (layers, limits, tools); else it looks again."""
_COUNTED_EXTRAS = ("thinking", "output_format", "response_format", "functions")


class ContextMemory:
    """Remembers decisions, so that they are made once and replayed the same way; bounded, oldest use out first.

    A decision is kept under the digests of the very messages that it was made for, so it applies to whoever sends
    them again, also in fresh objects, and to nobody else: ids of calls or conversations are never enough. A stack has
    one; give one to several stacks to share it. ``max_entries`` bounds each kind of entry, ``max_messages`` how many
    messages of the conversations that went by last it holds on to, to know them again without digesting them. Threads
    may share it; a process that forks while others use it makes a new one.

    With a ``store``, processes share decisions, under digests that only those who know the ``scope`` can make. Each
    question to it (one of every context layer in every call, and one more for an edit) waits ``store_timeout_seconds``
    at most; then the call goes on without it.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(
        self,
        *,
        max_entries: int = 100_000,
        max_messages: int = 100_000,
        clock: Callable[[], float] = time.monotonic,
        store: DecisionStore | None = None,
        scope: str = "",
        store_timeout_seconds: float = 0.25,
    ) -> None:
        for name, given in (("max_entries", max_entries), ("max_messages", max_messages)):
            if type(given) is not int or given < 1:
                raise WiringError(f"ContextMemory: {name}={given} must be greater than 0", parameter=name)
        if (store is None) != (not scope):
            raise WiringError(
                f"ContextMemory: scope={scope!r} must name whose decisions these are (a tenant), where a store is "
                "shared, and nothing else",
                parameter="scope",
            )
        self.shared = None if store is None else SharedDecisions(store, timeout_seconds=store_timeout_seconds)
        """The decisions of other processes, if there is a store of them."""
        self.clock = clock
        """Seconds, from anywhere: by it a provider's cache is known to have run out."""
        self._max_entries = max_entries
        self._lock = threading.Lock()
        self._records: Bounded[tuple[str, bytes], Record] = Bounded(max_entries)
        self._deciders: set[str] = set()
        """Who has decided anything: nobody else needs a digest."""
        self._edition = 0
        self._editions: Bounded[bytes, int] = Bounded(max_entries)
        """What the edition was when something was last decided for a conversation that begins with that link."""
        self._levels: Bounded[tuple[str, str | bytes], int] = Bounded(max_entries)
        self._sizes: list[tuple[TokenCounter, Bounded[object, int]]] = []
        self._recogniser = Recogniser(_key_of(scope), max_messages)

    def recognise(self, messages: Sequence[Message]) -> Recognised:
        """What is known of these messages: the history that they continue, or a new one."""
        return self._recogniser.recognise(tuple(messages))

    def size_of(self, message: Message, counter: TokenCounter) -> int:
        """The size of a message by that counter, which is asked once for each message; for each distinct one, if
        asking costs more than telling whether it is."""
        kept = message.__dict__.get("_size")
        if kept is not None and kept[0] is counter:
            return cast("int", kept[1])
        if counter.is_cheap:
            known = max(0, counter.count_message(message))
        else:
            sizes = self._sizes_by(counter)
            key = digest(message)
            with self._lock:
                found = sizes.get(key)
            known = max(0, counter.count_message(message)) if found is None else found
            if found is None:
                with self._lock:
                    sizes.put(key, known)
        force_setattr(message, "_size", (counter, known))
        return known

    def options_size(self, options: ChatOptions, counter: TokenCounter) -> int:
        """The size of instructions, tool schemas and answer schema; asked once for each distinct set."""
        sizes = self._sizes_by(counter)
        key: tuple[object, ...] = (options.instructions, options.tools, options.output_schema, options.tool_choice)
        if options.extra:  # what a counter may look at there: it can be anything, so by how it is written
            key += tuple(repr(options.extra.get(name)) for name in _COUNTED_EXTRAS)
        with self._lock:
            known = sizes.get(key)
        if known is None:
            known = max(0, counter.count_options(options))
            with self._lock:
                sizes.put(key, known)
        return known

    def recall(self, owner: str, seen: Recognised) -> Decision:
        """What was last decided for this history, or for the longest beginning of it that is known."""
        history, length = seen.history, seen.length
        known = history.decisions.get(owner)
        if owner not in self._deciders:  # whoever never decided anything has nothing digested for it
            decision = Decision(None, 0, length, -1)
        else:
            edition = self._editions.get(history.links(1)[0]) or 0
            if known is not None and known.edition == edition and known.length == length:
                return known
            known = known if known is not None and known.length <= length else None
            decision = self._looked_up(owner, seen, known, edition)
        if len(history.decisions) >= MOST_TERMS:
            history.decisions.clear()
        history.decisions[owner] = decision
        return decision

    def latch(
        self,
        owner: str,
        seen: Recognised,
        record: Record,
        *,
        replaces: Record | None = None,
        covers: int | None = None,
    ) -> Record:
        """Keep a decision for this history, or for that many of its messages; by itself as far as it is ``covered``.
        ``replaces`` is what it was made on top of.

        The first writer wins: whoever finds another record there than the one it replaces gets that one back.
        """
        covers = covers or covered(record, seen.history.messages[: seen.length])
        key = (owner, seen.links[covers - 1])
        with self._lock:
            known = self._records.get(key)
            if known is not None and known != replaces:
                return known
            self._put(*key, record, seen.links[0])
            return record

    def adopt(self, owner: str, seen: Recognised, record: Record, covers: int) -> Decision:
        """Take over another process's decision about the first ``covers`` messages of this history."""
        link = seen.links[covers - 1]
        with self._lock:
            self._put(owner, link, record, seen.links[0])
        return self.recall(owner, seen)

    def level(self, owner: str, who: str | Recognised) -> int:
        """How far a conversation had come by the last call, as its layer counts; 0 if that is not known.

        It is known by its id, or, without one, by its history or the longest beginning of it.
        """
        if isinstance(who, str):
            with self._lock:
                return self._levels.get((owner, who)) or 0
        levels = who.history.levels
        if owner not in levels:
            levels[owner] = self._level_of_beginning(owner, who) if self._levels else 0
        return levels[owner]

    def set_level(self, owner: str, who: str | Recognised, level: int) -> None:
        """Keep how far a conversation has come."""
        if not isinstance(who, str):
            who.history.levels[owner] = level
        key = who if isinstance(who, str) else who.links[who.length - 1]
        with self._lock:
            self._levels.put((owner, key), level)

    def raise_level(self, owner: str, who: str | Recognised, level: int) -> bool:
        """Whether a conversation has come further than ever; then that is kept."""
        if self.level(owner, who) >= level:
            return False
        self.set_level(owner, who, level)
        return True

    def forget(self, *, conversation_id: str | None = None, messages: Sequence[Message] | None = None) -> None:
        """Forget what is kept under a conversation's id, for these messages and every beginning of them, or all."""
        keys: set[str | bytes] = set() if conversation_id is None else {conversation_id}
        if messages is not None:
            seen = self.recognise(messages)
            keys.update(seen.links[: seen.length])
        self._recogniser.clear()
        with self._lock:
            self._edition += 1
            if conversation_id is None and messages is None:
                self._records.clear()
                self._editions.clear()
                self._deciders.clear()
                self._levels.clear()
                self._sizes.clear()
                return
            self._records.drop(key for key in self._records if key[1] in keys)
            self._levels.drop(key for key in self._levels if key[1] in keys)

    def _put(self, owner: str, link: bytes, record: Record, root: bytes) -> None:
        """Keep a record; the lock is held."""
        self._records.put((owner, link), record)
        if len(self._deciders) >= self._max_entries:
            self._deciders = {each for each, _ in self._records}
        self._deciders.add(owner)
        self._edition += 1
        self._editions.put(root, self._edition)

    async def forget_stored(self, messages: Sequence[Message]) -> None:
        """Forget these messages and every beginning of them, here and in the store. Raises what the store raises."""
        seen = self.recognise(messages)
        links = list(seen.links[: seen.length])
        self.forget(messages=messages)
        if self.shared is not None and links:
            await self.shared.forget(links)

    async def aclose(self) -> None:
        """Close the store, if there is one. Decisions stay in it."""
        if self.shared is not None:
            await self.shared.aclose()

    def _looked_up(self, owner: str, seen: Recognised, known: Decision | None, edition: int) -> Decision:
        """Look for a record that covers more than what is known, newest first."""
        links = seen.links
        record, covers, least = None, 0, 0
        if known is not None:
            record, covers = known.record, known.covers
            # What was found for the old length was found in all of it, unless something was decided since.
            least = known.length if known.edition == edition else max(0, covers - 1)
        with self._lock:
            for at in range(seen.length - 1, least - 1, -1):
                found = self._records.get((owner, links[at]))
                if found is not None:
                    record, covers = found, at + 1
                    break
            else:
                if record is not None:
                    self._records.touch((owner, links[covers - 1]))
        decision = Decision(record, covers, seen.length, edition)
        if known is not None and known.record is record:
            decision.saved = known.saved
        return decision

    def _level_of_beginning(self, owner: str, who: Recognised) -> int:
        links = who.links
        with self._lock:
            for at in range(who.length - 1, -1, -1):
                found = self._levels.get((owner, links[at]))
                if found is not None:
                    return found
        return 0

    def _sizes_by(self, counter: TokenCounter) -> Bounded[object, int]:
        for known, sizes in self._sizes:
            if known is counter:
                return sizes
        with self._lock:
            del self._sizes[:-7]
            sizes = Bounded[object, int](self._max_entries)
            self._sizes.append((counter, sizes))
            return sizes

    def __repr__(self) -> str:
        shared = f", shared={self.shared!r}" if self.shared is not None else ""
        return f"ContextMemory(max_entries={self._max_entries}{shared})"


def _key_of(scope: str) -> bytes:
    return hashlib.blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=32).digest() if scope else b""
