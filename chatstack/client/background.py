"""Background tasks: work that goes on beside calls, until it is done or its owner is closed."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine, Hashable
from contextvars import ContextVar
from typing import Any

_in_background: ContextVar[bool] = ContextVar("chatstack_in_background", default=False)


def runs_in_background() -> bool:
    """Return True within a background task: it has the context of the call that started it, which may be over."""
    return _in_background.get()


class Owner:
    """The owner of background tasks, mostly a layer: closing it cancels them, and it starts no more."""

    __slots__ = ("_is_closed", "_tasks")

    def __init__(self) -> None:
        self._is_closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_closed(self) -> bool:
        """True once it is closed."""
        return self._is_closed

    def add(self, task: asyncio.Task[None]) -> None:
        """Hold a task until it ends, as an event loop does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        """Cancel all tasks, and wait for those on this event loop to end."""
        self._is_closed = True
        here, ending = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        for task in tuple(self._tasks):
            if task.get_loop() is here:
                task.cancel()
                ending.append(task)
                continue
            with contextlib.suppress(RuntimeError):  # that loop was closed, and its tasks with it
                task.get_loop().call_soon_threadsafe(task.cancel)
        if ending:
            await asyncio.wait(ending)

    def __repr__(self) -> str:
        return f"Owner(tasks={len(self._tasks)})"


class BackgroundTasks:
    """Background tasks, at most one for each key on each event loop. Threads may share it. The work handles its own
    errors."""

    __slots__ = ("_lock", "_running")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[asyncio.AbstractEventLoop, dict[Hashable, asyncio.Task[None]]] = {}

    def start(self, owner: Owner, key: Hashable, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start this work in a task of the running event loop, unless there is some for that key, or the owner is
        closed."""
        loop = asyncio.get_running_loop()
        if owner.is_closed or key in self._running.get(loop, ()):
            return
        context = contextvars.copy_context()
        context.run(_in_background.set, True)
        task = loop.create_task(work(), context=context)  # not under the lock: an eager task begins at once
        owner.add(task)
        with self._lock:
            for lost in [each for each in self._running if each.is_closed()]:  # before its tasks had ended
                del self._running[lost]
            self._running.setdefault(loop, {})[key] = task
        task.add_done_callback(lambda _: self._ended(loop, key))

    def runs(self, key: Hashable) -> bool:
        """Return True if there is work for that key, on any event loop."""
        with self._lock:
            return any(key in tasks for tasks in self._running.values())

    async def joined(self, key: Hashable) -> bool:
        """Wait until the work for that key on this event loop has ended; return False if there is none.

        Cancelling this wait does not cancel the work.
        """
        task = self._running.get(asyncio.get_running_loop(), {}).get(key)
        if task is None:
            return False
        await asyncio.wait([task])
        return True

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._running.values()))

    def _ended(self, loop: asyncio.AbstractEventLoop, key: Hashable) -> None:
        with self._lock:
            tasks = self._running.get(loop, {})
            tasks.pop(key, None)
            if not tasks:
                self._running.pop(loop, None)
