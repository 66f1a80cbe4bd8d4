"""The garbage collector, and what must wait until it has run.

It runs wherever an object is made, also in a thread that holds a lock: an OpenTelemetry SDK's, a logging handler's, a
listener's. Whoever takes that lock again, in a finalizer or at the end of a collected coroutine, waits for itself.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import ParamSpec

from chatstack.forks import at_fork

P = ParamSpec("P")

_log = logging.getLogger(__name__)
_collecting: int | None = None
"""The thread in which the garbage collector runs just now."""
_postponed: deque[tuple[float, Callable[[], object]]] = deque()  # no lock: an append is atomic
_LATE: contextvars.ContextVar[float] = contextvars.ContextVar("_LATE", default=0.0)


def is_collecting() -> bool:
    """Return True if the garbage collector has interrupted this thread."""
    return threading.get_ident() == _collecting


def outside_collector(call: Callable[P, object], *args: P.args, **options: P.kwargs) -> None:
    """Call it; where the collector has interrupted this thread, later, in an empty context.

    That is in the next round of the event loop that runs in this thread, else with the next request of any client, or
    at the exit of the process.
    """
    if not is_collecting():
        call(*args, **options)
        return
    if not _postponed:
        atexit.unregister(call_postponed)
        atexit.register(call_postponed)  # now: what was registered before it, as an SDK's shutdown, runs after it
    _postponed.append((time.perf_counter(), partial(call, *args, **options)))
    with suppress(RuntimeError):  # no loop runs in this thread, or it is closed
        asyncio.get_running_loop().call_soon_threadsafe(call_postponed, context=contextvars.Context())


def call_postponed() -> None:
    """Call what the collector has postponed. What it raises is logged."""
    while _postponed and not is_collecting():
        try:
            since, call = _postponed.popleft()
        except IndexError:  # another thread was quicker
            return
        try:
            contextvars.Context().run(_call_late, since, call)
        except Exception:  # noqa: BLE001 - whoever comes by has nothing to do with it
            _log.exception("the end of something that the garbage collector has found raised")


def seconds_late() -> float:
    """Return how long ago the end was that is told just now: 0.0, unless the collector has postponed it."""
    return _LATE.get()


def seconds_since(started: float) -> float:
    """Return the seconds from a time of ``perf_counter`` to the end that is told just now."""
    return time.perf_counter() - seconds_late() - started


def _call_late(since: float, call: Callable[[], object]) -> None:
    _LATE.set(time.perf_counter() - since)
    call()


def _note_collector(phase: str, _: object, ident: Callable[[], int] = threading.get_ident) -> None:
    global _collecting
    _collecting = ident() if phase == "start" else None


def _in_child() -> None:
    global _collecting
    _postponed.clear()  # the parent calls them
    _collecting = _collecting if is_collecting() else None  # another thread of the parent's


gc.callbacks.append(_note_collector)
at_fork(after_in_child=_in_child)
