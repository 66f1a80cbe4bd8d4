"""Own past: the reports of a conversation, and the progress of strategies over it, for when it branches.

They are kept with the history. But conversations that are equal so far share one history, which goes on with the first
of them, and a conversation that goes back, or is edited further out, gets another history from there on. For these the
past is kept here, too, by the answers.
"""

from __future__ import annotations

import threading

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
    """The state of a conversation at one answer."""

    length: int = 0
    ends_turn: bool = False
    answered: LastAnswer | None = None
    reports: Rows = NOTHING_REPORTED
    reached: Terms[int, Reached] = ()

    def keep_reports(self, reports: Rows, length: int) -> None:
        """Keep what is known at a request of that length: the last report under whatever terms, as its conversation
        may come to each of them again."""
        self.reports = reports_until(reports, length)

    def keep_reached(self, terms: int, reached: Reached) -> None:
        """Keep the progress of a strategy, likewise."""
        self.reached = with_term(self.reached, terms, reached)


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
                    entry = self._parted.get(answer_key(seen.who, seen.history, at, soft_hash(messages[at])))
                if entry is not None:
                    _take_up(entry, conversation)
                    return

    def entry(self, seen: Recognised, said: Message) -> Entry:
        """Return the entry of that answer; layers that send the same messages share it."""
        if not seen.length:
            return Entry()
        latest = self._latest
        if latest is None or latest[1] is not said:
            soft = soft_hash(said)
        elif latest[0] is seen:
            return latest[2]
        else:
            soft = latest[3]
        key = answer_key(seen.who, seen.history, seen.length, soft)
        with self._lock:
            entry = self._parted.get(key)
            if entry is None:
                entry = Entry(seen.length, ends_turn=not said.parts or type(said.parts[-1]) is not ToolCall)
                self._parted.put(key, entry)
                self._thin_out(seen.conversation, key, seen.length)
            self._latest = (seen, said, entry, soft)
            return entry

    def drop(self, conversation: Conversation) -> None:
        """Drop the entries of a conversation."""
        with self._lock:
            for key in conversation.past:
                self._parted.pop(key, None)
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
            self._parted.pop(past.pop(leaving), None)
            return
        older = [self._parted.peek(each) for each in past[: leaving + 1]]
        ages = [length - (0 if entry is None else entry.length) for entry in older]
        for at in range(len(ages) - 2, 0, -1):
            if ages[at - 1] <= _APART * ages[at + 1]:
                del ages[at]
                self._parted.pop(past.pop(at), None)
        if len(ages) > _TURNS:
            self._parted.pop(past.pop(0), None)

    def clear(self) -> None:
        """Clear the cache."""
        with self._lock:
            self._parted.clear()
            self._latest = None

    def __len__(self) -> int:
        return len(self._parted)


def answer_key(who: str, history: History, length: int, soft: int) -> int:
    """Return the key of a request of that many messages and its answer, by the soft hash of that: callers may send it
    back reformatted."""
    return hash((who, history.prefix_hash(length), soft))


def _take_up(entry: Entry, conversation: Conversation) -> None:
    if entry.answered is not None:
        conversation.answered = entry.answered
    for terms, report in all_reports(entry.reports):
        conversation.keep_report(terms, report)
    for terms, reached in entry.reached:
        conversation.keep_reached(terms, reached)
