"""What all layers, conversations and event loops of a process share: the budgets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from chatstack_ratelimit.bucket import Bucket, Rate
from chatstack_ratelimit.line import Line

LONGEST_PAUSE_SECONDS = 60.0
"""What a provider asks for beyond that is about more than its limits of a minute: nobody is held up for longer."""

_MOMENT_SECONDS = 0.001
"""What was put into a bucket longer ago than that, before the call could go, is put in anew."""


class Figures(NamedTuple):
    """What is limited, and by how much: layers with the same figures have one budget."""

    provider: str
    server: str
    requests_per_minute: int | None
    tokens_per_minute: int | None
    burst_seconds: float


class Budget:
    """The requests and the tokens of a minute, handed out in the order in which they are asked for."""

    __slots__ = ("_clock", "_line", "_paused_until", "_requests", "_tokens")

    def __init__(self, figures: Figures, clock: Callable[[], float]) -> None:
        requests, tokens = figures.requests_per_minute, figures.tokens_per_minute
        burst = figures.burst_seconds
        self._requests = Bucket(Rate.of_requests(requests, burst), clock) if requests is not None else None
        self._tokens = Bucket(Rate.of_tokens(tokens, burst), clock) if tokens is not None else None
        self._clock = clock
        self._line = Line()
        self._paused_until = clock()

    async def enter(self, tokens: int) -> None:
        """Wait until a request of that size may be sent. Who is cancelled meanwhile has used up nothing."""
        place = await self._line.join()
        taken: list[tuple[Bucket, int, float]] = []
        try:
            for bucket, amount in ((self._requests, 1), (self._tokens, tokens)):
                if bucket is not None:
                    await bucket.take(amount)
                    taken.append((bucket, amount, self._clock()))
            while (seconds := self._paused_until - self._clock()) > 0:  # noqa: ASYNC110 - it may have been prolonged
                await asyncio.sleep(seconds)
        except BaseException:
            for bucket, amount, _ in taken:
                bucket.put(-amount)
            raise
        else:
            now = self._clock()
            for bucket, amount, at in taken:
                if now - at > _MOMENT_SECONDS:  # it was leaking while the call still waited for something else
                    bucket.put(-amount)
                    bucket.put(amount)
        finally:
            self._line.leave(place)

    def correct(self, estimated: int, reported: int) -> None:
        """Count what a request has really taken in the place of what was estimated."""
        if self._tokens is not None and reported != estimated:
            self._tokens.put(reported - estimated)

    def pause(self, seconds: float | None) -> None:
        """Let nobody go for so long; None, or what is no time, is no pause."""
        if seconds is not None and seconds > 0:
            until = self._clock() + min(seconds, LONGEST_PAUSE_SECONDS)
            self._paused_until = max(self._paused_until, until)


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
