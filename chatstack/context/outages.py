"""Outages: what has failed is left alone for a while, longer each time, and then tried by one call at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable

MAX_REST_SECONDS = 60.0
"""What does not come back is asked again that often, however long it was away."""


class Outage:
    """Whether something that failed may be asked again: after ``rest_seconds``, which double while it keeps failing.

    Failures of calls that began before the last one are the same failure.
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
        """Whether nobody may ask now."""
        return self._failures > 0 and self._clock() < self._until

    def ticket(self) -> int | None:
        """Leave to ask, or None. In an outage one call at a time gets it; the others rest on meanwhile."""
        with self._lock:
            if self._failures:
                now = self._clock()
                if now < self._until:
                    return None
                self._until = now + self._rest()
            return self._failures

    def failed(self, ticket: int) -> tuple[float, bool]:
        """How long it is left alone now, and whether nobody has told of this outage yet."""
        with self._lock:
            is_first = ticket == self._failures
            if is_first:
                self._failures += 1
                self._until = self._clock() + self._rest()
            return self._rest(), is_first and ticket == 0

    def over(self, ticket: int) -> None:
        """It answers. An answer to a call that began before the failure says nothing about now."""
        with self._lock:
            if ticket == self._failures:
                self._failures = 0

    def gave_up(self, ticket: int) -> None:
        """The caller was cancelled before anything was known: the next one may try."""
        with self._lock:
            if ticket and ticket == self._failures:
                self._until = self._clock()

    def _rest(self) -> float:
        doubled = self._first_rest * 2.0 ** min(self._failures - 1, 30)
        return max(self._first_rest, min(self._longest_rest, doubled))
