"""The context of an iterative loop: what its prompt and its hooks see."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from chatstack.errors import ChatStackError
from chatstack.loop.results import IterationRecord, ToolCallResult
from chatstack.loop.workspace import Workspace

T = TypeVar("T")


class CancelledRun(ChatStackError):
    """The run was cancelled. Never leaves the loop."""


class PaidOut(ChatStackError):
    """A budget of the client is used up. Never leaves the loop."""


class Cancellation:
    """A request to stop, from any thread.

    A model call that runs is cancelled at once, a tool that runs may finish by itself; nothing is called after it.
    """

    __slots__ = ("_event", "_lock", "_stops")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._stops: set[Callable[[], None]] = set()

    def cancel(self) -> None:
        """Request the end of the run."""
        self._event.set()
        with self._lock:
            stops = tuple(self._stops)
        for stop in stops:
            stop()

    async def ending(self, step: Awaitable[T]) -> T:
        """Await the step, and cancel it as soon as the end is requested. Raises ``CancelledRun`` then."""
        loop, limit, is_over = asyncio.get_running_loop(), asyncio.timeout(None), False

        def expire() -> None:
            if not is_over:
                limit.reschedule(loop.time())

        def stop() -> None:
            with suppress(RuntimeError):  # the loop is closed: nothing runs any more
                loop.call_soon_threadsafe(expire)

        with self._lock:
            self._stops.add(stop)
        try:
            async with limit:
                if self.is_requested:
                    stop()
                try:
                    return await step
                finally:
                    is_over = True
        except TimeoutError:
            if limit.expired():
                raise CancelledRun from None
            raise
        finally:
            with self._lock:
                self._stops.discard(stop)

    @property
    def is_requested(self) -> bool:
        """True if the end was requested; long work in a tool or a prompt should check now and then."""
        return self._event.is_set()

    def __repr__(self) -> str:
        return f"Cancellation(is_requested={self.is_requested})"


@dataclass(slots=True, kw_only=True)
class IterativeContext:
    """State of one run, handed to the prompt, ``is_complete`` and the hooks; a context serves one run.

    The ``workspace`` is the memory from one iteration to the next; it is yours. ``state`` is for whatever does not
    belong there: any values, or JSON if the loop has a journal. ``last_tool_results`` are the results of the last
    iteration that the model has not seen, which depends on the loop's mode; they are replaced each time.
    ``is_finalizing`` is True in the last iteration when the budget is nearly used up: no tool may be called in it.
    ``records`` are the iterations that have ended, also those of a run that failed. ``run_id`` identifies the run in a
    journal, and the conversation for the client; ``iteration`` counts from 0.

    Source: NexusLabs.Needlr's ``IterativeContext``.
    """

    workspace: Workspace
    run_id: str | None = None
    state: dict[str, Any] = field(default_factory=dict[str, Any])
    cancellation: Cancellation = field(default_factory=Cancellation)
    iteration: int = 0
    last_tool_results: tuple[ToolCallResult, ...] = ()
    is_finalizing: bool = False
    records: list[IterationRecord] = field(default_factory=list[IterationRecord])
    is_taken: bool = field(default=False, init=False, repr=False)
    """True once a run uses this context."""
