"""Conversations whose edited requests upstream has refused: they go on as they came, so that this happens once."""

from __future__ import annotations

import hashlib
import time

from chatstack.lru import Lru
from chatstack_gateway.exchange import Exchange
from chatstack_gateway.places import ITEMS
from chatstack_gateway.positions import Spot, UneditableError, elements

_SECONDS = 3_600
_MOST = 1_000


class RefusedEdits:
    """Knows conversations by the text of the last message of a refused request, which later requests repeat."""

    def __init__(self) -> None:
        self._until: Lru[tuple[int, bytes], float] = Lru(_MOST)
        self._positions: set[int] = set()

    def add(self, exchange: Exchange) -> None:
        """Remember the conversation of a request whose edits were refused."""
        spots = _items(exchange)
        if spots:
            position = len(spots) - 1
            self._until.put((position, _digest(exchange, spots[position])), time.monotonic() + _SECONDS)
            self._positions = {position for position, _ in self._until}

    def knows(self, exchange: Exchange) -> bool:
        """Return True for a request that goes on such a conversation."""
        if not self._positions:
            return False
        spots = _items(exchange)
        now = time.monotonic()
        for position in self._positions:
            if position < len(spots):
                until = self._until.get((position, _digest(exchange, spots[position])))
                if until is not None and until > now:
                    return True
        return False


def _items(exchange: Exchange) -> list[Spot]:
    spot = exchange.body.fields.get(ITEMS[exchange.form])
    if spot is None or not isinstance(spot.value, list):
        return []
    try:
        return elements(exchange.body.text, spot)
    except UneditableError:
        return []


def _digest(exchange: Exchange, spot: Spot) -> bytes:
    return hashlib.blake2b(exchange.body.text[spot.start : spot.end].encode(), digest_size=16).digest()
