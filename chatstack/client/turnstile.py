"""A turnstile: what several tasks would do at once is done by one of them, while the others wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Hashable
from contextlib import asynccontextmanager


class Turnstile:
    """Lets one task at a time through for each key, on each event loop; several threads may have one each.

    Nothing runs in a task of its own: who is cancelled in there takes its work along, and the next in turn does it.
    """

    __slots__ = ("_lock", "_places")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[tuple[asyncio.AbstractEventLoop, Hashable], _Place] = {}

    @asynccontextmanager
    async def alone(self, key: Hashable) -> AsyncGenerator[None]:
        """Wait until nobody else is in there with that key. What the first one found out, the next should look up."""
        at = (asyncio.get_running_loop(), key)
        with self._lock:
            place = self._places.setdefault(at, _Place())
            place.tasks += 1
        try:
            async with place.lock:
                yield
        finally:
            with self._lock:
                place.tasks -= 1
                if not place.tasks:
                    del self._places[at]


class _Place:
    """Who is in there, or waits to be."""

    __slots__ = ("lock", "tasks")

    def __init__(self) -> None:
        self.tasks = 0
        self.lock = asyncio.Lock()
