"""Histories: conversations that are recognised when they come again, longer, in the same objects or in fresh ones."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chatstack.context.digests import first_link, next_link
from chatstack.context.pairing import Pairs
from chatstack.context.records import Decision, Record
from chatstack.tokens.calibration import Anchor
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message

NEW_MESSAGES = 64
"""How many messages a conversation may have grown by since its last request, and still be looked for by its end."""
_LONG = 8
_HEAD = 2
"""A history has another beginning if these differ: the task, and what follows it."""
_SAME_END = 16
_COUNTERS = 4


class Answered(NamedTuple):
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
        "anchors",
        "answered",
        "decisions",
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
        self.moves = 0
        """How often running it came with another beginning than before."""
        self.levels: dict[str, int] = {}
        self.decisions: dict[str, Decision] = {}
        self.anchors: dict[str, tuple[object, Anchor]] = {}
        """What the provider reported for it, under the terms on which it was sent."""
        self.answered: Answered | None = None

    def grow(self, messages: tuple[Message, ...]) -> None:
        """Take in what was added. ``messages`` begin with those that are known, maybe in fresh objects."""
        add = self.pairs.add
        for position in range(len(self.messages), len(messages)):
            add(position, messages[position])
        self.messages = messages

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


@dataclass(frozen=True, slots=True)
class Recognised:
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
        self._ends: dict[int, list[History]] = {}
        self._used: OrderedDict[History, int] = OrderedDict()
        self._messages = 0

    def recognise(self, messages: tuple[Message, ...]) -> Recognised:
        """The history of these messages: the one that they continue, or a new one."""
        head = _leading_systems(messages)
        conversation = messages[head:] if head else messages
        positions: Sequence[int] = range(head, len(messages))
        found = self._found(conversation)
        if _has_system(conversation[len(found.known) :]):
            positions = tuple(position for position, message in enumerate(messages) if message.role != "system")
            conversation = tuple(messages[position] for position in positions)
            found = self._found(conversation)
        length = len(conversation)
        history = self._grown(found, conversation) if length else History(self._key)
        last = length - 1 if length and positions[-1] == len(messages) - 1 else -1
        needs_repair = bool(history.pairs.orphans) or any(
            position != last for asked in history.pairs.waiting.values() for position, _ in asked
        )
        return Recognised(history, length, positions, needs_repair)

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._ends.clear()
            self._used.clear()
            self._messages = 0

    def _found(self, conversation: tuple[Message, ...]) -> _Found:
        """The longest known history that this one continues; or one that ended like it, but began otherwise."""
        length = len(conversation)
        moved: History | None = None
        for at in range(length - 1, max(-1, length - 1 - NEW_MESSAGES), -1):
            for history in self._ends.get(_end(conversation, at), ()):
                known = history.messages
                if len(known) == at + 1 and (conversation if at + 1 == length else conversation[: at + 1]) == known:
                    return _Found(history, known)
                if at and known[:_HEAD] != conversation[:_HEAD]:
                    moved = moved or history
        return _Found(moved, ())

    def _grown(self, found: _Found, conversation: tuple[Message, ...]) -> History:
        with self._lock:
            history, known = found
            if history is not None and known:
                if history.messages is known:  # nobody else has made it grow in the meantime
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
        end = _end(conversation, len(conversation) - 1)
        if known and (len(known) != len(conversation)):
            self._leave(history, _end(known, len(known) - 1))
        if len(known) != len(conversation):
            there = self._ends.setdefault(end, [])
            there.append(history)
            del there[:-_SAME_END]
        history.grow(conversation)
        self._messages += len(conversation) - len(known)
        self._used[history] = end
        self._used.move_to_end(history)
        while self._messages > self._max_messages and len(self._used) > 1:
            old, old_end = self._used.popitem(last=False)
            self._messages -= len(old.messages)
            self._leave(old, old_end)

    def _leave(self, history: History, end: int) -> None:
        there = self._ends.get(end)
        if there is not None:
            left = [each for each in there if each is not history]
            if left:
                self._ends[end] = left
            else:
                del self._ends[end]


def _end(conversation: tuple[Message, ...], at: int) -> int:
    """What a conversation that ends there is looked up by; never more than a hint."""
    return hash((conversation[at - 1], conversation[at])) if at else hash(conversation[0])


def _leading_systems(messages: tuple[Message, ...]) -> int:
    head = 0
    for message in messages:
        if message.role != "system":
            break
        head += 1
    return head


def _has_system(messages: tuple[Message, ...]) -> bool:
    return any(message.role == "system" for message in messages)
