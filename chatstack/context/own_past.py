"""Own past: the reports of a conversation, and the progress of strategies over it, for when it branches.

They are kept with the history. But conversations that are equal so far share one history, which goes on with the first
of them, and a conversation that goes back, or is edited further out, gets another history from there on. For these the
past is kept here, too, by the answers.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

from chatstack.context.conversations import Conversation, LastAnswer, LastReport, Reached
from chatstack.context.digests import soft_digest
from chatstack.context.history import History, Recognised
from chatstack.lru import Lru
from chatstack.values.messages import Message

_Key: TypeAlias = tuple[str, int]

_LOOKS_BACK = 64
"""Maximum number of messages since the answer that an entry is kept under."""


class Entry:
    """The state of a conversation at one answer."""

    __slots__ = ("answered", "reached", "reports")

    def __init__(self) -> None:
        self.answered: LastAnswer | None = None
        self.reports: dict[int, LastReport] = {}
        self.reached: dict[int, Reached] = {}


class OwnPast:
    """The past of conversations that part from the history they had: an LRU cache by their answers."""

    def __init__(self, max_entries: int, lock: threading.RLock) -> None:
        self._lock = lock
        self._parted: Lru[_Key, Entry] = Lru(max_entries)
        self._latest: tuple[Recognised, Message, Entry] | None = None

    def recall(self, seen: Recognised) -> None:
        """Restore the past of a conversation that has another history now."""
        conversation, messages = seen.conversation, seen.history.messages
        known = 0 if conversation.answered is None else conversation.answered.length
        if not self._parted or (known and known >= seen.history.latest_assistant):
            return
        for at in range(seen.length - 1, max(known, seen.length - 1 - _LOOKS_BACK, 0), -1):
            if messages[at].role == "assistant":
                with self._lock:
                    entry = self._parted.get(_key(seen.who, seen.history, at, messages[at]))
                if entry is not None:
                    _take_up(entry, conversation)
                    return

    def entry(self, seen: Recognised, said: Message) -> Entry:
        """Return the entry of that answer; layers that send the same messages share it."""
        if not seen.length:
            return Entry()
        latest = self._latest
        if latest is not None and latest[0] is seen and latest[1] is said:
            return latest[2]
        key = _key(seen.who, seen.history, seen.length, said)
        with self._lock:
            entry = self._parted.get(key)
            if entry is None:
                entry = Entry()
                self._parted.put(key, entry)
            self._latest = (seen, said, entry)
            return entry

    def clear(self) -> None:
        """Clear the cache."""
        with self._lock:
            self._parted.clear()
            self._latest = None

    def __len__(self) -> int:
        return len(self._parted)


def _key(who: str, history: History, length: int, said: Message) -> _Key:
    """Return the key of a request of that many messages and its answer, which callers may send back reformatted."""
    return who, hash((history.prefix_hash(length), soft_digest(said)))


def _take_up(entry: Entry, conversation: Conversation) -> None:
    if entry.answered is not None:
        conversation.answered = entry.answered
    for terms, report in entry.reports.items():
        conversation.keep_report(terms, report)
    for terms, reached in entry.reached.items():
        conversation.keep_reached(terms, reached)
