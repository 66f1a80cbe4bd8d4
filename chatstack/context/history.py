"""Histories: lists of messages that only grow, with all that was worked out of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

from chatstack.context.conversations import Conversation
from chatstack.context.digests import first_link, next_link
from chatstack.context.pairing import Pairs
from chatstack.context.units import is_users
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.parts import Text, ToolCall, ToolResult

_LONG = 8
_COUNTERS = 4
_MOST_CONVERSATIONS = 16
_HISTORY_BYTES = 4_000
_PART_BYTES = 100
_MESSAGE_BYTES = 600
"""A message with one part, beside its text, with what is kept for it: sizes, digests, its place."""


class History:
    """A list of messages as far as it has come, system messages left out, and all that was worked out of them.

    It only grows, at its end, so whatever is asked for a length stays true. It lives in the memory; nothing of it is
    ever needed for a correct request, it only saves working it out again. Conversations that begin alike may share one,
    for as long as they are the same; what is a matter of one conversation is in ``conversation(who)``.
    """

    __slots__ = (
        "_chain",
        "_conversations",
        "_hashes",
        "_key",
        "_lock",
        "_sums",
        "entries",
        "held_bytes",
        "latest_assistant",
        "latest_user",
        "messages",
        "moves",
        "pairs",
    )

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self._lock = threading.Lock()
        self._chain: list[bytes] = []
        self._hashes: list[int] = []
        self._sums: dict[TokenCounter, list[int]] = {}
        self._conversations: dict[str, Conversation] = {}
        self.messages: tuple[Message, ...] = ()
        self.pairs = Pairs()
        self.latest_user = self.latest_assistant = -1
        self.moves = 0
        """How often running it came with another beginning than before."""
        self.entries: list[object] = []
        """The keys of what the memory keeps because of it; they go when it goes."""
        self.held_bytes = _HISTORY_BYTES
        """About what it holds, its messages and entries included."""

    def conversation(self, who: str) -> Conversation:
        """The state of that conversation."""
        found = self._conversations.get(who)
        if found is None:
            while len(self._conversations) >= _MOST_CONVERSATIONS:
                self._conversations.pop(next(iter(self._conversations)), None)
            found = self._conversations[who] = Conversation()
        return found

    def is_of(self, who: str) -> bool:
        """Whether that conversation has had this history."""
        return who in self._conversations

    def levels(self) -> dict[str, dict[str, int]]:
        """The warning levels of its conversations."""
        return {who: dict(each.levels) for who, each in self._conversations.items()}

    def grow(self, messages: tuple[Message, ...]) -> None:
        """Take in what was added. ``messages`` begin with those that are known, maybe in fresh objects."""
        pairs, held_bytes = self.pairs, 0
        for position in range(len(self.messages), len(messages)):
            message = messages[position]
            parts = message.parts
            if len(parts) == 1 and type(parts[0]) is Text:  # most of them, in some conversations
                pairs.round_at = -1
            else:
                pairs.add(position, message)
            held_bytes += weight_of(message)
            role = message.role
            if role == "assistant":
                self.latest_assistant = position
            elif role == "user" and is_users(message):
                self.latest_user = position
        self.held_bytes += held_bytes
        self.messages = messages

    def prefix_hash(self, length: int) -> int:
        """A hash of the first so many messages, in this process only."""
        hashes = self._hashes
        if len(hashes) < length:
            with self._lock:
                prefix = hashes[-1] if hashes else 0
                for message in self.messages[len(hashes) : length]:
                    prefix = hash((prefix, message))
                    hashes.append(prefix)
        return hashes[length - 1]

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

    ``conversation`` is the state of the one that it belongs to. ``positions`` are those of its messages in the request:
    a range, where the system messages all stand at its head.
    """

    history: History
    conversation: Conversation
    length: int
    positions: Sequence[int]
    needs_repair: bool
    who: str = ""

    @property
    def links(self) -> Sequence[bytes]:
        """The digests of the beginnings of the conversation."""
        return self.history.links(self.length)

    def head_of(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The system messages at the head of the request."""
        return messages[: self.positions[0] if self.positions else len(messages)]

    def systems_in(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The system messages of the request: mostly its head, and then the rest need not be looked at."""
        if isinstance(self.positions, range):
            return messages[: self.positions.start]
        return tuple(message for message in messages if message.role == "system")

    def latest_user(self, length: int) -> int:
        """The position of the latest user message among the first so many; -1 if there is none."""
        messages = self.history.messages
        return next((at for at in range(length - 1, -1, -1) if is_users(messages[at])), -1)

    @property
    def is_unstable(self) -> bool:
        """Whether a long history came with another beginning twice running: nothing decided for it can be replayed."""
        return self.history.moves > 1 and self.length >= _LONG


def weight_of(message: Message) -> int:
    """About how many bytes a message takes: its text, and what is kept beside it."""
    weight = _MESSAGE_BYTES + len(message.extra_json)
    for part in message.parts:
        weight += _PART_BYTES
        if type(part) is Text:  # nearly all of them are texts, calls and results
            weight += part.text.__sizeof__()
        elif type(part) is ToolCall:
            weight += 2 * _PART_BYTES + part.arguments.__sizeof__()
        elif type(part) is ToolResult and type(part.output) is str:
            weight += 2 * _PART_BYTES + part.output.__sizeof__()
        else:
            weight += _weight_of_fields(part)
    return weight


def _weight_of_fields(part: object) -> int:
    weight = 0
    for name in getattr(part, "__struct_fields__", ()):  # not properties: a result's text is its output once more
        value = getattr(part, name)
        if type(value) is str:
            weight += value.__sizeof__()
        elif type(value) is tuple:
            values = cast("tuple[object, ...]", value)
            weight += _PART_BYTES * len(values) + sum(map(_weight_of_fields, values))
    return weight
