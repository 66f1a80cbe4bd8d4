"""Entries: the choices and artifacts of histories, by the conversation that they were kept for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from chatstack.context.edits.records import Record
from chatstack.context.histories.choices import ArtifactKey, Bound, Choice, ChoiceKey, EntryKey, Kept
from chatstack.context.histories.history import History
from chatstack.context.histories.recognised import Recognised
from chatstack.context.histories.weights import weight_of, weight_of_fields
from chatstack.context.memory.forgetting import came_link
from chatstack.values.messages import Message

_KEY_BYTES = 300
_RECORD_BYTES = 500
_POSITION_BYTES = 40
_EDIT_BYTES = 400
"""Estimated bytes of a kept edit with its edited message, without their text."""
_SHARE = 2
"""Divisor: half of the memory's bytes are for one history. Beyond that, entries of other conversations make room."""
_LOW_WATER = 0.75


_NO_CHOICE = Choice(Record(), ())


class _Artifact(NamedTuple):
    made: Message
    under: bytes


class Entries:
    """The choices and artifacts in the memory. They count as part of their histories, and are evicted with them.

    One history may be that of thousands of conversations with the same prompt, of which it knows the latest few. Where
    it grows too large, the entries of the others are dropped, the oldest first, and always all of one conversation.
    """

    def __init__(self, weigh: Callable[[History, int], bool], max_bytes: int, lock: threading.RLock) -> None:
        self._weigh = weigh
        self._most = max_bytes // _SHARE
        self._lock = lock
        self._choices: dict[ChoiceKey, Choice] = {}
        self._artifacts: dict[ArtifactKey, _Artifact] = {}
        self._latest = _NO_CHOICE

    def newest_choice(
        self, place: str, whos: Sequence[str], links: Sequence[bytes], lengths: range
    ) -> tuple[Record, int] | None:
        """Return the edits bound to the newest answer that has any, and how many messages there are up to that answer:
        one of these ``lengths``. ``links`` are those of the history, ``whos`` the names of its conversation."""
        with self._lock:
            for length in reversed(lengths):
                link = links[length - 1]
                for who in whos:
                    found = self._choices.get((place, who, link))
                    if found is not None:
                        return found.record, length
        return None

    def artifact(self, subject: str, link: bytes) -> Message | None:
        """Return the artifact about exactly this subject."""
        found = self._artifacts.get((subject, link))
        return None if found is None else found.made

    def keep_choice(self, bound: Bound, seen: Recognised) -> bool:
        """Keep a choice; return False if its history is not known any more."""
        key, before = (bound.place, bound.who, bound.link), max(1, len(bound.messages) - 1)
        reached_by = tuple({seen.links[before - 1], came_link(seen, before), bound.under})
        with self._lock:
            if not self._keep(key, _weight_of(bound.record, self._last_record(seen)), seen):
                return False
            latest = self._latest
            if latest.record is not bound.record or latest.reached_by != reached_by:  # else under another name
                self._latest = latest = Choice(bound.record, reached_by)
            self._choices[key] = latest
        return True

    def keep_artifact(self, subject: str, link: bytes, made: Message, seen: Recognised, under: bytes) -> None:
        """Keep an artifact, if its history is known. It is forgotten with the link ``under``, too."""
        key = (subject, link)
        with self._lock:
            if self._keep(key, _KEY_BYTES + weight_of(made), seen):
                self._artifacts[key] = _Artifact(made, under)

    def drop(self, history: History) -> None:
        """Drop all entries of a history that is not known any more."""
        for kept in history.entries.values():
            self._discard(kept.keys)

    def forget(self, who: str | None, links: Collection[bytes], histories: Iterable[History]) -> None:
        """Drop the entries of a conversation, and those that are bound to these links; the lock is held."""
        self._latest = _NO_CHOICE
        for key, choice in tuple(self._choices.items()):
            if key[1] == who or key[2] in links or _any_in(choice.reached_by, links):
                del self._choices[key]
        for subject in [key for key, each in self._artifacts.items() if key[1] in links or each.under in links]:
            del self._artifacts[subject]
        for history in histories:
            if who is not None and who in history.entries:
                self._drop_of(history, who)
            for name, kept in tuple(history.entries.items()):
                dropped = kept.keep_only(self._is_there)
                if dropped:
                    self._weigh(history, -dropped)
                if not kept.keys:
                    del history.entries[name]

    def reached_by(self, links: Collection[bytes]) -> set[bytes]:
        """Return the links of all entries that are forgotten with these."""
        choices = {key[2] for key, each in self._choices.items() if _any_in(each.reached_by, links)}
        return choices | {key[1] for key, each in self._artifacts.items() if each.under in links}

    def clear(self) -> None:
        """Drop all entries."""
        self._latest = _NO_CHOICE
        self._choices.clear()
        self._artifacts.clear()

    def _keep(self, key: EntryKey, held: int, seen: Recognised) -> bool:
        """Count an entry for its history, and note whose it is."""
        history, who = seen.history.root, seen.who
        kept = history.entries.pop(who, None) or Kept()  # the latest ones stand last
        is_new = not self._is_there(key) or key not in kept.keys
        added = held if is_new else held - kept.of(key)
        self._make_room(history, added)
        if kept.keys:
            history.entries[who] = kept
        if not self._weigh(history, added):
            return False
        kept.put(key, held, is_new=is_new)
        if history.entries:
            history.entries[who] = kept
        else:
            history.entries = {who: kept}
        return True

    def _is_there(self, key: EntryKey) -> bool:
        return key in self._choices or key in self._artifacts

    def _make_room(self, history: History, added: int) -> None:
        if history.held_bytes + added <= self._most:
            return
        for who in sorted(history.entries, key=history.is_of):  # those that it does not know first
            self._drop_of(history, who)
            if history.held_bytes + added <= self._most * _LOW_WATER:
                return

    def _drop_of(self, history: History, who: str) -> None:
        kept = history.entries.pop(who)
        self._discard(kept.keys)
        self._weigh(history, -sum(kept.held))

    def _discard(self, kept: Iterable[EntryKey]) -> None:
        self._latest = _NO_CHOICE
        for key in kept:
            if len(key) == 3:
                self._choices.pop(key, None)
            else:
                self._artifacts.pop(key, None)

    def _last_record(self, seen: Recognised) -> Record | None:
        """Return the record that was last kept for this conversation."""
        kept = seen.history.root.entries.get(seen.who)
        for key in () if kept is None else reversed(kept.keys):
            if len(key) == 3 and key in self._choices:
                return self._choices[key].record
        return None


def _any_in(reached_by: tuple[bytes, ...], links: Collection[bytes]) -> bool:
    return any(each in links for each in reached_by)


def _weight_of(record: Record, known: Record | None) -> int:
    """Estimate the size of a record in bytes; edits that it shares with a known one are counted there."""
    if record is known:
        return _KEY_BYTES
    shared = set[int]() if known is None else set(map(id, known.replace))
    edits = [each for each in record.replace if id(each) not in shared]
    texts = sum([weight_of_fields(part) for each in edits for part in each.parts if type(part) is not int])
    inserted = sum([weight_of(each.message) for each in record.insert])
    return _RECORD_BYTES + _POSITION_BYTES * len(record.drop) + _EDIT_BYTES * len(edits) + texts + inserted
