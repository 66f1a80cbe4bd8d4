"""Detection of what a call must not leave behind: open streams, tasks, spans, context variables, complaints."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

from chatstack import semconv
from chatstack.testing.capture import CapturedSpan, TelemetryCapture
from chatstack.testing.scripted import ScriptedClient

_MAX_STEPS = 1_000


class LeftoverWatch:
    """Watches calls, and reports what they left behind. Make it inside the running loop."""

    def __init__(self, inner: ScriptedClient, capture: TelemetryCapture) -> None:
        self._inner = inner
        self._capture = capture
        self._loop = asyncio.get_running_loop()
        self._tasks = asyncio.all_tasks()
        self._found: list[str] = []
        self._loop.set_exception_handler(self._heard)

    def _heard(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._found.append(f"the event loop was told: {context.get('message')}: {context.get('exception')!r}")

    @contextmanager
    def step(self, what: str) -> Generator[None]:
        """Check one step of a call: context variables must be the same after it as before."""
        before = _variables()
        try:
            yield
        finally:
            if _variables() != before:
                self._found.append(f"{what} leaks a context variable")

    async def found(self) -> list[str]:
        """Return everything left behind up to now, also a span with an error status though it was only stopped."""
        await _settle()
        found = self.now()
        if found:  # objects in a reference cycle do not count: collect them, and look again
            gc.collect()
            await _settle()
            found = self.now()
        found, self._found = self._found + found, []
        self._capture.clear()
        return found

    def now(self) -> list[str]:
        """Return everything left behind at this moment, before the loop and the garbage collector clean up."""
        found: list[str] = []
        if self._inner.open_streams:
            found.append(f"{self._inner.open_streams} streams of the inner client are open")
        found.extend(f"a task is left: {task!r}" for task in asyncio.all_tasks() - self._tasks)
        found.extend(f"span {name!r} has not ended" for name in self._capture.open_spans)
        red = [span.name for span in self._capture.spans if span.status == "error" and _was_stopped(span)]
        found.extend(f"span {name!r} says error, but was stopped" for name in red)
        return found


async def _settle() -> None:
    """Let the loop close dropped streams, which takes it a few rounds."""
    for _ in range(20):
        await asyncio.sleep(0)


async def cancelled_at(step: int, run: Callable[[], Awaitable[object]]) -> bool | None:
    """Cancel a call after so many rounds of the loop. False if it had ended by then, None if it would not stop."""
    task = asyncio.ensure_future(run())
    for _ in range(step):
        await asyncio.sleep(0)
    if task.done():
        await task
        return False
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return True
    return None


async def cancelled_everywhere(run: Callable[[], Awaitable[object]], watch: LeftoverWatch) -> list[str]:
    """Cancel a call at each of its steps, and return what was left behind each time."""
    found: list[str] = []
    for step in range(_MAX_STEPS):
        stopped = await cancelled_at(step, run)
        if stopped is None:
            found.append(f"cancelled at step {step}, it went on")
        found.extend(f"cancelled at step {step}: {each}" for each in await watch.found())
        if stopped is False:
            return found
    raise AssertionError(f"the call did not end in {_MAX_STEPS} steps")


@contextmanager
def complaints() -> Generator[list[str]]:
    """Collect OpenTelemetry's own complaints: a span ended twice, a context detached in the wrong place."""
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener = Listener(logging.WARNING)
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)


def _was_stopped(span: CapturedSpan) -> bool:
    return span.attributes.get(semconv.ERROR_TYPE) in ("cancelled", "CancelledError", "GeneratorExit")


def _variables() -> dict[contextvars.ContextVar[Any], int]:
    """Return the context variables, by the identity of their values."""
    return {variable: id(value) for variable, value in contextvars.copy_context().items()}
