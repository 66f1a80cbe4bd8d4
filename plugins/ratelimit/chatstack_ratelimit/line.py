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
            called = place.called = place.loop.create_future()
            self._waiting[place] = None
        try:
            await called
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

    def _next(self) -> None:
        self._holder = None
        while self._waiting and self._holder is None:
            place, _ = self._waiting.popitem(last=False)
            if place.call():
                self._holder = place


class Place:
    """Where a call stands, and how it is told of its turn."""

    __slots__ = ("called", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.called: asyncio.Future[None] | None = None

    def call(self) -> bool:
        """Tell it; False if its loop has been closed."""
        try:
            self.loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            return False
        return True

    def _wake(self) -> None:
        if self.called is not None and not self.called.done():
            self.called.set_result(None)
