"""What all layers, conversations and event loops of a process share: the budgets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from chatstack_ratelimit.bucket import Bucket, Rate
from chatstack_ratelimit.line import Line

LONGEST_PAUSE_SECONDS = 60.0
"""What a provider asks for beyond that is about more than its limits of a minute: nobody is held up for longer."""


class Figures(NamedTuple):
    """What is limited, and by how much: layers with the same figures have one budget."""

    provider: str
    server: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    burst_seconds: float


class Budget:
    """The requests and the tokens of a minute, handed out in the order in which they are asked for."""

    __slots__ = ("_clock", "_line", "_lock", "_paused_until", "_requests", "_tokens")

    def __init__(self, figures: Figures, clock: Callable[[], float]) -> None:
        requests, tokens = figures.requests_per_minute, figures.tokens_per_minute
        burst, now = figures.burst_seconds, clock()
        self._requests = Bucket(Rate.of_requests(requests, burst), now) if requests is not None else None
        self._tokens = Bucket(Rate.of_tokens(tokens, burst), now) if tokens is not None else None
        self._clock = clock
        self._lock = threading.Lock()
        self._line = Line()
        self._paused_until = now

    async def enter(self, tokens: int) -> None:
        """Wait until a request of that size may be sent. Who is cancelled meanwhile has used up nothing."""
        place = await self._line.join()
        try:
            while (seconds := self._seconds_to_wait(tokens)) > 0:
                await place.wait(seconds)
        finally:
            self._line.leave(place)

    def correct(self, estimated: int, reported: int) -> None:
        """Count what a request has really taken in the place of what was estimated."""
        if self._tokens is None or reported == estimated:
            return
        with self._lock:
            self._tokens.put(reported, self._clock(), instead_of=estimated)
        self._line.wake_first()

    def pause(self, seconds: float | None) -> None:
        """Let nobody go for so long; None, or what is no time, is no pause."""
        if seconds is not None and seconds > 0:
            with self._lock:
                until = self._clock() + min(seconds, LONGEST_PAUSE_SECONDS)
                self._paused_until = max(self._paused_until, until)

    def _seconds_to_wait(self, tokens: int) -> float:
        """Return how long the request has to wait as things stand; if it has not to, it is counted."""
        asked = [(bucket, size) for bucket, size in ((self._requests, 1), (self._tokens, tokens)) if bucket is not None]
        with self._lock:
            now = self._clock()
            seconds = max([self._paused_until - now, *(bucket.seconds_to_room(size, now) for bucket, size in asked)])
            if seconds <= 0:
                for bucket, size in asked:
                    bucket.put(size, now)
        return seconds


class RateLimits:
    """The budgets of a process. All built clients of a stack share one; give it to several stacks (``limits=...``, or
    bound in a container) whose providers count their requests together.

    May be used from any thread and event loop. ``clock`` gives seconds, and must run as event loops' clocks do.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._budgets: dict[Figures, Budget] = {}

    def budget(self, figures: Figures) -> Budget:
        """The one for these figures."""
        with self._lock:
            found = self._budgets.get(figures)
            if found is None:
                found = self._budgets[figures] = Budget(figures, self._clock)
            return found

    def __repr__(self) -> str:
        return f"RateLimits({len(self._budgets)} budgets)"
