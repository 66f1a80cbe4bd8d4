"""Cards: what a server says of its models, asked once for each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from chatstack.client.single_flight import SingleFlight
from chatstack.lru import Lru
from chatstack.providers.asking import Card

_ASK_SECONDS = 5.0
_ASK_AGAIN_SECONDS = 300.0
"""An answer that failed is asked for again after that."""
_MOST_KEPT = 1_000

_NONE: Card = {}


class _Told(NamedTuple):
    card: Card
    ask_again: float
    """Infinity for a card that the server gave."""


class Cards:
    """The cards of one server's models. ``retrieve`` asks for one; a failure is an empty card, and is kept for five
    minutes: a call is worth more than what its model is said to be able to do."""

    __slots__ = ("_asking", "_clock", "_known", "_retrieve")

    def __init__(
        self, retrieve: Callable[[str], Awaitable[Card]], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._retrieve = retrieve
        self._clock = clock
        self._known: Lru[str, _Told] = Lru(_MOST_KEPT)
        self._asking = SingleFlight()

    async def of(self, model: str) -> Card:
        """Return the model's card; empty if the server has none, or cannot be asked."""
        known = self._known.peek(model)
        if known is not None and self._clock() < known.ask_again:
            return known.card
        async with self._asking.alone(model):
            known = self._known.peek(model)
            if known is None or self._clock() >= known.ask_again:
                known = await self._asked(model)
                self._known.put(model, known)
        return known.card

    async def _asked(self, model: str) -> _Told:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                return _Told(await self._retrieve(model), float("inf"))
        except Exception:  # noqa: BLE001 - the call itself will meet the same error, and raise it
            return _Told(_NONE, self._clock() + _ASK_AGAIN_SECONDS)
