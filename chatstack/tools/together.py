"""Running the calls of one round concurrently."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def run_together(
    run: Callable[[T], Awaitable[R]], calls: Sequence[T], max_concurrency: int | None = None
) -> list[R]:
    """Run the calls concurrently, at most ``max_concurrency`` at a time, and return their results in order. The first
    exception cancels the rest, and is raised unchanged, with its own cause; failures of tools are outcomes, not
    exceptions."""
    gate = asyncio.Semaphore(max_concurrency or max(1, len(calls)))
    is_stopping = False

    async def one(call: T) -> R:
        nonlocal is_stopping
        async with gate:
            if is_stopping:  # the semaphore admits the next call before the group cancels it
                raise asyncio.CancelledError
            try:
                return await run(call)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - raised again below, outside the group
                is_stopping = True
                raise _Escaped(error) from None

    stopped_by: BaseException | None = None
    tasks: list[asyncio.Task[R]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(one(call)) for call in calls]
    except BaseExceptionGroup as failed:
        first = failed.exceptions[0]
        stopped_by = first.error if isinstance(first, _Escaped) else first
    if stopped_by is not None:
        raise stopped_by  # outside the except block, so that its own cause stays
    return [task.result() for task in tasks]


class _Escaped(Exception):
    """An exception that is no tool's failure: a missing service, an exit, an interrupt.

    Raised bare in a task, an exit would stop the event loop, and other errors would come out in a group. So it is
    wrapped in this, and unwrapped outside.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
