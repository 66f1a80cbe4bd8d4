"""Running the calls of one round together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


async def run_together(
    run: Callable[[T], Awaitable[R]], calls: Sequence[T], max_concurrency: int | None = None
) -> list[R]:
    """What they give, in their order; they run at once, ``max_concurrency`` at most. The first that raises cancels the
    rest, and is raised as it is, its own cause with it: it is no tool's failure (those are outcomes)."""
    gate = asyncio.Semaphore(max_concurrency or max(1, len(calls)))
    is_stopping = False

    async def one(call: T) -> R:
        nonlocal is_stopping
        async with gate:
            if is_stopping:  # the gate lets the next one in before the group cancels it
                raise asyncio.CancelledError
            try:
                return await run(call)
            except (asyncio.CancelledError, GeneratorExit):
                raise
            except BaseException as error:  # noqa: BLE001 - raised again below, out of the group
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
        raise stopped_by  # out here, so that its own cause stays
    return [task.result() for task in tasks]


class _Escaped(Exception):
    """What is no tool's failure: a service that cannot be had, an exit, an interrupt.

    In a task, it would stop the event loop (an exit), or come out in a group; so it travels in here to be raised bare.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error
