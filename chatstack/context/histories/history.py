"""Histories: lists of messages that only grow, with everything computed from them."""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from operator import attrgetter

from msgspec.structs import astuple

from chatstack.context.edits.pairing import Paired, Pairs, Places
from chatstack.context.edits.units import is_users
from chatstack.context.histories.choices import Kept
from chatstack.context.histories.conversations import Conversation, Form, Terms
from chatstack.context.histories.digests import Links, first_link, next_links
from chatstack.context.histories.last_words import MOST_WORDS, common_length, is_words, words_of_users
from chatstack.context.histories.weights import HISTORY_BYTES, weight_of
from chatstack.context.shapes.shaping import Shapes
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message, was_edited
from chatstack.values.native import compaction_in

_who_of = attrgetter("who")
_COUNTERS = 4
_MOST_CONVERSATIONS = 16
_LARGEST = 2**62
"""Upper bound of a sum of sizes, as an array holds it: a counter may give any number."""


class History:
    """The messages of a conversation so far, without system messages, and everything computed from them.

    It only grows, at its end, so an answer for a given length stays true. It is a cache in the memory: no correct
    request depends on it. Conversations that begin alike may share one, for as long as they are the same; the state of
    each conversation is in ``conversation(who)``. ``lock`` is that of the memory, the only one: nothing else is locked
    while it is held, and no counter is called.
    """

    __slots__ = (
        "__weakref__",
        "_chain",
        "_edited",
        "_hashes",
        "_key",
        "_lock",
        "_sums",
        "_user_before",
        "compactions",
        "conversations",
        "entries",
        "forms",
        "held_bytes",
        "is_dropped",
        "is_fresh",
        "kept_before",
        "latest_assistant",
        "latest_user",
        "linked_as",
        "messages",
        "messages_bytes",
        "moved_at",
        "moves",
        "pairs",
        "pinned",
        "pinned_results",
        "root",
        "shapes",
    )

    def __init__(self, key: bytes = b"", lock: threading.RLock | None = None) -> None:
        self._key = key
        self._lock = lock or threading.RLock()
        self.root = self
        """The history that this one was derived from by edits; itself if it was not. It holds the entries of both."""
        self.linked_as: History | None = None
        """The history whose messages these stand for, if any: choices are kept under the callers' messages, by which
        they are forgotten, too."""
        self._chain: Links | None = None
        # Arrays, as numbers of their own would take four times as many bytes for each message.
        self._hashes = array("q")
        self._sums: Terms[TokenCounter, array[int]] = ()
        self.conversations: tuple[Conversation, ...] = ()
        self.messages: tuple[Message, ...] = ()
        self.is_fresh = False
        """True if its messages came as other objects than before: those before need not be kept anywhere."""
        self.is_dropped = False
        """True once the memory does not know it any more: a request that is under way may."""
        self.pairs = _NO_PAIRS
        self.latest_user = self.latest_assistant = -1
        self._user_before = -1
        """The position of the latest user message before the last words of users."""
        self.compactions: tuple[tuple[int, str], ...] = ()
        """The positions of compactions, with the providers that made them."""
        self.kept_before: Terms[int, tuple[int, ...]] = ()
        """The positions that stay before a compaction, by its position. See ``without_compacted``."""
        self.pinned = self.pinned_results = -1
        """The positions of the first pinned message, and of the first one with tool results; -1 if there is none."""
        self._edited = (False, 0)
        """``is_edited``, and for how many messages that was looked at."""
        self.moves = self.moved_at = 0
        """Number of times in a row that it came with another beginning than before, and its length the last time."""
        self.forms = _NO_FORMS
        """Its edited forms. See ``Derived``, which drops those of conversations that it does not know any more."""
        self.shapes: Terms[int, Shapes] = ()
        """Its shaped messages, by a hash of the options that they were shaped under. See ``Derived``."""
        self.entries = _NO_ENTRIES
        """The keys of the memory's entries for it, by the conversations that they were kept for."""
        self.held_bytes = HISTORY_BYTES
        """Estimated size in bytes, its messages and entries included."""
        self.messages_bytes = 0
        """The part of it that is for its messages."""

    def derived(self, messages: tuple[Message, ...], before: History | None) -> History:
        """Return a new history for an edited form of this one, that of these messages. ``before`` is one that may begin
        alike: what is computed for that beginning holds for both."""
        made = History(self._key, self._lock)
        made.root, made.is_dropped = self.root, self.is_dropped
        if before is not None:
            made._begin_as(before, common_length(messages, before.messages))
        return made

    def branched(self, messages: tuple[Message, ...]) -> History:
        """Return a new history for a conversation that goes on from these messages, the first of this one. What is
        computed for them holds for both. Both count as holding them: callers may send fresh ones on each call."""
        length, made = len(messages), self.beginning(messages)
        if all(map(is_words, self.messages[length:])):
            made.pairs = self.pairs.branched(messages, self.latest_assistant)
        else:
            made.pairs = Pairs(Places())
            made.pairs.extend(messages)
        made._hold(self.messages_bytes - sum(map(weight_of, self.messages[length:])))
        self.messages = messages + self.messages[length:]
        return made

    def beginning(self, messages: tuple[Message, ...]) -> History:
        """Return a new history of these messages, the first of this one, with what is computed for them except for
        their pairs."""
        length = len(messages)
        made = History(self._key, self._lock)
        made.messages = messages
        made._begin_as(self, length)
        made.compactions = tuple([each for each in self.compactions if each[0] < length])
        made.kept_before = tuple([each for each in self.kept_before if each[0] < length])
        if self.pinned < length:
            made.pinned = self.pinned
        if self.pinned_results < length:
            made.pinned_results = self.pinned_results
        backwards = range(min(self.latest_assistant, length - 1), -1, -1)
        made.latest_assistant = next((at for at in backwards if messages[at].role == "assistant"), -1)
        made.latest_user = self.latest_user_in(length)
        made._user_before = self.latest_user_in(length - words_of_users(messages))
        found, looked_at = self._edited
        made._edited = (found, min(looked_at, length)) if looked_at <= length or not found else (False, 0)
        return made

    def _begin_as(self, before: History, length: int) -> None:
        """Take over what is computed for the first messages of another history, which are the same."""
        self._hashes = before._hashes[:length]
        self._sums = tuple([(counter, sums[: length + 1]) for counter, sums in before._sums])
        self._chain = None if before._chain is None else before._chain.cut(length)

    def go_on_from(self, before: History, who: str, changed: Sequence[int]) -> None:
        """Take over the state of a conversation that goes on with this history, as far as it holds for both, and its
        entries, which are evicted with this one from now on. ``changed`` are the positions of other messages here."""
        self.conversation(who).go_on_from(before.conversation(who), len(self.messages), changed)
        kept = before.entries.pop(who, None)
        if kept is not None:
            self.entries = {who: kept}
            self.held_bytes += sum(kept.held)
            before.held_bytes -= sum(kept.held)

    def _hold(self, messages_bytes: int) -> None:
        """Count so many bytes for its messages."""
        self.held_bytes += messages_bytes - self.messages_bytes
        self.messages_bytes = messages_bytes

    def conversation(self, who: str) -> Conversation:
        """Return the state of that conversation, a new one if there is none."""
        for known in self.conversations:
            if known.who == who:
                return known
        found = Conversation(who)
        self.conversations = (*self.conversations[1 - _MOST_CONVERSATIONS :], found)
        return found

    def leaving(self, who: str) -> Sequence[Conversation]:
        """Return the states that make room for that of a new conversation."""
        oldest = self.conversations[: 1 - _MOST_CONVERSATIONS]
        return () if not oldest or self.is_of(who) else oldest

    def is_of(self, who: str) -> bool:
        """Return True if that conversation has had this history."""
        return who in map(_who_of, self.conversations)

    def forget(self, who: str | None = None) -> bool:
        """Forget the state of one conversation, or of all; True if there is none left."""
        self.conversations = tuple(each for each in self.conversations if who is not None and each.who != who)
        return not self.conversations

    def grow(self, messages: tuple[Message, ...]) -> None:
        """Add new messages. ``messages`` begin with the known ones, possibly as new objects."""
        known = len(self.messages)
        self.is_fresh = bool(known) and messages[0] is not self.messages[0]
        if known == len(messages):
            self.messages = messages
            return
        new = messages[known:]
        if self.root is self:  # an edited form holds nothing of its own, and is neither repaired nor cut
            if self.pairs is _NO_PAIRS:
                self.pairs = Pairs(Places())
            self.pairs.extend(messages, known)
            if not self.pairs.waiting:
                self.pairs.waiting = {}  # an emptied dict keeps its table
            self._hold(self.messages_bytes + sum(map(weight_of, new)))
        words = len(messages) - words_of_users(messages)
        if self.latest_user < words:
            self._user_before = self.latest_user
        for at, message in enumerate(new, known):  # one loop: nearly always over an answer and a result
            role = message.role
            if role == "assistant":
                self.latest_assistant = at
                found = compaction_in(message) if self.root is self else None
                if found is not None:
                    self.compactions += ((at, found.provider),)
            elif role == "user" and is_users(message):
                self.latest_user = at
                if at < words:
                    self._user_before = at
            if message.pinned:
                self.pinned = at if self.pinned < 0 else self.pinned
                self.pinned_results = at if self.pinned_results < 0 and message.results else self.pinned_results
        self.messages = messages

    def paired(self) -> Paired:
        """Return the places of answers and open calls; an edited form has none. It may have grown since a request was
        recognised by it."""
        with self._lock:
            return self.pairs.paired()

    @property
    def is_edited(self) -> bool:
        """True if it holds messages that a layer, or a graph with its own context manager, has edited, other than by
        shaping them."""
        (found, looked_at), messages = self._edited, self.messages
        if looked_at < len(messages):
            found = found or any(map(was_edited, messages[looked_at:]))
            self._edited = (found, len(messages))
        return found

    def latest_user_in(self, length: int) -> int:
        """Return the position of the latest user message among the first ``length``; -1 if there is none."""
        if self.latest_user < length:
            return self.latest_user
        if length and is_users(self.messages[length - 1]):
            return length - 1
        if self._user_before < length:  # and all behind that are words, which end before this length
            return self._user_before
        return next((at for at in range(length - 1, -1, -1) if is_users(self.messages[at])), -1)

    def without_words(self, length: int) -> int:
        """Return how many messages there are without words of users at the end, if those follow the result of a tool:
        they may be a reminder, which begins no turn."""
        before = length - words_of_users(self.messages[max(0, length - MOST_WORDS - 1) : length])
        return before if before < length and before and self.messages[before - 1].results else length

    def prefix_hash(self, length: int) -> int:
        """Return a hash of the first ``length`` messages, valid in this process only."""
        hashes = self._hashes
        if len(hashes) < length:
            with self._lock:
                prefix, is_whole = hashes[-1] if hashes else 0, self.root is self
                for message in self.messages[len(hashes) : length]:
                    # Of an edited form by their fields: a message keeps its hash, and nobody else asks an edited one.
                    prefix = hash((prefix, message)) if is_whole else hash((prefix, *astuple(message)))
                    hashes.append(prefix)
        return hashes[length - 1]

    def links(self, length: int) -> Links:
        """Return the hash chain: the link at ``i`` is the digest of the first ``i + 1`` messages. May be longer than
        ``length``."""
        if self.linked_as is not None:
            return self.linked_as.links(length)
        chain = self._chain
        if chain is None:
            with self._lock:
                chain = self._chain = self._chain or Links()
        if chain.length < length:
            with self._lock:
                known, link = chain.length, chain.last or first_link(self._key)
            new = next_links(link, self.messages[known:length], self._key)
            with self._lock:
                chain.extend(new[chain.length - known :])  # another thread may have added some
        return chain

    def counted_by(self, counter: TokenCounter) -> int:
        """Return how many of its messages that counter has counted."""
        by_counter = self._sums
        sums = by_counter[0][1] if by_counter and by_counter[0][0] is counter else self._sums_by(counter)
        return 0 if sums is None else len(sums) - 1

    def sums(self, length: int, counter: TokenCounter, size_of: Callable[[Message], int]) -> Sequence[int]:
        """Return prefix sums of sizes: the one at ``i`` is for the first ``i`` messages. May be longer than needed."""
        by_counter = self._sums  # nearly always of one counter
        sums = by_counter[0][1] if by_counter and by_counter[0][0] is counter else self._sums_by(counter)
        if sums is None:
            with self._lock:
                sums = self._sums_by(counter)
                if sums is None:
                    sums = array("q", [0])
                    self._sums = (*self._sums[1 - _COUNTERS :], (counter, sums))
        counted = len(sums) - 1
        if counted < length:
            sizes = [size_of(message) for message in self.messages[counted:length]]  # not under the lock
            with self._lock:
                for size in sizes[len(sums) - 1 - counted :]:  # another thread may have added some
                    sums.append(min(sums[-1] + size, _LARGEST))
        return sums

    def _sums_by(self, counter: TokenCounter) -> array[int] | None:
        for known, sums in self._sums:
            if known is counter or known == counter:
                return sums
        return None


_NO_PAIRS = Pairs()
_NO_FORMS: dict[Form, tuple[History, Conversation]] = {}
_NO_ENTRIES: dict[str, Kept] = {}
"""Empty values that histories share until they have some of their own; never written to."""
