"""Recognising conversations that come again, longer, in the same objects or in new ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TypeAlias

import msgspec

from chatstack.context.edits.pairing import is_interrupted
from chatstack.context.histories.conversations import Conversation
from chatstack.context.histories.derived import changes, take_forms
from chatstack.context.histories.history import History
from chatstack.context.histories.last_words import common_length, is_words, stand_for, words_of_users
from chatstack.context.histories.moving import ALIKE, HEAD, asks, has_moved
from chatstack.context.histories.own_past import OwnPast
from chatstack.context.histories.recognised import Recognised
from chatstack.context.histories.taken_out import stand_in_place
from chatstack.values.messages import Message

NEW_MESSAGES = 64
"""Maximum number of messages by which a conversation may have grown since its last request and still be recognised."""
_SAME_PLACE = 64
_NO_BOUND = 2**62
_role_of = attrgetter("role")


class _Found(msgspec.Struct, frozen=True):
    history: History | None
    known: tuple[Message, ...]
    """Its messages when it was found."""
    alike: int
    """Number of them that the conversation begins with: all, or all up to last words of users. 0 if only its end was
    recognised."""
    stays: int = 0
    """Number of messages that its state holds for, where the conversation goes on with the answer to that request: all
    but what is about messages that have changed."""


_NOT_FOUND = _Found(None, (), 0)


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
        past: OwnPast | None = None,
        on_evicted: Callable[[History], None] | None = None,
    ) -> None:
        self._key = key
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._lock = lock or threading.RLock()
        self._past = OwnPast(1, self._lock) if past is None else past
        self._on_evicted = on_evicted
        self._places: dict[int, list[History]] = {}
        self._ends: dict[int, list[History]] = {}
        self._indexes = (self._places, self._ends, self._places, self._ends)
        self._used: OrderedDict[History, _Place] = OrderedDict()
        self._messages = 0
        self._bytes = 0

    def recognise(self, messages: tuple[Message, ...], head: int = 0, who: str = "") -> Recognised:
        """Recognise the history that these messages continue, or make a new one. ``head`` is the number of system
        messages at their head, ``who`` the name of the conversation."""
        conversation = messages[head:] if head else messages
        positions: Sequence[int] = range(head, len(messages))
        found = self._found(conversation, who)
        if found.alike < len(conversation) and _has_system(conversation[found.alike :]):
            positions = tuple(position for position, message in enumerate(messages) if message.role != "system")
            conversation = tuple(messages[position] for position in positions)
            found = self._found(conversation, who)
        length = len(conversation)
        if not length:
            return Recognised(History(self._key, self._lock), Conversation(), 0, positions, False, who)
        last = length - 1 if positions[-1] == len(messages) - 1 else -1
        with self._lock:  # growing a history also changes its pairs
            history = self._grown(found, conversation, who)
            needs_repair = history.pairs.need_repair(last)
            leaving = history.leaving(who)
            if leaving:
                self._past.seal_states(history, leaving)
            state = history.conversation(who)
        if not isinstance(positions, range):
            needs_repair = needs_repair or is_interrupted(messages, positions)
        return Recognised(history, state, length, positions, needs_repair, state.who)

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
        self._past.seal(history, history.conversations)
        self._count(history, -1)
        self._leave(history, place)

    def _count(self, history: History, times: int = 1) -> None:
        self._messages += times * len(history.messages)
        self._bytes += times * history.held_bytes

    def clear(self) -> None:
        """Forget all histories."""
        with self._lock:
            for history in self._used:
                self._past.seal(history, history.conversations)
            self._places.clear()
            self._ends.clear()
            self._used.clear()
            self._messages = self._bytes = 0

    def _found(self, conversation: tuple[Message, ...], who: str) -> _Found:
        """Find the longest known history that this one continues, one of the same conversation first; else the one that
        it goes on from further back, or one that differs only in its beginning."""
        length, others = len(conversation), _NOT_FOUND
        going: list[_Found] = []  # list[_Found]() takes 0.5 µs more, for each call
        for at in _ends_of(length):
            alike = at + 1
            for history in self._places.get(_place(conversation, at), ()):
                known = history.messages
                is_its_own = history.is_of(who)
                if len(known) < alike or (others.history is not None and not is_its_own):
                    continue
                if conversation[:alike] != known[:alike]:  # slices of the whole are no copies
                    continue
                if is_its_own and len(known) == alike:
                    return _Found(history, known, alike)
                both = alike + common_length(conversation[alike:], known[alike:])
                stays = self._stays(history, who, alike, conversation[alike:]) if is_its_own else None
                if stays is not None:
                    going.append(_Found(history, known, both, max(both, stays)))
                if others.history is None and (len(known) == alike or is_words(known[-1])):
                    others = _Found(history, known, both)
            if len(going) == 1:
                return going[0]
            going.clear()  # it is not known which of several it is
        if others.history is not None and others.history.is_of(who):
            return others
        by_end = self._by_its_end(conversation, who)
        return others if by_end is None else by_end

    def _by_its_end(self, conversation: tuple[Message, ...], who: str) -> _Found | None:
        """Find the history of which a caller has changed messages since it was answered, or that differs only in its
        beginning; None if there are several: which one is not known."""
        for at in _ends_of(len(conversation)):
            if at + 1 - HEAD < ALIKE:
                return None
            now, then = conversation[: at + 1], conversation[at + 1 :]
            known = [each for each in self._ends.get(_end(conversation, at), ()) if each.is_of(who)]
            changed = [
                each
                for each in known
                if self._before_answer(each, who, at + 1, then) >= 0 and stand_in_place(now, each.messages[: at + 1])
            ]
            if changed:
                before = changed[0].messages
                return _Found(changed[0], before, common_length(now, before), at + 1) if len(changed) == 1 else None
            moved = [each for each in known if has_moved(each.messages, now)] or [
                each
                for each in known
                if has_moved(_kept(each.messages), now)
                and self._stays(each, who, len(_kept(each.messages)), then) is not None
            ]
            if moved:
                return _Found(moved[0], (), 0) if len(moved) == 1 else None
        return None

    def _stays(self, history: History, who: str, alike: int, following: tuple[Message, ...]) -> int | None:
        """Return the length of the last request if calls of tools in it have kept their places, else 0, where a
        conversation goes on with the answer to it: these follow what both have. None if it does not."""
        count = self._before_answer(history, who, alike, following)
        if count < 0:
            return None
        is_asked = is_words(history.messages[-1])
        return 0 if is_asked or alike + count < len(history.messages) else alike + count

    def _before_answer(self, history: History, who: str, alike: int, following: tuple[Message, ...]) -> int:
        """Return how many of these stand for what a history has behind its first ``alike`` messages, if the answer to
        that request comes next; else -1."""
        count = stand_for(following, history.messages[alike:])
        return count if count >= 0 and self._past.is_answered(who, history, following[count:]) else -1

    def _grown(self, found: _Found, conversation: tuple[Message, ...], who: str) -> History:
        history, known, alike, length = found.history, found.known, found.alike, len(conversation)
        if history is None or (alike and (history.messages is not known or history not in self._used)):
            grown = History(self._key, self._lock)  # or it has grown in another thread, or was evicted
        elif not alike:
            grown = History(self._key, self._lock)
            grown.moves, grown.moved_at = history.moves + 1, length
            for each in history.conversations:
                grown.conversation(each.who).levels.update(each.levels)
        elif alike < len(known):
            grown = self._branched(found, history, conversation, who)
        else:
            if history.moves and (asks(conversation[alike - 1 :]) or length - history.moved_at > NEW_MESSAGES):
                history.moves = 0
            self._keep(history, conversation, known)
            return history
        self._keep(grown, conversation, ())
        return grown

    def _branched(self, found: _Found, history: History, conversation: tuple[Message, ...], who: str) -> History:
        """Return a history of the first messages of this one."""
        self._count(history, -1)
        made = history.branched(conversation[: found.alike])
        if found.stays:
            made.moves, made.moved_at = history.moves, history.moved_at
            made.grow(conversation[: found.stays])
            made.go_on_from(history, who, changes(history, made, found.alike))
            take_forms(history, made, who, found.alike, self._past)
        self._count(history)
        if found.stays and len(history.conversations) == 1:
            self.drop(history)  # nobody comes back to it: it would hold the objects of an earlier call
        return made

    def _keep(self, history: History, conversation: tuple[Message, ...], known: tuple[Message, ...]) -> None:
        """Grow a history, and index it by its new end."""
        if len(known) != len(conversation):
            before: _Place | None = self._used[history] if known else None
            if before is not None:
                self._leave(history, before)
            self._used[history] = place = _place_of(conversation, len(known), before)
            for places, key in zip(self._indexes, place, strict=False):
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
        if len(self._used) < 2:
            return
        max_bytes = self._max_bytes()
        while len(self._used) > 1 and (self._messages > self._max_messages or self._bytes > max_bytes):
            old, place = self._used.popitem(last=False)
            self._uncount(old, place)
            if self._on_evicted is not None:
                self._on_evicted(old)

    def _leave(self, history: History, left: _Place) -> None:
        for places, key in zip(self._indexes, left, strict=False):
            others = [each for each in places.get(key, ()) if each is not history]
            if others:
                places[key] = others
            else:
                places.pop(key, None)


_Place: TypeAlias = tuple[int, ...]
"""The hash keys of a conversation: of a sample of it and of its end, then the same without the last words of users, and
what followed them since, as those may not come again; matches are compared in full."""


def _place_of(conversation: tuple[Message, ...], known: int, before: _Place | None) -> _Place:
    """Return the keys of a conversation, of which that many messages had the keys ``before``."""
    at = len(conversation) - 1
    last = len(_kept(conversation)) - 1
    place = (_place(conversation, at), _end(conversation, at))
    if last < at:
        return (*place, _place(conversation, last), _end(conversation, last))
    if before is None or len(before) == len(place) or any(map(is_words, conversation[known:])):
        return place
    return (*place, *before[2:])


def _kept(conversation: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return a conversation without its last words of users, but for its first message."""
    return conversation[: max(1, len(conversation) - words_of_users(conversation))]


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
    """Hash the last two messages; of results an id, as callers may cut them once they were answered."""
    key: list[object] = []
    for message in conversation[max(0, at - 1) : at + 1]:
        parts = message.parts
        key.append(getattr(parts[0], "call_id", message) if parts and message.role == "tool" else message)
    return hash(tuple(key))


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
