"""An event loop whose clock jumps to whatever is due next, so that minutes pass in no time, and a stall is not felt."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from chatstack import ChatRequest, ChatStream
from chatstack.testing import ScriptedClient

from chatstack_ratelimit import RateLimits

T = TypeVar("T")


class _HurriedSelector(selectors.DefaultSelector):
    """Does not wait for a time to come, but puts the clock forward to it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        self.now += max(timeout, 1e-6)  # some time passes always
        return super().select(0)

    def get_map(self) -> Mapping[object, selectors.SelectorKey]:
        return super().get_map()


class HurriedLoop(asyncio.SelectorEventLoop):
    """The loop of that clock, which begins at 0."""

    def __init__(self) -> None:
        self._hurried = _HurriedSelector()
        super().__init__(self._hurried)

    def time(self) -> float:
        return self._hurried.now


def in_hurried_time(run: Callable[[], Awaitable[T]]) -> T:
    """Run it in a loop whose clock jumps."""

    async def whole() -> T:
        return await run()

    with asyncio.Runner(loop_factory=HurriedLoop) as runner:
        return runner.run(whole())


def now() -> float:
    """The time of the running loop, in seconds."""
    return asyncio.get_running_loop().time()


def hurried_limits() -> RateLimits:
    """Limits by the clock of the running loop."""
    return RateLimits(clock=asyncio.get_running_loop().time)


class TimedClient(ScriptedClient):
    """Knows when it was called: ``times``, in seconds of the loop, in the order of ``requests``."""

    def __init__(self, *answers: object, **options: object) -> None:
        super().__init__(answers or ("fine",), **options)  # type: ignore[arg-type]
        self.times: list[float] = []

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.times.append(now())
        return await super().send(request)


def most_in_a_minute(times: list[float], amounts: list[int] | None = None) -> int:
    """The most that went in any sixty seconds; a thousandth of a second is nobody's business."""
    sizes = amounts or [1] * len(times)
    return max(
        sum(size for at, size in zip(times, sizes, strict=True) if start <= at < start + 59.999) for start in times
    )
