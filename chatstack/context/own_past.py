"""Own past: what happened to a conversation before, found again where it goes on.

Conversations that are equal so far share one history, which goes on with whichever is first. The others find here what
was reported for them, and how far a strategy has been run for them.
"""

from __future__ import annotations

import threading
from typing import NamedTuple, TypeAlias, TypeVar

from chatstack.context.bounded import Bounded
from chatstack.context.conversations import LastAnswer, LastReport, Reached, Wait
from chatstack.context.digests import soft_digest
from chatstack.context.history import Recognised
from chatstack.values.messages import Message

T = TypeVar("T")
_Key: TypeAlias = tuple[int, str, int]

_MOST_TERMS = 64
_LOOKS_BACK = 64
"""How many messages may have come since the request that an entry is about."""


class _Run(NamedTuple):
    """How far a strategy has been run: a ``Reached`` with the fingerprint of its record."""

    length: int
    fingerprint: int
    wait: Wait | None


class OwnPast:
    """The past of conversations, by request and answer: LRU caches behind the state of each conversation.

    ``terms`` are hashes of what an entry depends on beside the messages. What is found is about requests that the
    conversation holds the answer to, never about the very request that is asked about: another may have made that.
    """

    def __init__(self, max_entries: int, lock: threading.RLock) -> None:
        self._lock = lock
        self._reports: Bounded[_Key, LastReport] = Bounded(max_entries)
        self._answers: Bounded[_Key, LastAnswer] = Bounded(max_entries)
        self._runs: Bounded[_Key, _Run] = Bounded(max_entries)

    def report(self, terms: int, seen: Recognised) -> LastReport | None:
        """Return the size reported for the longest beginning of these messages that has one under these terms."""
        known = seen.conversation.reports.get(terms)
        least = -1 if known is None or known.length >= seen.length else known.length
        return self._found(self._reports, terms, seen, least) or (known if least >= 0 else None)

    def keep_report(self, terms: int, seen: Recognised, said: Message, report: LastReport) -> None:
        """Keep a report; one that comes late does not take the place of a later request's."""
        _put(seen.conversation.reports, terms, report)
        self._keep(self._reports, terms, seen, said, report)

    def answer(self, seen: Recognised) -> LastAnswer | None:
        """Return what is known of the last answer to a beginning of these messages."""
        known = seen.conversation.answered
        least = -1 if known is None or known.length >= seen.length else known.length
        return self._found(self._answers, 0, seen, least) or (known if least >= 0 else None)

    def keep_answer(self, seen: Recognised, said: Message, answer: LastAnswer) -> None:
        """Keep what is known of an answer; one that comes late does not take the place of a later one."""
        known = seen.conversation.answered
        if known is None or known.length <= answer.length:
            seen.conversation.answered = answer
        self._keep(self._answers, 0, seen, said, answer)

    def reached(self, terms: int, seen: Recognised, chosen: Reached) -> Reached | None:
        """Return how far the strategy has been run over these messages, if it came to the edits that were chosen."""
        known = seen.conversation.reached.get(terms)
        if known is not None and known.length > seen.length:
            known = None
        run = self._found(self._runs, terms, seen, -1 if known is None else known.length)
        if run is None or run.fingerprint != _fingerprint_of(chosen):
            return known
        return Reached(run.length, chosen.record, run.wait)

    def keep_reached(self, terms: int, seen: Recognised, reached: Reached, said: Message | None = None) -> None:
        """Keep how far a strategy has been run; with the answer that was given then, once that is there."""
        if said is None:
            _put(seen.conversation.reached, terms, reached)
        else:
            run = _Run(reached.length, _fingerprint_of(reached), reached.wait)
            self._keep(self._runs, terms, seen, said, run)

    def clear(self) -> None:
        """Forget all that is in the caches."""
        with self._lock:
            for each in (self._reports, self._answers, self._runs):
                each.clear()

    def __len__(self) -> int:
        return len(self._reports) + len(self._answers) + len(self._runs)

    def _keep(self, kept: Bounded[_Key, T], terms: int, seen: Recognised, said: Message, entry: T) -> None:
        if seen.length:
            with self._lock:
                kept.put(_key(terms, seen, seen.length, said), entry)

    def _found(self, kept: Bounded[_Key, T], terms: int, seen: Recognised, least: int) -> T | None:
        """The entry about the longest request of more than ``least`` messages."""
        if not kept:
            return None
        messages, length = seen.history.messages, seen.length
        for at in range(length - 1, max(0, least, length - 1 - _LOOKS_BACK), -1):
            if messages[at].role == "assistant":
                with self._lock:
                    found = kept.get(_key(terms, seen, at, messages[at]))
                if found is not None:
                    return found
        return None


Entry = TypeVar("Entry", LastReport, Reached)


def _key(terms: int, seen: Recognised, length: int, said: Message) -> _Key:
    """The key of a request of that many messages and its answer, which callers may give back in another form."""
    return terms, seen.who, hash((seen.history.hashes[length - 1], soft_digest(said)))


def _put(entries: dict[int, Entry], terms: int, entry: Entry) -> None:
    known = entries.get(terms)
    if known is not None and known.length > entry.length:
        return
    if len(entries) >= _MOST_TERMS:
        entries.clear()
    entries[terms] = entry


def _fingerprint_of(reached: Reached) -> int:
    return 0 if reached.record is None else reached.record.fingerprint
