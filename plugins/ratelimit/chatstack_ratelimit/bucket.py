"""A bucket that calls fill, and that leaks. It waits for nothing: it says how long to wait."""

from __future__ import annotations

import math
from dataclasses import dataclass

_MINUTE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Rate:
    """How much a bucket holds, and how much leaks from it in a second; one call never owes more than ``per_minute``."""

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
    """Takes amounts at a rate. More may be in it than it holds: then nobody goes until that has leaked away."""

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: Rate, now: float) -> None:
        self.rate = rate
        self._level = 0.0
        self._at = now

    def seconds_to_room(self, amount: float, now: float) -> float:
        """Return the seconds until there is room; 0 or less if there is. What the bucket cannot hold has room when the
        bucket is empty."""
        self._leak(now)
        return (self._level + min(amount, self.rate.capacity) - self.rate.capacity) / self.rate.per_second

    def put(self, amount: float, now: float, *, instead_of: float = 0.0) -> None:
        """Put a call's amount in, room or not, in the place of another one of the same call."""
        self._leak(now)
        most = self.rate.per_minute
        self._level = max(0.0, self._level + min(amount, most) - min(instead_of, most))

    def _leak(self, now: float) -> None:
        self._level = max(0.0, self._level - (now - self._at) * self.rate.per_second)
        self._at = now
