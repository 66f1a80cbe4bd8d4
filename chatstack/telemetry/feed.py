"""Progress as an async iterator: the events of one conversation, or of all, for whoever wants to follow them."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import ClassVar, Self

from chatstack.client.closing import Closing
from chatstack.errors import StreamBusyError, WiringError
from chatstack.forks import renewed_in_child
from chatstack.telemetry.events import ProgressEvent


class ProgressFeed:
    """Where turns tell what happens in them, and where that can be followed, from any event loop or thread.

    A stack and all that is derived from it share one, unless the container has one: so what follows a conversation
    need not hold the client that it runs through. Any number may follow; none of them is felt by a call::

        feed = ProgressFeed()  # bound in the container; or find(client, ProgressReporter).feed
        async with feed.events("c-42") as events:
            async for event in events: ...
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self) -> None:
        self._followers: weakref.WeakSet[ProgressEvents] = weakref.WeakSet()
        self._lost_before = 0
        self._lock = threading.RLock()  # a stream that the collector drops may tell its end in the middle of this
        renewed_in_child(self)

    def after_fork(self) -> None:
        """In a child, nobody of the parent's follows."""
        self._lock = threading.RLock()
        self._followers = weakref.WeakSet()

    def events(self, conversation_id: str | None = None, *, capacity: int = 1_000) -> ProgressEvents:
        """The events from now on: of that conversation, or of all. A turn that runs unheard is heard from its next.

        ``capacity`` is how many may wait; those that no longer fit are dropped and counted.
        """
        if conversation_id is not None and (not isinstance(conversation_id, str) or not conversation_id):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"ProgressFeed: conversation_id={conversation_id!r} must be the id of one, or None for all"
            )
        if type(capacity) is not int or capacity <= 0:  # pyright: ignore[reportUnnecessaryComparison]
            raise WiringError(f"ProgressFeed: capacity={capacity!r} must be a whole number greater than 0")
        events = ProgressEvents(self, conversation_id, capacity)
        with self._lock:
            self._followers.add(events)
        return events

    def is_followed(self, conversation_id: str | None) -> bool:
        """Whether anybody would hear of that conversation."""
        return bool(self._followers) and bool(self._hearing(conversation_id))

    def put(self, event: ProgressEvent) -> None:
        """Tell everybody who follows; returns at once."""
        for events in self._hearing(event.conversation_id):
            events.put(event)

    def take_dropped(self, conversation_id: str | None) -> int:
        """How many events of that conversation were lost since this was last asked, by all that follow it; and by those
        that no longer follow anything, of which it is not known."""
        with self._lock:
            lost, self._lost_before = self._lost_before, 0
        return lost + sum(events.take_unreported() for events in self._hearing(conversation_id))

    def forget(self, events: ProgressEvents) -> None:
        """No longer tell that one."""
        with self._lock:
            self._followers.discard(events)
            self._lost_before += events.take_unreported()

    def _hearing(self, conversation_id: str | None) -> list[ProgressEvents]:
        if not self._followers:
            return []
        with self._lock:
            return [each for each in self._followers if each.conversation_id in (None, conversation_id)]

    def __repr__(self) -> str:
        return f"ProgressFeed({len(self._followers)} following)"


class ProgressEvents(Closing):
    """Events in the order in which they happened: an async iterator and an async context manager.

    It ends when it is closed, which any task or thread may do; a dropped one is forgotten. One task reads it at a
    time. ``dropped`` counts what was lost because it was read too slowly.
    """

    def __init__(self, feed: ProgressFeed, conversation_id: str | None, capacity: int) -> None:
        self.conversation_id = conversation_id
        self.dropped = 0
        self._unreported = 0
        self._feed = feed
        self._capacity = capacity
        self._waiting: deque[ProgressEvent] = deque()
        self._reader: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None
        self._lock = threading.RLock()
        self._is_closed = False

    def put(self, event: ProgressEvent) -> None:
        """Add one, for whoever reads; returns at once."""
        with self._lock:
            if self._is_closed:
                return
            if len(self._waiting) >= self._capacity:
                self.dropped += 1
                self._unreported += 1
                return
            self._waiting.append(event)
            self._wake()

    def take_unreported(self) -> int:
        """How many were dropped since this was last asked."""
        with self._lock:
            dropped, self._unreported = self._unreported, 0
            return dropped

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ProgressEvent:
        while True:
            with self._lock:
                if self._reader is not None:
                    raise StreamBusyError("another task is reading these events; one at a time")
                if self._waiting:
                    return self._waiting.popleft()
                if self._is_closed:
                    raise StopAsyncIteration
                loop = asyncio.get_running_loop()
                news: asyncio.Future[None] = loop.create_future()
                self._reader = loop, news
            try:
                await news
            finally:
                with self._lock:
                    self._reader = None

    async def aclose(self) -> None:
        """End it; what still waits may be read."""
        self._feed.forget(self)
        with self._lock:
            self._is_closed = True
            self._wake()

    def _wake(self) -> None:
        if self._reader is None:
            return
        loop, news = self._reader
        with suppress(RuntimeError):  # that loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_set, news)


def _set(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
