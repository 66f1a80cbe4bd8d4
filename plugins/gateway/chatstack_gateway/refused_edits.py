"""Conversations whose edited requests upstream has refused: they go on as they came, so that this happens once."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Set

from chatstack.context.histories.digests import soft_digest
from chatstack.lru import Lru
from chatstack_gateway.exchange import Exchange

_SECONDS = 3_600
_MOST = 1_000


class RefusedEdits:
    """Knows conversations by their caller and all messages of a refused request, which later requests begin with."""

    def __init__(self) -> None:
        self._until: Lru[tuple[int, bytes], float] = Lru(_MOST)
        self._lengths: set[int] = set()

    def add(self, exchange: Exchange) -> None:
        """Remember the conversation of a request whose edits were refused."""
        for beginning in _beginnings(exchange, {len(exchange.request.messages)}):
            self._until.put(beginning, time.monotonic() + _SECONDS)
            self._lengths = {length for length, _ in self._until}

    def knows(self, exchange: Exchange) -> bool:
        """Return True for a request that goes on such a conversation."""
        if not self._lengths:
            return False
        now = time.monotonic()
        found = map(self._until.get, _beginnings(exchange, self._lengths))
        return any(until is not None and until > now for until in found)


def _beginnings(exchange: Exchange, lengths: Set[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the lengths and digests of the beginnings that are so long, as callers send them again: other marks for a
    cache, or another order of keys, make no other conversation."""
    request = exchange.request
    running = hashlib.blake2b(f"{exchange.caller} {request.options.instructions}".encode(), digest_size=16)
    for length, message in enumerate(request.messages, 1):
        running.update(soft_digest(message))
        if length in lengths:
            yield length, running.digest()
