"""An event loop whose time stands still while anything can run, and jumps to the next timer where nothing can.

What waits an hour takes no time, and no outcome depends on the speed of the machine.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_PATIENCE_SECONDS = 20.0


class NothingLeftToDo(Exception):
    """Everything waits for something that nothing will bring about: a call that hangs for good."""


class _Selector(selectors.DefaultSelector):
    """Selects without waiting, and moves the time of its loop instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.threads = 0
        """Number of functions that run in threads, and for which time stands still."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        if timeout is not None and not self.threads:
            self.now += timeout
            return found
        found = super().select(_PATIENCE_SECONDS)
        if not found:
            raise NothingLeftToDo
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module. ``jump`` moves its clock, as a machine that was suspended does."""

    def __init__(self) -> None:
        self._moved = _Selector()
        super().__init__(self._moved)

    def time(self) -> float:
        return self._moved.now

    def jump(self, seconds: float) -> None:
        """Move the clock."""
        self._moved.now += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        self._moved.threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._over)
        return future

    def _over(self, future: asyncio.Future[Any]) -> None:
        self._moved.threads -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads, whose time is real."""
        self._moved.threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._moved.threads -= 1

    def is_idle(self) -> bool:
        """Return True if nothing but the caller can run now."""
        return not getattr(self, "_ready")  # noqa: B009 - no public way to it

    async def until_next_timer(self) -> None:
        """Let the time pass."""
        scheduled: list[asyncio.TimerHandle] = getattr(self, "_scheduled")  # noqa: B009
        when = min((each.when() for each in scheduled if not each.cancelled()), default=self.time())
        await asyncio.sleep(max(0, when - self.time()))

    def timers(self) -> list[str]:
        """Return the timers that are set and were not cancelled."""
        scheduled: list[asyncio.TimerHandle] = getattr(self, "_scheduled")  # noqa: B009 - no public way to it
        return [repr(each) for each in scheduled if not each.cancelled()]

    def generators(self) -> list[str]:
        """Return the async generators that have begun and not ended."""
        return [repr(each) for each in list(getattr(self, "_asyncgens")) if each.ag_frame is not None]  # noqa: B009


@dataclass(frozen=True)
class Running:
    """A way of running a coroutine: on which event loop, and whether in asyncio's debug mode."""

    loop: Callable[[], asyncio.AbstractEventLoop] = VirtualLoop
    debug: bool = False

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run it as ``asyncio.run`` does."""
        with asyncio.Runner(loop_factory=self.loop, debug=self.debug) as runner:
            return runner.run(main)


VIRTUALLY = Running()
