"""Conversations whose edited requests upstream has refused: they go on as they came, so that this happens once."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Iterator

from chatstack.context.histories.digests import soft_digest
from chatstack.lru import Lru
from chatstack_gateway.exchange import Exchange
from chatstack_gateway.headers import account_of

_SECONDS = 3_600
_MOST = 1_000


class RefusedEdits:
    """Knows conversations by their account and all messages of a refused request, which later requests begin with.

    System messages, instructions and betas are left out: apps write a date or a state there, another one for each call.
    The account is not: a request that is refused to one account, which anybody can bring about, would have those of all
    others that begin with its messages go out unedited, and too long maybe. So a renewed token costs one more refusal.
    """

    def __init__(self) -> None:
        self._until: Lru[bytes, float] = Lru(_MOST)

    def add(self, exchange: Exchange) -> None:
        """Remember the conversation of a request whose edits were refused."""
        for whole in deque(_beginnings(exchange), maxlen=1):
            self._until.put(whole, time.monotonic() + _SECONDS)

    def knows(self, exchange: Exchange) -> bool:
        """Return True for a request that goes on such a conversation. Any thread may ask."""
        if not self._until:
            return False
        now = time.monotonic()
        return any(self._until.peek(each, now) > now for each in _beginnings(exchange))


def _beginnings(exchange: Exchange) -> Iterator[bytes]:
    """Yield a digest for each beginning of the messages, as callers send them again: other marks for a cache, or
    another order of keys, make no other conversation."""
    running = hashlib.blake2b(account_of(exchange.headers).encode(), digest_size=16)
    for message in exchange.request.messages:
        if message.role != "system":
            running.update(soft_digest(message))
            yield running.digest()
