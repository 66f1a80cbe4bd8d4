"""Awaiting in another context than the task's own."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextvars import Context
from typing import Generic, TypeVar

T = TypeVar("T")


class Apart(Generic[T]):
    """Awaits with ``context`` current in the place of the task's own.

    A connection and its timers keep the context that they were made in, and with it the whole request that is current
    there, as long as the connection is in the pool. ``context`` must be of one event loop.
    """

    __slots__ = ("_awaitable", "_context")

    def __init__(self, awaitable: Awaitable[T], context: Context) -> None:
        self._awaitable = awaitable
        self._context = context

    def __await__(self) -> Generator[object, object, T]:
        steps: Generator[object, object, T] = self._awaitable.__await__()
        run = self._context.run
        try:
            waited_for = run(steps.send, None)
            while True:
                try:
                    sent = yield waited_for
                except BaseException as error:  # noqa: BLE001 - a cancellation, for what is awaited to see
                    waited_for = run(steps.throw, error)
                else:
                    waited_for = run(steps.send, sent)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
