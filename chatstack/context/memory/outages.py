"""Outages: a circuit breaker with exponential backoff, half-open for one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

MAX_REST_SECONDS = 60.0
"""Default upper bound of the backoff, in seconds."""


class Outage:
    """A circuit breaker: after a failure, no call for ``rest_seconds``, which double while it keeps failing.

    Failures of calls that began before the last failure count as that same failure. The outcome of a call that is made
    without a ticket, for which None stands, counts nothing.
    """

    __slots__ = ("_clock", "_failures", "_first_rest", "_lock", "_longest_rest", "_until")

    def __init__(
        self, rest_seconds: float, clock: Callable[[], float], *, longest_seconds: float = MAX_REST_SECONDS
    ) -> None:
        self._first_rest = rest_seconds
        self._longest_rest = longest_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._until = 0.0

    @property
    def rests(self) -> bool:
        """True while the circuit is open."""
        return self._failures > 0 and self._clock() < self._until

    def ticket(self) -> int | None:
        """Return a ticket for one call, or None. In an outage one call at a time gets it, after the backoff."""
        with self._lock:
            if self._failures:
                now = self._clock()
                if now < self._until:
                    return None
                self._until = now + self._rest()
            return self._failures

    def failed(self, ticket: int | None) -> tuple[float, bool]:
        """Report a failure. Return the backoff in seconds, and True if this failure begins an outage."""
        with self._lock:
            is_first = ticket == self._failures
            if is_first:
                self._failures += 1
                self._until = self._clock() + self._rest()
            return self._rest(), is_first and ticket == 0

    def over(self, ticket: int | None) -> None:
        """Report a success, which ends the outage. One of a call that began before the last failure is ignored."""
        with self._lock:
            if ticket == self._failures:
                self._failures = 0

    def gave_up(self, ticket: int | None) -> None:
        """Report that the caller was cancelled before the outcome was known: the next one may try."""
        with self._lock:
            if ticket and ticket == self._failures:
                self._until = self._clock()

    def _rest(self) -> float:
        doubled = self._first_rest * 2.0 ** min(self._failures - 1, 30)
        return max(self._first_rest, min(self._longest_rest, doubled))
