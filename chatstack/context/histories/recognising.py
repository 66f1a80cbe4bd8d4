"""Recognising conversations that come again, longer, in the same objects or in new ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from chatstack.context.edits.pairing import is_interrupted
from chatstack.context.histories.conversations import Conversation
from chatstack.context.histories.history import History, Recognised
from chatstack.values.messages import Message

NEW_MESSAGES = 64
"""Maximum number of messages by which a conversation may have grown since its last request and still be recognised."""
_HEAD = 2
"""Number of messages that form a history's beginning: the task, and what follows it."""
_ALIKE = 3
"""Minimum overlap, in messages, for treating a history as the same conversation with a rewritten head."""
_SAME_PLACE = 64
_NO_BOUND = 2**62
_role_of = attrgetter("role")


class _Found(msgspec.Struct, frozen=True):
    history: History | None
    known: tuple[Message, ...]
    """Its messages, a prefix of the conversation; empty if only its end was recognised."""


_NOT_FOUND = _Found(None, ())


class _Latest(msgspec.Struct, frozen=True):
    """A cache of the last recognised request: the next layer mostly gets the very same messages."""

    messages: tuple[Message, ...]
    known: tuple[Message, ...]
    seen: Recognised

    def is_still(self, who: str) -> bool:
        """Return True if it belongs to that conversation, and its history has not grown since."""
        return self.seen.who == who and self.seen.history.messages is self.known


class Recogniser:
    """An LRU cache of recent conversations, by their last messages. It is bounded in messages and in bytes;
    ``on_evicted`` is called with each evicted history. ``max_bytes`` is called each time, as other entries count too.

    A request is compared with known histories message by message: by identity if the caller keeps its objects, which
    costs nearly nothing, else by equality.
    """

    def __init__(
        self,
        key: bytes,
        max_messages: int,
        *,
        max_bytes: Callable[[], int] = lambda: _NO_BOUND,
        lock: threading.RLock | None = None,
        on_evicted: Callable[[History], None] | None = None,
    ) -> None:
        self._key = key
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._lock = lock or threading.RLock()
        self._on_evicted = on_evicted
        self._places: dict[int, list[History]] = {}
        self._ends: dict[int, list[History]] = {}
        self._used: OrderedDict[History, _Place] = OrderedDict()
        self._messages = 0
        self._bytes = 0
        self._latest: _Latest | None = None

    def recognise(self, messages: tuple[Message, ...], head: int = 0, who: str = "") -> Recognised:
        """Recognise the history that these messages continue, or make a new one. ``head`` is the number of system
        messages at their head, ``who`` the name of the conversation."""
        conversation = messages[head:] if head else messages
        positions: Sequence[int] = range(head, len(messages))
        latest = self._latest
        if latest is not None and latest.messages is messages and latest.is_still(who):
            return latest.seen
        found = self._found(conversation, who)
        if len(found.known) < len(conversation) and _has_system(conversation[len(found.known) :]):
            positions = tuple(position for position, message in enumerate(messages) if message.role != "system")
            conversation = tuple(messages[position] for position in positions)
            found = self._found(conversation, who)
        length = len(conversation)
        if not length:
            return Recognised(History(self._key, self._lock), Conversation(), 0, positions, False, who)
        last = length - 1 if positions[-1] == len(messages) - 1 else -1
        with self._lock:  # growing a history also changes its pairs
            history = self._grown(found, conversation)
            needs_repair = history.pairs.need_repair(last)
            state = history.conversation(who)
        if not isinstance(positions, range):
            needs_repair = needs_repair or is_interrupted(messages, positions)
        seen = Recognised(history, state, length, positions, needs_repair, state.who)
        self._latest = _Latest(messages, history.messages, seen)
        return seen

    def weigh(self, history: History, added_bytes: int) -> bool:
        """Count bytes that the memory keeps for a history; return False if that history is not known any more."""
        history = history.root
        with self._lock:
            if history not in self._used:
                return False
            history.held_bytes += added_bytes
            self._bytes += added_bytes
            self._evict()
            return history in self._used

    @property
    def held_bytes(self) -> int:
        """The estimated size of all histories in bytes."""
        return self._bytes

    def histories(self) -> tuple[History, ...]:
        """Return all histories, the least recently used first."""
        with self._lock:
            return tuple(self._used)

    def drop(self, history: History) -> None:
        """Forget one history."""
        with self._lock:
            place = self._used.pop(history, None)
            if place is not None:
                self._uncount(history, place)

    def _uncount(self, history: History, place: _Place) -> None:
        self._latest = None
        self._messages -= len(history.messages)
        self._bytes -= history.held_bytes
        self._leave(history, place)

    def clear(self) -> None:
        """Forget all histories."""
        with self._lock:
            self._places.clear()
            self._ends.clear()
            self._used.clear()
            self._latest = None
            self._messages = self._bytes = 0

    def _found(self, conversation: tuple[Message, ...], who: str) -> _Found:
        """Find the longest known history that this one continues, one of the same conversation first; else one that
        differs only in its beginning."""
        length, others = len(conversation), _NOT_FOUND
        for at in _ends_of(length):
            for history in self._places.get(_place(conversation, at), ()):
                known = history.messages
                if len(known) == at + 1 and (conversation if at + 1 == length else conversation[: at + 1]) == known:
                    if history.is_of(who):
                        return _Found(history, known)
                    others = _Found(history, known) if others.history is None else others
        return _Found(self._moved(conversation), ()) if others.history is None else others

    def _moved(self, conversation: tuple[Message, ...]) -> History | None:
        """Find the history that differs only in its beginning; None if there are several: which one is not known."""
        for at in _ends_of(len(conversation)):
            if at + 1 - _HEAD < _ALIKE:
                return None
            known = self._ends.get(_end(conversation, at), ())
            moved = [history for history in known if _has_moved(history.messages, conversation[: at + 1])]
            if moved:
                return moved[0] if len(moved) == 1 else None
        return None

    def _grown(self, found: _Found, conversation: tuple[Message, ...]) -> History:
        history, known = found.history, found.known
        if history is not None and known:
            # Else it has grown in another thread in the meantime, or it was evicted.
            if history.messages is known and history in self._used:
                if len(known) < len(conversation):
                    history.moves = 0
                self._keep(history, conversation, known)
                return history
            history = None
        grown = History(self._key, self._lock)
        if history is not None:
            grown.moves = history.moves + 1
            for who, levels in history.levels().items():
                grown.conversation(who).levels.update(levels)
        self._keep(grown, conversation, ())
        return grown

    def _keep(self, history: History, conversation: tuple[Message, ...], known: tuple[Message, ...]) -> None:
        """Grow a history, and index it by its new end."""
        if len(known) != len(conversation):
            if known:
                self._leave(history, self._used[history])
            at = len(conversation) - 1
            self._used[history] = _Place(_place(conversation, at), _end(conversation, at))
            for places, key in zip((self._places, self._ends), self._used[history], strict=True):
                there = places.setdefault(key, [])
                there.append(history)
                del there[:-_SAME_PLACE]
        held = history.held_bytes if known else 0
        history.grow(conversation)
        self._used.move_to_end(history)
        if len(known) != len(conversation):
            self._messages += len(conversation) - len(known)
            self._bytes += history.held_bytes - held
            self._evict()

    def _evict(self) -> None:
        """Evict the least recently used histories, down to the bounds; at least one stays."""
        max_bytes = self._max_bytes()
        while len(self._used) > 1 and (self._messages > self._max_messages or self._bytes > max_bytes):
            old, place = self._used.popitem(last=False)
            self._uncount(old, place)
            if self._on_evicted is not None:
                self._on_evicted(old)

    def _leave(self, history: History, left: _Place) -> None:
        for places, key in zip((self._places, self._ends), left, strict=True):
            others = [each for each in places.get(key, ()) if each is not history]
            if others:
                places[key] = others
            else:
                places.pop(key, None)


def _has_moved(before: tuple[Message, ...], now: tuple[Message, ...]) -> bool:
    """Return True if a history lost messages at its head, or right after it, and the rest is the same."""
    alike = len(now) - _HEAD
    if before[:_HEAD] != now[:_HEAD]:
        return before[-alike:] == now[_HEAD:]
    half = max(_ALIKE, len(now) // 2)
    return len(before) > len(now) and before[-half:] == now[-half:]


class _Place(NamedTuple):
    """The hash keys of a conversation, of a sample of it and of its end; matches are compared in full."""

    whole: int
    end: int


def _ends_of(length: int) -> range:
    """Return the positions where a known prefix of a conversation may end, last first."""
    return range(length - 1, max(-1, length - 1 - NEW_MESSAGES), -1)


def _place(conversation: tuple[Message, ...], at: int) -> int:
    """Hash a sample of the messages up to ``at``: the last ones alone are often equal where a task is repeated."""
    before, second = (at - 1, 1) if at else (0, 0)
    # One flat tuple: this is computed several times on every call.
    return hash(
        (at, conversation[0], conversation[second], conversation[at // 2], conversation[before], conversation[at])
    )


def _end(conversation: tuple[Message, ...], at: int) -> int:
    return hash((conversation[at - 1] if at else None, conversation[at]))


def leading_systems(messages: tuple[Message, ...]) -> int:
    """Return the number of system messages at the head of these. Later ones come and go."""
    head = 0
    for message in messages:
        if message.role != "system":
            break
        head += 1
    return head


def _has_system(messages: tuple[Message, ...]) -> bool:
    return "system" in map(_role_of, messages)
