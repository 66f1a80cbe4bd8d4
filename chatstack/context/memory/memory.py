"""The context memory: decisions and sizes, for all conversations of a stack."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar

from chatstack.client.checks import OwnCopy
from chatstack.client.options import PositiveFloat, PositiveInt, check_arguments, check_value
from chatstack.context.edits.records import Record
from chatstack.context.histories.choices import Bound, lengths_before_answer
from chatstack.context.histories.conversations import NOTHING_CHOSEN, Chosen, term_in, with_term
from chatstack.context.histories.derived import Derived
from chatstack.context.histories.history import History
from chatstack.context.histories.names import Names
from chatstack.context.histories.own_past import OwnPast
from chatstack.context.histories.recognised import Recognised
from chatstack.context.histories.recognising import Recogniser, leading_systems
from chatstack.context.histories.sizes import Sizes
from chatstack.context.memory.entries import Entries
from chatstack.context.memory.forgetting import answer_links, found_under, links_of
from chatstack.context.memory.readings import Readings
from chatstack.context.memory.sharing import DecisionStore, SharedDecisions
from chatstack.errors import WiringError
from chatstack.lru import Lru
from chatstack.tokens.caching import seconds_since_boot
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.mistakes import checked_messages
from chatstack.values.requests import ChatOptions

_MEGABYTE = 1_000_000
_SMALL_SHARE = 8
"""Divisor: an eighth of the bound in bytes is for small entries (warning levels, sizes) of ``_SMALL_BYTES`` each."""
_SMALL_BYTES = 300
_ADDED_BYTES = 20 * _SMALL_BYTES
"""Room for the small entries that a call adds, before the next one evicts anything."""
_PAST_BYTES = 400


class ContextMemory(OwnCopy):
    """A bounded LRU cache of choices and artifacts, so that they are made once.

    A *choice* (messages left out or edited) is kept under the answer that was given under it, and applies only to a
    history with this answer, of the same conversation id or with the same system message and instructions. An
    *artifact* (a summary) is kept under exactly the messages it is about, and is reused for exactly these. An id alone
    is never enough. A stack has one memory; give one to several stacks to share it.

    ``max_megabytes`` bounds all that it holds, the messages of recent conversations included; ``max_messages`` bounds
    these, too, and ``max_entries`` each kind of small entry. A conversation is evicted as a whole, with its choices and
    summaries; when it comes again, it is a new one, or is restored from the store. Threads may share a memory; a
    process that forks while other threads use it needs a new one.

    With a ``store``, processes share choices and artifacts, under digests that only holders of the ``scope`` can
    compute. Each query (one per context layer and call, a few more for an edit) waits at most
    ``store_timeout_seconds``; then the call goes on without it.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(
        self,
        *,
        max_megabytes: PositiveFloat = 256,
        max_entries: PositiveInt = 100_000,
        max_messages: PositiveInt = 100_000,
        clock: Callable[[], float] = seconds_since_boot,
        store: DecisionStore | None = None,
        scope: str = "",
        store_timeout_seconds: PositiveFloat = 0.25,
    ) -> None:
        bounds = {"max_megabytes": max_megabytes, "max_entries": max_entries, "max_messages": max_messages}
        others = {"clock": clock, "scope": scope, "store_timeout_seconds": store_timeout_seconds}
        check_arguments(ContextMemory, **bounds, **others)
        if (store is None) != (not scope):
            told = "must name whose decisions the store holds: a tenant, or an app"
            if store is None:
                told = "names whose decisions a store holds, and there is none: pass store=... as well"
            raise WiringError(f"ContextMemory: scope={scope!r} {told}", parameter="scope")
        self.shared = None if store is None else SharedDecisions(store, timeout_seconds=store_timeout_seconds)
        """The choices and artifacts shared with other processes, if there is a store."""
        self.clock = clock
        """A monotonic clock in seconds, to tell when a provider's cache has expired."""
        self._max_megabytes = max_megabytes
        self._key = hashlib.blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=32).digest() if scope else b""
        self._lock = threading.RLock()
        self.deciders: set[str] = set()
        """The places of layers that have made a choice: for others, no digest is computed."""
        self._edition = self._forgets = self._evicted = 0
        budget = int(max_megabytes * _MEGABYTE)
        self._small = max(1, min(max_entries, budget // _SMALL_SHARE // _SMALL_BYTES))
        self._editions: Lru[bytes, int] = Lru(self._small)
        """The edition at which a conversation that begins with that link last got a choice."""
        self._levels: Lru[tuple[str, str | bytes], int] = Lru(self._small)
        self._leveled: set[int] = set()
        """The lengths of histories that have got a level: others are not looked up."""
        self.names = Names(self._key, self._small, self._lock)
        self._sizes = Sizes(self._small, self._lock)
        self.past = OwnPast(max(1, min(10_000, self._small // 4)), self._lock)
        """The past of conversations, for those that go on from it."""
        self._recogniser = Recogniser(
            self._key,
            max_messages,
            max_bytes=lambda: budget - self._small_bytes() - _ADDED_BYTES,
            lock=self._lock,
            past=self.past,
            on_evicted=self._let_go,
        )
        self._entries = Entries(self._recogniser.weigh, budget, self._lock)
        self.derived = Derived(self._recogniser.weigh, self.past, self._lock)
        self.readings = Readings(budget, self._lock)

    # Conversations

    def recognise(
        self, messages: Sequence[Message], conversation_id: str | None = None, instructions: str | None = None
    ) -> Recognised:
        """Recognise the history that these messages continue, or make a new one."""
        names, messages = self.names, tuple(messages)
        head = leading_systems(messages)
        who = names.by_head(messages[:head], instructions) if conversation_id is None else names.by_id(conversation_id)
        return self._recogniser.recognise(messages, head, who)

    def sizes_by(self, counter: TokenCounter) -> Callable[[Message], int]:
        """Return a function that gives the size of a message by that counter. See ``Sizes``."""
        return self._sizes.by(counter)

    def options_size(self, options: ChatOptions, counter: TokenCounter) -> int:
        """Return the size of instructions, tool schemas and output schema; counted once for each distinct set."""
        return self._sizes.options_size(options, counter)

    # Choices

    def chosen(
        self, place: str, seen: Recognised, others: Callable[[], tuple[str, ...]] = tuple, *, beyond: int = 0
    ) -> Chosen:
        """Return the choice of the newest answer in this history that has one; ``others`` are further names of the same
        conversation. Only answers to requests of at least ``beyond`` messages are considered."""
        if place not in self.deciders:
            return NOTHING_CHOSEN
        length, conversation, links = seen.length, seen.conversation, seen.history.links(seen.length)
        known = term_in(conversation.choices, place) or NOTHING_CHOSEN
        with self._lock:
            edition = self._editions.get(links.first) or 0
        if known.edition == edition and known.length == length:
            return known
        if beyond:
            known = Chosen(None, 0, beyond, edition)
        elif known.length > length:
            known = NOTHING_CHOSEN
        # The last search covered all of the old length, unless a choice was made since.
        least = known.length if known.edition == edition else max(0, known.covers - 1)
        found = self._entries.newest_choice(place, (seen.who, *others()), links, range(least + 1, length + 1))
        record, covers = found or (known.record, known.covers)
        chosen = Chosen(record, covers, length, edition)
        if not beyond:
            conversation.choices = with_term(conversation.choices, place, chosen)
        return chosen

    def choose(
        self, place: str, seen: Recognised, record: Record, said: Message, whos: Iterable[str], ends: Sequence[int] = ()
    ) -> list[Bound]:
        """Keep the edits that an answer was given under, for each name of the conversation.

        The keys are the link of the whole request and the answer, and links without the last user messages: a reminder
        sent with one request may not be in the next. The latter are kept for the conversation's own name only, as
        another conversation may have sent just those messages, and have got the same answer. ``ends``: other lengths.
        """
        messages = seen.history.messages
        lengths = ends or lengths_before_answer(messages, seen.length, record)
        links, under = answer_links(seen, lengths, said, self._key)
        kept: list[Bound] = []
        for at, link in zip(lengths, links, strict=True):
            names = whos if at == seen.length else (seen.who,)
            kept.extend(Bound(place, who, link, record, (*messages[:at], said), under) for who in names)
        for each in kept:
            self.adopt(each, seen)
        return kept

    def adopt(self, bound: Bound, seen: Recognised) -> None:
        """Keep a choice about a beginning of this history."""
        if not self._entries.keep_choice(bound, seen):
            return
        first = seen.history.links(1).first
        with self._lock:
            self.deciders.add(bound.place)
            self._edition += 1
            self._editions.put(first, self._edition)

    # Artifacts

    def artifact(self, subject: str, link: bytes) -> Message | None:
        """Return the artifact about exactly this subject; None if there is none."""
        return self._entries.artifact(subject, link)

    def keep_artifact(self, subject: str, link: bytes, made: Message, seen: Recognised, under: bytes = b"") -> None:
        """Keep an artifact as long as this history is known. ``under``: see ``Agreement.keep_artifact``."""
        self._entries.keep_artifact(subject, link, made, seen, under)

    # Warnings

    def level(self, owner: str, who: str | Recognised) -> int:
        """Return the last warning level of a conversation, as its layer counts; 0 if it is not known.

        It is looked up by the conversation's id or, without one, by its history or the longest beginning of it.
        """
        if isinstance(who, str):
            with self._lock:
                return self._levels.get((owner, who)) or 0
        levels = who.conversation.levels
        if owner not in levels:
            levels[owner] = self._level_of_beginning(owner, who)
        return levels[owner]

    def set_level(self, owner: str, who: str | Recognised, level: int) -> None:
        """Keep the warning level of a conversation."""
        if not isinstance(who, str):
            who.conversation.levels[owner] = level
            who = who.came or who
            self._leveled.add(who.length)
        key = who if isinstance(who, str) else who.links[who.length - 1]
        with self._lock:
            self._levels.put((owner, key), level)

    def raise_level(self, owner: str, who: str | Recognised, level: int) -> bool:
        """Keep a level if it is higher than the last one; return True if it was."""
        if self.level(owner, who) >= level:
            return False
        self.set_level(owner, who, level)
        return True

    def noted_under(self, seen: Recognised, length: int, record: Record) -> list[bytes]:
        """Return the links from which a record about so many messages of a history is reached. See ``found_under``."""
        return found_under(seen, length, record, self._key)

    # Letting go

    def forget(self, *, conversation_id: str | None = None, messages: Sequence[Message] | None = None) -> None:
        """Forget all entries of a conversation's id, of these messages and every beginning of them, or all entries."""
        check_value("ContextMemory.forget", "conversation_id", conversation_id, str | None)
        self._forget(conversation_id, None if messages is None else self._links_of(messages))

    async def forget_stored(self, messages: Sequence[Message]) -> None:
        """Forget these messages and every beginning of them, here and in the store, whichever process has kept what is
        there. Pass the whole history, with the answers, as choices are kept under these; of one that has branches, pass
        each. Raises what the store raises."""
        links = self._links_of(messages)
        with self._lock:
            links |= self._entries.reached_by(links)
        self._forget(None, links)
        if self.shared is not None and links:
            await self.shared.forget(sorted(links))

    @property
    def forgets(self) -> int:
        """The number of times that anything was forgotten on demand."""
        return self._forgets

    def has_forgotten(self, seen: Recognised, since: int) -> bool:
        """Return True if this conversation may have been forgotten on demand; ``since`` is ``forgets`` of before."""
        root = seen.history.root
        return self._forgets != since and not (root.is_of(seen.who) and self._recogniser.weigh(root, 0))

    async def aclose(self) -> None:
        """Close the store, if there is one. Its content stays."""
        if self.shared is not None:
            await self.shared.aclose()

    def take_evicted(self) -> int:
        """Return the number of conversations evicted since the last call of this method."""
        if not self._evicted:
            return 0
        with self._lock:
            evicted, self._evicted = self._evicted, 0
        return evicted

    @property
    def held_bytes(self) -> int:
        """The estimated size in bytes: messages, choices, artifacts and small entries."""
        return self._recogniser.held_bytes + self._small_bytes()

    def _small_bytes(self) -> int:
        small = len(self._levels) + len(self._editions) + len(self._sizes)
        return small * _SMALL_BYTES + len(self.past) * _PAST_BYTES + self.readings.held_bytes

    def _links_of(self, messages: Sequence[Message]) -> set[bytes]:
        whole = checked_messages(messages)
        return set(links_of(Recogniser(self._key, 1).recognise(whole, leading_systems(whole)), self._key))

    def _forget(self, conversation_id: str | None, links: set[bytes] | None) -> None:
        with self._lock:
            self.past.clear()
            self.readings.clear()
            self._edition += 1
            self._forgets += 1
            self.names.clear()
            if conversation_id is None and links is None:
                self._recogniser.clear()
                for each in (self._entries, self._editions, self.deciders, self._levels, self._sizes):
                    each.clear()
                return
            gone, who = links or set[bytes](), None if conversation_id is None else self.names.by_id(conversation_id)
            histories = self._recogniser.histories()
            self._entries.forget(who, gone, histories)
            self._levels.drop(key for key in self._levels if key[1] in gone or key[1] == conversation_id)
            for history in histories:
                if who is not None and history.is_of(who):
                    is_over = history.forget(who)
                elif gone and history.messages and history.links(1)[0] in gone:
                    is_over = history.forget() and history.links(len(history.messages))[-1] in gone
                else:
                    continue
                self.derived.let_go(history)
                # Entries of others stay, with the history that bounds them.
                if is_over or not history.entries:
                    self._recogniser.drop(history)
                    self._entries.drop(history)

    def _let_go(self, history: History) -> None:
        """Evict the entries of a history; the lock is held."""
        self._evicted += 1
        self._entries.drop(history)

    def _level_of_beginning(self, owner: str, who: Recognised) -> int:
        who = who.came or who  # of an edited form: what came is digested for its choices, too
        lengths = sorted(length for length in self._leveled.copy() if length <= who.length)  # others may add some
        links = who.links if lengths else ()
        with self._lock:
            found = (self._levels.get((owner, links[length - 1])) for length in reversed(lengths))
            return next((each for each in found if each is not None), 0)

    def __repr__(self) -> str:
        shared = f", shared={self.shared!r}" if self.shared is not None else ""
        return f"ContextMemory(max_megabytes={self._max_megabytes:g}{shared})"
