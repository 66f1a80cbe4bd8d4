"""Progress as an async iterator: the events of one conversation, or of all."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import ClassVar, Self

from chatstack.client.checks import OwnCopy
from chatstack.client.closing import Closing
from chatstack.errors import StreamBusyError, WiringError
from chatstack.forks import renewed_in_child
from chatstack.telemetry.events import ProgressEvent


class ProgressFeed(OwnCopy):
    """A publish-subscribe feed of the events of turns, usable from any event loop or thread.

    A stack and all that is derived from it share one, unless the container has one: so a subscriber need not hold the
    client that a conversation runs through. Any number may follow; none of them affects a call::

        feed = ProgressFeed()  # bound in the container; or find(client, ProgressReporter).feed
        async with feed.events("c-42") as events:
            async for event in events: ...
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self) -> None:
        self._followers: weakref.WeakSet[ProgressEvents] = weakref.WeakSet()
        self._lost_before = 0
        self._lock = threading.RLock()  # the collector may end a dropped stream, and so emit events, while it is held
        renewed_in_child(self)

    def after_fork(self) -> None:
        """Drop the parent's subscribers in a forked child."""
        self._lock = threading.RLock()
        self._followers = weakref.WeakSet()

    def events(self, conversation_id: str | None = None, *, capacity: int = 1_000) -> ProgressEvents:
        """Subscribe to the events from now on: of that conversation, or of all. A turn that began without subscribers
        is missed.

        ``capacity`` is the size of the queue; events that no longer fit are dropped and counted.
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
        """Return True if that conversation has a subscriber."""
        return bool(self._followers) and bool(self._hearing(conversation_id))

    def put(self, event: ProgressEvent) -> None:
        """Put the event into the queue of every subscriber; returns at once."""
        for events in self._hearing(event.conversation_id):
            events.put(event)

    def take_dropped(self, conversation_id: str | None) -> int:
        """Return the number of events lost since the last call, by the subscribers of that conversation and by former
        subscribers, whose conversation is no longer known."""
        with self._lock:
            lost, self._lost_before = self._lost_before, 0
        return lost + sum(events.take_unreported() for events in self._hearing(conversation_id))

    def forget(self, events: ProgressEvents) -> None:
        """Remove a subscriber."""
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

    It ends when it is closed, which any task or thread may do; a dropped one is forgotten. One task reads it at a time.
    ``dropped`` counts the events lost because it was read too slowly.
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
        """Add an event for the reader; returns at once."""
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
        """Return the number of events dropped since the last call, and reset it."""
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
        """End the iterator; events that still wait may be read."""
        self._feed.forget(self)
        with self._lock:
            self._is_closed = True
            self._wake()

    def _wake(self) -> None:
        if self._reader is None:
            return
        loop, news = self._reader
        with suppress(RuntimeError):  # that loop is closed: nothing waits any more
            loop.call_soon_threadsafe(_set, news)


def _set(news: asyncio.Future[None]) -> None:
    if not news.done():
        news.set_result(None)
