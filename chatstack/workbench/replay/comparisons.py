"""Two common ways of shortening a conversation, for comparison with ours.

They are no features: they decide nothing once and for all, so each call may be cut another way, and that is what is
compared. What they keep of a conversation (sizes, units) only saves working it out again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.context.edits.handles import PLACEHOLDER
from chatstack.context.edits.units import is_users
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.strategy import AppliesStrategy
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.parts import Part, ToolResult
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.following import shared_start
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.measures.near import GrowingUnits

SizeOf: TypeAlias = Callable[[Message], int]


class Shortened(NamedTuple):
    """Messages to send, their size in tokens, and why they are fewer."""

    messages: tuple[Message, ...]
    tokens: int
    reason: str


class Shortening(Protocol):
    """A way of shortening one history that only grows."""

    def add(self, message: Message, size: int) -> None:
        """Add the next message of the history, and its size in tokens."""
        ...

    def shortened(self, fixed_tokens: int) -> Shortened | None:
        """Return what to send instead of the whole history; None for that. ``fixed_tokens`` are sent beside it."""
        ...


class Comparison(Protocol):
    """A way of shortening, by name."""

    @property
    def name(self) -> str: ...

    def begin(self, size_of: SizeOf) -> Shortening:
        """Begin a history."""
        ...


class Anew:
    """Shortens each request by itself.

    Edits are not verified, and none is kept: what it compares with makes none of our promises.
    """

    def __init__(
        self,
        inner: ChatClient,
        *,
        comparison: Comparison,
        memory: ContextMemory,
        telemetry: Telemetry,
        counter: TokenCounter | None = None,
    ) -> None:
        self.inner = inner
        self.comparison = comparison
        self._memory = memory
        self._telemetry = telemetry
        self._counter = counter or WireCounter.best()
        self._size_of = memory.sizes_by(self._counter)
        self._messages: tuple[Message, ...] = ()
        self._tokens = 0
        self._shortening = comparison.begin(self._size_of)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        """Shorten the request, pass it on."""
        self._follow(request.messages)
        fixed = self._memory.options_size(request.options, self._counter)
        found = self._shortening.shortened(fixed)
        if found is None:
            return await self.inner.send(request)
        before, after = fixed + self._tokens, fixed + found.tokens
        self._telemetry.edit(self.comparison.name, found.reason, {}, tokens_before=before, tokens_after=after)
        return await self.inner.send(request.but(messages=found.messages))

    def _follow(self, messages: tuple[Message, ...]) -> None:
        known = len(self._messages)
        if shared_start(self._messages, messages) < known:  # another history
            known, self._tokens, self._shortening = 0, 0, self.comparison.begin(self._size_of)
        for message in messages[known:]:
            size = self._size_of(message)
            self._tokens += size
            self._shortening.add(message, size)
        self._messages = messages


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Sends the system messages, the first user message, and as many of the newest whole units as fit."""

    max_tokens: int
    name = "sliding-window"

    def begin(self, size_of: SizeOf) -> Shortening:
        """Begin a history."""
        return _Sliding(self.max_tokens)

    def as_layer(self) -> AppliesStrategy:
        """Return the layer that applies it."""
        return functools.partial(Anew, comparison=self)


class _Sliding:
    """A sliding window over one history."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._messages: list[Message] = []
        self._sizes: list[int] = []
        self._units = GrowingUnits()
        self._always: set[int] = set()
        self._has_task = False

    def add(self, message: Message, size: int) -> None:
        is_task = not self._has_task and is_users(message)
        if is_task or message.role == "system":
            self._always.add(len(self._messages))
        self._has_task = self._has_task or is_task
        self._messages.append(message)
        self._sizes.append(size)
        self._units.extend((message,))

    def shortened(self, fixed_tokens: int) -> Shortened | None:
        kept = set(self._always)
        room = self._max_tokens - fixed_tokens - sum(self._sizes[at] for at in kept)
        for positions in self._units.newest():
            room -= sum(self._sizes[at] for at in positions if at not in kept)
            if room < 0:
                break
            kept.update(positions)
        if len(kept) == len(self._messages):
            return None
        messages = tuple(self._messages[at] for at in sorted(kept))
        return Shortened(messages, sum(self._sizes[at] for at in kept), f"more than {self._max_tokens:,} tokens")


@dataclass(frozen=True, slots=True)
class RollingMasking:
    """Replaces all tool results but the newest ``keep`` by a placeholder, however much room there is."""

    keep: int = 10
    name = "rolling-masking"

    def begin(self, size_of: SizeOf) -> Shortening:
        """Begin a history."""
        return _Rolling(self.keep, size_of)

    def as_layer(self) -> AppliesStrategy:
        """Return the layer that applies it."""
        return functools.partial(Anew, comparison=self)


class _Rolling:
    """Rolling masking of one history."""

    def __init__(self, keep: int, size_of: SizeOf) -> None:
        self._keep = keep
        self._size_of = size_of
        self._tokens = 0
        self._came: list[Message] = []
        self._sent: list[Message] = []
        self._places: list[tuple[int, int]] = []
        self._masked: dict[int, set[int]] = {}
        self._old = 0

    def add(self, message: Message, size: int) -> None:
        at = len(self._came)
        self._came.append(message)
        self._sent.append(message)
        self._tokens += size
        self._places += [(at, index) for index, part in enumerate(message.parts) if isinstance(part, ToolResult)]

    def shortened(self, fixed_tokens: int) -> Shortened | None:
        old = max(0, len(self._places) - self._keep)
        new: set[int] = set()
        for at, index in self._places[self._old : old]:
            self._masked.setdefault(at, set()).add(index)
            new.add(at)
        for at in new:
            self._tokens -= self._size_of(self._sent[at])
            self._sent[at] = _masked(self._came[at], self._masked[at])
            self._tokens += self._size_of(self._sent[at])
        self._old = old
        if not self._masked:
            return None
        return Shortened(tuple(self._sent), self._tokens, f"more than {self._keep} tool results")


def _masked(message: Message, indexes: set[int]) -> Message:
    """Return the message with the outputs of these results replaced."""
    parts = tuple(_cleared(part) if index in indexes else part for index, part in enumerate(message.parts))
    return message.edited(parts=parts)


def _cleared(part: Part) -> Part:
    return msgspec.structs.replace(part, output=PLACEHOLDER) if isinstance(part, ToolResult) else part
