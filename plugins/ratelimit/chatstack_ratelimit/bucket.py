"""A bucket that calls fill, and that leaks: one of aiolimiter's, for whatever event loop is next."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from aiolimiter import AsyncLimiter

_MINUTE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Rate:
    """How much a bucket holds, and how much leaks from it in a second; it never owes more than ``per_minute``."""

    per_minute: int
    capacity: float
    per_second: float

    @classmethod
    def of_requests(cls, per_minute: int, burst_seconds: float) -> Rate:
        """In no sixty seconds more than ``per_minute`` go: those of a burst are taken off those that follow it."""
        most = per_minute + 1  # the one after a minute's last may go when the minute is over, not before
        capacity = max(1, math.floor(most * burst_seconds / (_MINUTE_SECONDS + burst_seconds)))
        return cls(per_minute, capacity, (most - capacity) / _MINUTE_SECONDS)

    @classmethod
    def of_tokens(cls, per_minute: int, burst_seconds: float) -> Rate:
        """The same for amounts of any size. One above the capacity may be too much for the minute that it ends."""
        per_second = per_minute / (_MINUTE_SECONDS + burst_seconds)
        return cls(per_minute, per_second * burst_seconds, per_second)


class Bucket:
    """Takes amounts at a rate. ``take`` is called by one call at a time, of any loop; all else by anybody.

    An ``AsyncLimiter`` belongs to one event loop, takes nothing larger than it holds, and gives nothing back. So what
    is in the bucket is also kept here, and a new limiter is filled up to that when another loop comes, or when the
    amount was corrected.
    """

    __slots__ = ("_at", "_clock", "_level", "_limiter", "_lock", "_loop", "rate")

    def __init__(self, rate: Rate, clock: Callable[[], float]) -> None:
        self.rate = rate
        self._clock = clock
        self._lock = threading.Lock()
        self._level = 0.0
        self._at = clock()
        self._limiter: AsyncLimiter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def level(self) -> float:
        """What is in it now."""
        with self._lock:
            return self._leaked()

    async def take(self, amount: float) -> None:
        """Wait until there is room, and put it in. What the bucket cannot hold waits until the bucket is empty, and
        whoever comes next waits for all of it to leak away."""
        limiter = await self._limiter_here()
        await limiter.acquire(min(amount, self.rate.capacity))
        if amount > self.rate.capacity:
            self.put(amount)
        else:
            self._add(amount)  # which the limiter knows

    def put(self, amount: float) -> None:
        """Put that in without waiting; a negative amount takes it out again."""
        self._add(amount)
        self._limiter = None

    def _add(self, amount: float) -> None:
        with self._lock:
            self._level = min(max(0.0, self._leaked() + amount), max(self.rate.per_minute, self.rate.capacity))

    def _leaked(self) -> float:
        now = self._clock()
        self._level = max(0.0, self._level - (now - self._at) * self.rate.per_second)
        self._at = now
        return self._level

    async def _limiter_here(self) -> AsyncLimiter:
        """The limiter of this loop, as full as the bucket is. Waits while there is more than a bucket holds."""
        loop, limiter = asyncio.get_running_loop(), self._limiter
        if limiter is not None and self._loop is loop:
            return limiter
        capacity = self.rate.capacity
        limiter = self._limiter = AsyncLimiter(capacity, capacity / self.rate.per_second)
        self._loop = loop
        level, is_paid = self.level, False
        try:
            while level > 0:
                part = min(capacity, level)
                await limiter.acquire(part)
                level -= part
            is_paid = True
        finally:
            if not is_paid:
                self._limiter = None
        return limiter
