"""A watchdog over the events of a stream: silence that lasts too long ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from chatstack.errors import BrokenStreamError

T = TypeVar("T")


class StallGuard(Generic[T]):
    """A watchdog over a stream of events: yields the same events, with a limit on the silence before the next one.

    ``received`` counts the bytes that have come, if the SDK reports them: keep-alives, which SDKs hide, are no silence.
    The reader's own time does not count. Raises ``BrokenStreamError`` when the limit is reached; closing the source of
    the events remains with its opener. ``stall_seconds=None`` sets no limit.
    """

    __slots__ = ("_events", "_provider", "_received", "_stall_seconds")

    def __init__(
        self,
        events: AsyncIterator[T],
        *,
        stall_seconds: float | None,
        provider: str,
        received: Callable[[], int] | None = None,
    ) -> None:
        self._events = events
        self._stall_seconds = stall_seconds
        self._provider = provider
        self._received = received

    def __aiter__(self) -> StallGuard[T]:
        return self

    async def __anext__(self) -> T:
        if self._stall_seconds is None:
            return await self._events.__anext__()
        limit = asyncio.timeout(None)
        alarm = _Alarm(limit, self._stall_seconds, self._received)
        try:
            async with limit:
                return await self._events.__anext__()
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise BrokenStreamError(
                f"{self._provider}: the stream stalled: nothing came for {self._stall_seconds:g} seconds; "
                "raise stall_seconds if the model thinks longer than that",
                provider=self._provider,
            ) from error
        finally:
            alarm.off()


class _Alarm:
    """Makes a limit expire after ``seconds`` without a single byte."""

    __slots__ = ("_handle", "_limit", "_quiet_since", "_received", "_seconds", "_seen", "_step")

    def __init__(self, limit: asyncio.Timeout, seconds: float, received: Callable[[], int] | None) -> None:
        loop = asyncio.get_running_loop()
        self._limit = limit
        self._seconds = seconds
        self._received = received or (lambda: 0)
        self._seen = self._received()
        self._quiet_since = loop.time()
        # Only the number of bytes is known, not their time: polling it now and then is precise enough.
        self._step = seconds if received is None else seconds / 8
        self._handle = loop.call_later(self._step, self._look)

    def off(self) -> None:
        self._handle.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        seen = self._received()
        if seen != self._seen:
            self._seen, self._quiet_since = seen, loop.time()
        elif loop.time() - self._quiet_since > self._seconds - self._step / 2:
            self._limit.reschedule(loop.time())
            return
        self._handle = loop.call_later(self._step, self._look)
