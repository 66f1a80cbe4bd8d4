"""Delivery of progress events to a listener, in order and from a thread of its own, so that it cannot slow down a
call."""

from __future__ import annotations

import asyncio
import inspect
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from chatstack.forks import renewed_in_child
from chatstack.telemetry.events import ProgressEvent

_IDLE_SECONDS = 1.0


class ProgressDelivery:
    """Hands events to one listener, one after the other, in a background thread that ends when idle.

    A listener that raises misses that event; a slow one misses those that no longer fit into the queue. Both are
    counted in ``dropped``; neither affects a call. ``failure`` names the last exception and its place, never its text.
    """

    def __init__(self, listener: Callable[[ProgressEvent], object], *, capacity: int = 1_000) -> None:
        self._listener = listener
        self._capacity = capacity
        self._waiting: deque[ProgressEvent] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._busy = False
        self._when_idle: list[Callable[[], None]] = []
        self.dropped = 0
        self.failure = ""
        renewed_in_child(self)

    def after_fork(self) -> None:
        """Forget the thread in a forked child, where it does not exist; the parent delivers the events that waited."""
        self._changed = threading.Condition()
        self._waiting.clear()
        self._when_idle.clear()
        self._thread, self._busy = None, False

    def put(self, event: ProgressEvent) -> None:
        """Queue one event; returns at once."""
        with self._changed:
            if len(self._waiting) >= self._capacity:
                self.dropped += 1
                return
            self._waiting.append(event)
            if self._thread is None and not self._start():
                self._waiting.clear()
                self.dropped += 1
                return
            self._changed.notify_all()

    def _start(self) -> bool:
        """Start the delivering thread; False if the system has no thread left."""
        thread = threading.Thread(target=self._deliver, name="chatstack-progress", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def take_dropped(self) -> int:
        """Return the number of events lost since the last call, and reset it."""
        with self._changed:
            dropped, self.dropped = self.dropped, 0
            return dropped

    def take_failure(self) -> str:
        """Return what went wrong in the listener since the last call, and where, and reset it; "" if nothing did."""
        with self._changed:
            failure, self.failure = self.failure, ""
            return failure

    def give_up(self) -> None:
        """Count the waiting events as lost."""
        with self._changed:
            self.dropped += len(self._waiting)
            self._waiting.clear()

    async def flush(self, timeout_seconds: float = 5.0) -> bool:
        """Wait until everything queued has been delivered; False if the listener did not finish in time.

        The delivering thread wakes the waiting loop itself: threads of a pool may all be used up by stuck tools.
        """
        loop, idle = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with suppress(RuntimeError):  # that loop is closed: nothing waits any more
                loop.call_soon_threadsafe(idle.set)

        with self._changed:
            if not self._waiting and not self._busy:
                return True
            self._when_idle.append(tell)
        try:
            async with asyncio.timeout(timeout_seconds):
                return await idle.wait()
        except TimeoutError:
            return False
        finally:
            with self._changed:
                if tell in self._when_idle:
                    self._when_idle.remove(tell)

    def _deliver(self) -> None:
        while True:
            with self._changed:
                if not self._changed.wait_for(lambda: bool(self._waiting), _IDLE_SECONDS):
                    self._thread = None
                    return
                event = self._waiting.popleft()
                self._busy = True
            failure = ""
            try:
                failure = _unbegun(self._listener(event))
            except BaseException as error:  # noqa: BLE001 - told, never raised in a call; SystemExit would end the thread
                failure = _failure_told(error)
            finally:
                with self._changed:
                    if failure:
                        self.dropped += 1
                        self.failure = failure
                    self._busy = False
                    self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        if not self._waiting:
            told, self._when_idle = self._when_idle, []
            for tell in told:
                tell()


def _unbegun(given: object) -> str:
    """Return what a listener gave in place of hearing the event, with the remedy; "" where it has heard it."""
    if not (inspect.iscoroutine(given) or inspect.isgenerator(given) or inspect.isasyncgen(given)):
        return ""
    if inspect.iscoroutine(given):
        given.close()  # else Python warns that it was never awaited
    return f"gave a {type(given).__name__}, which nobody runs: pass a plain function, such as a queue's put_nowait"


def _failure_told(error: BaseException) -> str:
    """Return the type of the exception, and the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"raised {type(error).__name__}{place}"
