"""Own past: the reports of a conversation, and the progress of strategies over it, for when it branches.

They are kept with the history. But conversations that are equal so far share one history, which goes on with the first
of them, and a conversation that goes back, or is edited further out, gets another history from there on. For these the
past is kept here, too, by the answers.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence

import msgspec

from chatstack.context.histories.conversations import Conversation, LastAnswer, Reached, Terms, with_term
from chatstack.context.histories.digests import soft_hash
from chatstack.context.histories.history import History
from chatstack.context.histories.last_reports import NOTHING_REPORTED, Rows, all_reports, reports_until
from chatstack.context.histories.recognised import Recognised
from chatstack.lru import Lru
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall

_LOOKS_BACK = 256
"""Maximum number of messages since the answer that an entry is kept under."""
_ANSWERS = 2
"""A conversation keeps the entries of so many latest answers: for one that is made again, or parts."""
_TURNS = 8
"""It also keeps the entries of at most so many earlier answers that ended a turn, for a question that is changed: each
at most ``_APART`` times as far back as the next, so that one is near wherever the conversation goes back to."""
_APART = 3


class Entry(msgspec.Struct, eq=False):
    """The state of a conversation at one answer.

    ``history`` is the one that the request was of, its first ``length`` messages. It is compared with another one only
    when that is looked up: to hash all text of a history takes a third of its first call. ``prefix`` is the prefix
    hash, once that history is gone. Where its key ``is_shared``, entries of other messages are looked up behind it.
    """

    history: Callable[[], History | None]
    length: int
    ends_turn: bool = False
    prefix: int | None = None
    is_shared: bool = False
    answered: LastAnswer | None = None
    reports: Rows = NOTHING_REPORTED
    reached: Terms[int, Reached] = ()

    def is_of(self, history: History) -> bool:
        """Return True if that history begins with the messages of the request."""
        known, length = self.history(), self.length
        if known is None:
            return self.prefix is not None and self.prefix == history.prefix_hash(length)
        return known is history or known.messages[:length] == history.messages[:length]

    def keep_reports(self, reports: Rows, length: int) -> None:
        """Keep what is known at a request of that length: the last report under whatever terms, as its conversation
        may come to each of them again."""
        self.reports = reports_until(reports, length)

    def keep_reached(self, terms: int, reached: Reached) -> None:
        """Keep the progress of a strategy, likewise."""
        self.reached = with_term(self.reached, terms, reached)


_DROPPED = Entry(lambda: None, 0, is_shared=True)
"""Stands for a dropped entry whose key is shared."""


class OwnPast:
    """The past of conversations that part from the history they had: an LRU cache by their answers.

    Only the answers that a conversation may go on from are kept; from another one, it goes on with what is known of the
    nearest one before.
    """

    def __init__(self, max_entries: int, lock: threading.RLock) -> None:
        self._lock = lock
        self._parted: Lru[int, Entry] = Lru(max_entries)
        self._latest: tuple[Recognised, Message, Entry, int] | None = None

    def recall(self, seen: Recognised) -> None:
        """Restore the past of a conversation that has another history now."""
        conversation, messages = seen.conversation, seen.history.messages
        known = 0 if conversation.answered is None else conversation.answered.length
        if not self._parted or (known and known >= seen.history.latest_assistant):
            return
        for at in range(seen.length - 1, max(known, seen.length - 1 - _LOOKS_BACK, 0), -1):
            if messages[at].role == "assistant":
                with self._lock:
                    _, entry = self._slot(seen.who, seen.history, at, soft_hash(messages[at]))
                if entry is not None:
                    _take_up(entry, conversation)
                    return

    def entry(self, seen: Recognised, said: Message) -> Entry:
        """Return the entry of that answer; layers that send the same messages share it."""
        history, length = seen.history, seen.length
        if not length:
            return Entry(weakref.ref(history), length)
        latest = self._latest
        if latest is None or latest[1] is not said:
            soft = soft_hash(said)
        elif latest[0] is seen:
            return latest[2]
        else:
            soft = latest[3]
        with self._lock:
            key, entry = self._slot(seen.who, history, length, soft)
            if entry is None:
                ends_turn = not said.parts or type(said.parts[-1]) is not ToolCall
                prefix = history.prefix_hash(length) if _is_dropped(seen) else None
                entry = Entry(weakref.ref(history), length, ends_turn, prefix)
                self._parted.put(key, entry)
                self._thin_out(seen.conversation, key, length)
            self._latest = (seen, said, entry, soft)
            return entry

    def is_answered(self, who: str, history: History, following: Sequence[Message]) -> bool:
        """Return True if the first of these messages is an answer that the conversation had to its last request."""
        if not following or following[0].role != "assistant":
            return False
        with self._lock:
            key, _ = self._slot(who, history, len(history.messages), soft_hash(following[0]))
            return key in history.conversation(who).past

    def seal(self, history: History, states: Iterable[Conversation]) -> None:
        """Let the entries of a history outlive it, and those of its edited forms: it is about to be dropped."""
        with self._lock:
            history.is_dropped = True
            self.seal_states(history, states)
            for form, state in history.forms.values():
                self.seal(form, (state,))

    def seal_states(self, history: History, states: Iterable[Conversation]) -> None:
        """Let the entries of conversations outlive a history that is about to drop these."""
        with self._lock:
            for state in states:
                for entry in map(self._parted.peek, state.past):
                    if entry is not None and entry.history() is history:
                        entry.prefix = history.prefix_hash(entry.length)

    def _slot(self, who: str, history: History, length: int, soft: int) -> tuple[int, Entry | None]:
        """Return the key of a request of that many messages and its answer, and the entry that is there.

        The answer is given by its soft hash, as callers may send it back reformatted. The key has a sample of the
        request, and the prefix hash only where an entry of other messages has that sample already.
        """
        messages, is_whole = history.messages, history.root is history  # those of edited forms are apart
        key = hash((who, is_whole, length, messages[0], messages[length - 1], soft))
        entry = self._parted.get(key)
        if entry is None or entry.is_of(history):
            return key, entry
        entry.is_shared = True
        key = hash((who, history.prefix_hash(length), soft))
        return key, self._parted.get(key)

    def _pop(self, key: int) -> None:
        entry = self._parted.peek(key)
        if entry is not None and entry.is_shared:
            self._parted[key] = _DROPPED
        else:
            self._parted.pop(key, None)

    def drop(self, conversation: Conversation) -> None:
        """Drop the entries of a conversation."""
        with self._lock:
            for key in conversation.past:
                self._pop(key)
            conversation.past.clear()

    def _thin_out(self, conversation: Conversation, key: int, length: int) -> None:
        """Note a new entry of a conversation, and drop those that it need not keep any more."""
        past = conversation.past
        past.append(key)
        leaving = len(past) - 1 - _ANSWERS
        if leaving < 0:
            return
        latest = self._parted.peek(past[leaving])
        if latest is None or not latest.ends_turn:
            self._pop(past.pop(leaving))
            return
        older = [self._parted.peek(each) for each in past[: leaving + 1]]
        ages = [length - (0 if entry is None else entry.length) for entry in older]
        for at in range(len(ages) - 2, 0, -1):
            if ages[at - 1] <= _APART * ages[at + 1]:
                del ages[at]
                self._pop(past.pop(at))
        if len(ages) > _TURNS:
            self._pop(past.pop(0))

    def clear(self) -> None:
        """Clear the cache."""
        with self._lock:
            self._parted.clear()
            self._latest = None

    def __len__(self) -> int:
        return len(self._parted)


def _is_dropped(seen: Recognised) -> bool:
    """Return True if the memory dropped that history, or its state of that conversation, while this was under way."""
    history = seen.history
    return history.is_dropped or (history.root is history and seen.conversation not in history.conversations)


def _take_up(entry: Entry, conversation: Conversation) -> None:
    if entry.answered is not None:
        conversation.answered = entry.answered
    for terms, report in all_reports(entry.reports):
        conversation.keep_report(terms, report)
    for terms, reached in entry.reached:
        conversation.keep_reached(terms, reached)
