"""A line in which calls of any event loop and thread stand: whoever came first goes first."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict


class Line:
    """One call at a time has its turn, from ``join`` to ``leave``; the others wait in the order in which they came.

    Who is cancelled while it waits is out of the line. Calls of a loop that has been closed are passed over, when the
    next one comes; a loop that was stopped, and is to run again, holds its turn.
    """

    __slots__ = ("_holder", "_lock", "_waiting")

    def __init__(self) -> None:
        # Reentrant: the collector may close a call that stands in the line, in whatever thread is in here just then.
        self._lock = threading.RLock()
        self._waiting: OrderedDict[Place, None] = OrderedDict()
        self._holder: Place | None = None

    async def join(self) -> Place:
        """Wait for the turn; gives what it is ended with."""
        place = Place(asyncio.get_running_loop())
        with self._lock:
            if self._holder is not None and self._holder.loop.is_closed():
                self._next()
            if self._holder is None:
                self._holder = place
                return place
            self._waiting[place] = None
        try:
            await place.wait()
        except BaseException:
            with self._lock:
                self._waiting.pop(place, None)
                self.leave(place)
            raise
        return place

    def leave(self, place: Place) -> None:
        """End the turn, if it is this one's; the next in the line has it."""
        with self._lock:
            if self._holder is place:
                self._next()

    def wake_first(self) -> None:
        """Wake the one that has its turn, if it waits for something."""
        with self._lock:
            if self._holder is not None:
                self._holder.wake()

    def _next(self) -> None:
        self._holder = None
        while self._waiting and self._holder is None:
            place, _ = self._waiting.popitem(last=False)
            if place.wake():
                self._holder = place


class Place:
    """Where a call stands, and how it is woken there."""

    __slots__ = ("_woken", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._woken: asyncio.Future[None] = loop.create_future()

    async def wait(self, seconds: float | None = None) -> None:
        """Wait to be woken, for so long at most. Who was woken since it last waited does not wait."""
        timer = None if seconds is None else self.loop.call_later(seconds, self._wake)
        try:
            await self._woken
        finally:
            self._woken = self.loop.create_future()
            if timer is not None:
                timer.cancel()

    def wake(self) -> bool:
        """Wake it, from any thread; False if its loop has been closed."""
        try:
            self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return False
        return True

    def _wake(self) -> None:
        if not self._woken.done():
            self._woken.set_result(None)
