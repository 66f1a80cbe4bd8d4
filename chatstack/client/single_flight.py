"""Single flight: one of several tasks does the work for a key, while the others wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import asynccontextmanager


class SingleFlight:
    """A keyed lock for single flight: one task at a time for each key on each event loop; event loops do not block each
    other.

    The work runs in the task of the caller: cancelling that cancels the work, and the next waiter does it.
    """

    __slots__ = ("_lock", "_places")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[tuple[asyncio.AbstractEventLoop, Hashable], _Place] = {}

    @asynccontextmanager
    async def alone(self, key: Hashable) -> AsyncGenerator[None]:
        """Wait until no other task holds that key. Afterwards look in the cache first: the holder before may have
        filled it."""
        leave = await self.enter(key)
        try:
            yield
        finally:
            leave()

    async def enter(self, key: Hashable) -> Callable[[], None]:
        """Wait as in ``alone``; return the function that lets the next task in."""
        at = (asyncio.get_running_loop(), key)
        with self._lock:
            place = self._places.setdefault(at, _Place())
            place.tasks += 1
        try:
            await place.lock.acquire()
        except BaseException:
            self._gone(at, place)
            raise

        def leave() -> None:
            place.lock.release()
            self._gone(at, place)

        return leave

    def _gone(self, at: tuple[asyncio.AbstractEventLoop, Hashable], place: _Place) -> None:
        with self._lock:
            place.tasks -= 1
            if not place.tasks:
                del self._places[at]


class _Place:
    """The lock of one key, and the number of tasks that hold it or wait."""

    __slots__ = ("lock", "tasks")

    def __init__(self) -> None:
        self.tasks = 0
        self.lock = asyncio.Lock()
