"""Estimated sizes of requests, each message counted once."""

from __future__ import annotations

from chatstack import ChatRequest, Message
from chatstack.lru import Lru
from chatstack.tokens.counter import CharCounter
from chatstack.values.requests import ChatOptions

_MOST = 20_000


class Sizes:
    """Counts messages, and remembers the latest."""

    def __init__(self) -> None:
        self._counter = CharCounter()  # quick, and enough for shares of what the provider has reported
        self._known: Lru[int, int] = Lru(_MOST)

    def of_message(self, message: Message) -> int:
        """Return the tokens of a message."""
        key = hash(message)
        size = self._known.get(key)
        if size is None:
            size = self._counter.count_message(message)
            self._known.put(key, size)
        return size

    def of_options(self, options: ChatOptions) -> int:
        """Return the tokens of instructions and tools."""
        return self._counter.count_options(options)

    def of(self, request: ChatRequest) -> int:
        """Return the tokens of a request."""
        return self.of_options(request.options) + sum(map(self.of_message, request.messages))

    def scaled(self, reported: int, came: ChatRequest, other: ChatRequest) -> int:
        """Return what another request would have been reported as, where ``reported`` is about the one that came."""
        if other.messages is came.messages or not reported:
            return reported
        before = self.of(came)
        return round(reported * self.of(other) / before) if before else reported
