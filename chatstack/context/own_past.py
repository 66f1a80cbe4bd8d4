"""Own past: what was reported for a conversation and how far strategies have been run for it, where it goes on.

It is kept with the history. But conversations that are equal so far share one history, which goes on with whichever is
first, and a conversation that goes back, or is edited further out, has another history from there on. For these it is
kept here, too, by the answers.
"""

from __future__ import annotations

import threading
from typing import TypeAlias

from chatstack.context.bounded import Bounded, put_term
from chatstack.context.conversations import Conversation, LastAnswer, LastReport, Reached
from chatstack.context.digests import soft_digest
from chatstack.context.history import History, Recognised
from chatstack.values.messages import Message

_Key: TypeAlias = tuple[str, int]

_LOOKS_BACK = 64
"""How many messages may have come since the answer that an entry is kept under."""


class Entry:
    """The state of a conversation at one answer."""

    __slots__ = ("answered", "reached", "reports")

    def __init__(self) -> None:
        self.answered: LastAnswer | None = None
        self.reports: dict[int, LastReport] = {}
        self.reached: dict[int, Reached] = {}


class OwnPast:
    """The past of conversations: with their histories, and, for those that part from one, in an LRU cache.

    ``terms`` are hashes of what an entry depends on beside the messages. A report, or an answer, is found once the
    conversation has gone on from it, never for the very same request: another conversation may have made that.
    """

    def __init__(self, max_entries: int, lock: threading.RLock) -> None:
        self._lock = lock
        self._parted: Bounded[_Key, Entry] = Bounded(max_entries)

    def recall(self, seen: Recognised) -> None:
        """Have a conversation whose history is another one now take up its past."""
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

    def answer(self, seen: Recognised) -> LastAnswer | None:
        """Return what is known of the last answer to a beginning of these messages."""
        conversation = seen.conversation
        for known in (conversation.answered, conversation.answered_before):
            if known is not None and known.length < seen.length:
                return known
        return None

    def report(self, terms: int, seen: Recognised) -> LastReport | None:
        """Return the last size reported for a beginning of these messages under these terms."""
        conversation = seen.conversation
        for reports in (conversation.reports, conversation.reports_before):
            known = reports.get(terms)
            if known is not None and known.length < seen.length:
                return known
        return None

    def reached(self, terms: int, seen: Recognised) -> Reached | None:
        """Return how far a strategy has been run over these messages."""
        known = seen.conversation.reached.get(terms)
        return known if known is not None and known.length <= seen.length else None

    def entry(self, seen: Recognised, said: Message) -> Entry:
        """The entry of that answer; all layers that send the same messages have one."""
        if not seen.length:
            return Entry()
        key = _key(seen.who, seen.history, seen.length, said)
        with self._lock:
            entry = self._parted.get(key)
            if entry is None:
                entry = Entry()
                self._parted.put(key, entry)
            return entry

    def keep_answer(self, seen: Recognised, entry: Entry, answer: LastAnswer) -> None:
        """Keep what is known of an answer; one that comes late does not take the place of a later one."""
        conversation = seen.conversation
        known = conversation.answered
        entry.answered = answer
        if known is None or known.length <= answer.length:
            if known is not None and known.length < answer.length:
                conversation.answered_before = known
            conversation.answered = answer

    def keep_report(self, terms: int, seen: Recognised, entry: Entry, report: LastReport) -> None:
        """Keep a report; one that comes late does not take the place of a later request's."""
        _put_report(seen.conversation, terms, report)
        entry.reports[terms] = report

    def keep_reached(self, terms: int, reached: Reached, seen: Recognised) -> None:
        """Keep how far a strategy has been run."""
        _put_reached(seen.conversation, terms, reached)

    def clear(self) -> None:
        """Forget all that is in the cache."""
        with self._lock:
            self._parted.clear()

    def __len__(self) -> int:
        return len(self._parted)


def _key(who: str, history: History, length: int, said: Message) -> _Key:
    """The key of a request of that many messages and its answer, which callers may give back in another form."""
    return who, hash((history.hashes[length - 1], soft_digest(said)))


def _take_up(entry: Entry, conversation: Conversation) -> None:
    if entry.answered is not None:
        conversation.answered = entry.answered
    for terms, report in entry.reports.items():
        _put_report(conversation, terms, report)
    for terms, reached in entry.reached.items():
        _put_reached(conversation, terms, reached)


def _put_report(conversation: Conversation, terms: int, report: LastReport) -> None:
    reports, before = conversation.reports, conversation.reports_before
    known = reports.get(terms)
    if known is not None and known.length > report.length:
        return
    if known is not None and known.length < report.length:
        put_term(before, terms, known)
    put_term(reports, terms, report)


def _put_reached(conversation: Conversation, terms: int, reached: Reached) -> None:
    known = conversation.reached.get(terms)
    if known is not None and known.length > reached.length:
        return
    put_term(conversation.reached, terms, reached)
