"""Histories: conversations that are recognised when they come again, longer, in the same objects or in fresh ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from chatstack.context.digests import first_link, next_link
from chatstack.context.pairing import Pairs
from chatstack.context.records import Decision, Record
from chatstack.context.units import is_users
from chatstack.tokens.calibration import Anchor
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message

NEW_MESSAGES = 64
"""How many messages a conversation may have grown by since its last request, and still be looked for by its end."""
_LONG = 8
_PATIENCE = 32
_HEAD = 2
"""A history has another beginning if these differ: the task, and what follows it."""
_ALIKE = 3
"""So many messages, and all that both have behind their beginnings, are alike where it is only the beginning that
moved; conversations that merely end alike are two."""
_SAME_PLACE = 64
_COUNTERS = 4


class LastAnswer(NamedTuple):
    """When the last answer to a history had arrived, what was reported for it, and what had been decided by then.

    ``missed_cache``: hardly anything came from the provider's cache, though it had seen all of the request before.
    """

    at: float
    input_tokens: int
    missed_cache: bool
    record: Record | None


class History:
    """One conversation as far as it has come, system messages left out, and all that was worked out of it.

    It only grows, at its end, so whatever is asked for a length stays true. It lives in the memory; nothing of it is
    ever needed for a correct request, it only saves working it out again.
    """

    __slots__ = (
        "_chain",
        "_key",
        "_lock",
        "_sums",
        "_waits",
        "anchors",
        "answered",
        "asked",
        "decisions",
        "latest_assistant",
        "latest_user",
        "left_out",
        "levels",
        "messages",
        "moves",
        "pairs",
    )

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self._lock = threading.Lock()
        self._chain: list[bytes] = []
        self._sums: dict[TokenCounter, list[int]] = {}
        self.messages: tuple[Message, ...] = ()
        self.pairs = Pairs()
        self.latest_user = self.latest_assistant = -1
        self.moves = 0
        """How often running it came with another beginning than before."""
        self.levels: dict[str, int] = {}
        self.decisions: dict[str, Decision] = {}
        self.anchors: dict[str, tuple[object, Anchor]] = {}
        """What the provider reported for it, under the terms on which it was sent."""
        self.answered: LastAnswer | None = None
        self._waits: dict[str, tuple[int, ...]] = {}
        """Where the user's latest word stood when an edit was not worth it, and the sizes of the context then."""
        self.left_out: tuple[Record, Record | None, int] | None = None
        """What a layer further in has left out, of what was decided further out, and how many tokens less that is."""
        self.asked: dict[str, int] = {}
        """For how many of its messages a store has been asked, under which terms."""

    def grow(self, messages: tuple[Message, ...]) -> None:
        """Take in what was added. ``messages`` begin with those that are known, maybe in fresh objects."""
        add = self.pairs.add
        for position in range(len(self.messages), len(messages)):
            message = messages[position]
            add(position, message)
            if message.role == "assistant":
                self.latest_assistant = position
            elif is_users(message):
                self.latest_user = position
        self.messages = messages

    def wait(self, owner: str, *sizes: int) -> None:
        """An edit was not worth it: that layer need not look again before the user has spoken, or one of the context's
        sizes has grown by a 32nd."""
        self._waits[owner] = (self.latest_user, *sizes)

    def is_waiting(self, owner: str, *sizes: int) -> bool:
        """Whether neither has come yet; a context that has shrunk is another."""
        latest_user, *since = self._waits.get(owner, (-2,))
        return latest_user == self.latest_user and all(
            before <= now <= before + before // _PATIENCE for before, now in zip(since, sizes, strict=True)
        )

    def links(self, length: int) -> Sequence[bytes]:
        """Digests: the one at ``i`` stands for the first ``i + 1`` messages. At least as many as asked for."""
        chain = self._chain
        if len(chain) < length:
            with self._lock:
                link = chain[-1] if chain else first_link(self._key)
                for message in self.messages[len(chain) : length]:
                    link = next_link(link, message, self._key)
                    chain.append(link)
        return chain

    def sums(self, length: int, counter: TokenCounter, size_of: Callable[[Message], int]) -> Sequence[int]:
        """Sizes, summed up: the one at ``i`` is that of the first ``i`` messages. At least up to ``length``."""
        sums = self._sums.get(counter)
        if sums is None or len(sums) <= length:
            with self._lock:
                if sums is None:
                    if len(self._sums) >= _COUNTERS:
                        self._sums.clear()
                    sums = self._sums.setdefault(counter, [0])
                total = sums[-1]
                for message in self.messages[len(sums) - 1 : length]:
                    total += size_of(message)
                    sums.append(total)
        return sums


class Recognised(msgspec.Struct, frozen=True):
    """What is known of the messages of one request.

    ``positions`` are those of the conversation's messages in the request: a range, where the system messages all
    stand at its head.
    """

    history: History
    length: int
    positions: Sequence[int]
    needs_repair: bool

    @property
    def links(self) -> Sequence[bytes]:
        """The digests of the beginnings of the conversation."""
        return self.history.links(self.length)

    def systems_in(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The system messages of the request: mostly its head, and then the rest need not be looked at."""
        if isinstance(self.positions, range):
            return messages[: self.positions.start]
        return tuple(message for message in messages if message.role == "system")

    @property
    def is_unstable(self) -> bool:
        """Whether a long history came with another beginning twice running: nothing decided for it can be replayed."""
        return self.history.moves > 1 and self.length >= _LONG


class _Found(NamedTuple):
    history: History | None
    known: tuple[Message, ...]
    """Its messages, all of them at the beginning of what was looked for; empty if only its end was."""


class Recogniser:
    """Knows the conversations that went by last, by how they ended. Bounded: what was not used for longest goes.

    A request is compared with what is known message by message: by identity where the caller keeps its objects, which
    costs nearly nothing, else by equality.
    """

    def __init__(self, key: bytes, max_messages: int) -> None:
        self._key = key
        self._max_messages = max_messages
        self._lock = threading.Lock()
        self._places: dict[int, list[History]] = {}
        self._ends: dict[int, list[History]] = {}
        self._used: OrderedDict[History, _Place] = OrderedDict()
        self._messages = 0

    def recognise(self, messages: tuple[Message, ...]) -> Recognised:
        """The history of these messages: the one that they continue, or a new one."""
        head = _leading_systems(messages)
        conversation = messages[head:] if head else messages
        positions: Sequence[int] = range(head, len(messages))
        found = self._found(conversation)
        if len(found.known) < len(conversation) and _has_system(conversation[len(found.known) :]):
            positions = tuple(position for position, message in enumerate(messages) if message.role != "system")
            conversation = tuple(messages[position] for position in positions)
            found = self._found(conversation)
        length = len(conversation)
        if not length:
            return Recognised(History(self._key), 0, positions, needs_repair=False)
        last = length - 1 if positions[-1] == len(messages) - 1 else -1
        with self._lock:  # whoever makes it grow pairs its calls, too
            history = self._grown(found, conversation)
            waiting = history.pairs.waiting.values()
            needs_repair = bool(history.pairs.orphans) or any(at != last for asked in waiting for at, _ in asked)
        return Recognised(history, length, positions, needs_repair)

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._places.clear()
            self._ends.clear()
            self._used.clear()
            self._messages = 0

    def _found(self, conversation: tuple[Message, ...]) -> _Found:
        """The longest known history that this one continues; or one that differs in nothing but its beginning."""
        length = len(conversation)
        for at in _ends_of(length):
            for history in self._places.get(_place(conversation, at), ()):
                known = history.messages
                if len(known) == at + 1 and (conversation if at + 1 == length else conversation[: at + 1]) == known:
                    return _Found(history, known)
        return _Found(self._moved(conversation), ())

    def _moved(self, conversation: tuple[Message, ...]) -> History | None:
        """The history that came with another beginning; several such histories are so many conversations."""
        for at in _ends_of(len(conversation)):
            if at + 1 - _HEAD < _ALIKE:
                return None
            known = self._ends.get(_end(conversation, at), ())
            moved = [history for history in known if _has_moved(history.messages, conversation[: at + 1])]
            if moved:
                return moved[0] if len(moved) == 1 else None
        return None

    def _grown(self, found: _Found, conversation: tuple[Message, ...]) -> History:
        history, known = found
        if history is not None and known:
            # Else somebody made it grow in the meantime, or it was forgotten.
            if history.messages is known and history in self._used:
                if len(known) < len(conversation):
                    history.moves = 0
                self._keep(history, conversation, known)
                return history
            history = None
        grown = History(self._key)
        if history is not None:
            grown.moves = history.moves + 1
            grown.levels = dict(history.levels)
        self._keep(grown, conversation, ())
        return grown

    def _keep(self, history: History, conversation: tuple[Message, ...], known: tuple[Message, ...]) -> None:
        """Have it known by its new end."""
        if len(known) != len(conversation):
            if known:
                self._leave(history, self._used[history])
            at = len(conversation) - 1
            self._used[history] = _Place(_place(conversation, at), _end(conversation, at))
            for places, key in zip((self._places, self._ends), self._used[history], strict=True):
                there = places.setdefault(key, [])
                there.append(history)
                del there[:-_SAME_PLACE]
        history.grow(conversation)
        self._messages += len(conversation) - len(known)
        self._used.move_to_end(history)
        while self._messages > self._max_messages and len(self._used) > 1:
            old, place = self._used.popitem(last=False)
            self._messages -= len(old.messages)
            self._leave(old, place)

    def _leave(self, history: History, left: _Place) -> None:
        for places, key in zip((self._places, self._ends), left, strict=True):
            others = [each for each in places.get(key, ()) if each is not history]
            if others:
                places[key] = others
            else:
                places.pop(key, None)


def _has_moved(before: tuple[Message, ...], now: tuple[Message, ...]) -> bool:
    """Whether something went out of a history at its head, or behind it, and all that is left is the same."""
    alike = len(now) - _HEAD
    if before[:_HEAD] != now[:_HEAD]:
        return before[-alike:] == now[_HEAD:]
    half = max(_ALIKE, len(now) // 2)
    return len(before) > len(now) and before[-half:] == now[-half:]


class _Place(NamedTuple):
    """What a conversation is looked up by, as it is and by its end alone; never more than a hint."""

    whole: int
    end: int


def _ends_of(length: int) -> range:
    """Where a known beginning of a conversation may end, the last place first."""
    return range(length - 1, max(-1, length - 1 - NEW_MESSAGES), -1)


def _place(conversation: tuple[Message, ...], at: int) -> int:
    """Messages from all over it: those that end there alike are many, where the same is done again and again."""
    before, second = (at - 1, 1) if at else (0, 0)
    # One flat tuple: this is worked out several times on every call.
    return hash(
        (at, conversation[0], conversation[second], conversation[at // 2], conversation[before], conversation[at])
    )


def _end(conversation: tuple[Message, ...], at: int) -> int:
    return hash((conversation[at - 1] if at else None, conversation[at]))


def _leading_systems(messages: tuple[Message, ...]) -> int:
    head = 0
    for message in messages:
        if message.role != "system":
            break
        head += 1
    return head


def _has_system(messages: tuple[Message, ...]) -> bool:
    return any(message.role == "system" for message in messages)
