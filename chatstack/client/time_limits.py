"""Time limits whose timers hold nothing of a call, and which what they end can ask for."""

from __future__ import annotations

import asyncio
import contextvars
from contextvars import ContextVar

from chatstack.client.closing import closes_this

_limits: ContextVar[tuple[told_as, ...]] = ContextVar("chatstack_limits", default=())


def expire_at(limit: asyncio.Timeout, when: float) -> None:
    """Have an ``asyncio.timeout(None)``, which has been entered, expire at that time of the event loop.

    A timer that was cancelled stays with its event loop until its time, or until there are a hundred of them, and holds
    the context that it was made in: with a turn in it, all messages of a conversation. So it is made in an empty one.
    """
    contextvars.Context().run(limit.reschedule, when)


def expire_in(limit: asyncio.Timeout, seconds: float) -> None:
    """Have it expire after so many seconds."""
    expire_at(limit, asyncio.get_running_loop().time() + seconds)


class told_as:  # noqa: N801 - used like a function, as those of contextlib are
    """Context manager for the work within a time limit: what the limit ends there has failed under that name.

    Seen from within, an expired limit is a cancellation like any other.
    """

    __slots__ = ("_limit", "_name", "_token")

    def __init__(self, name: str, limit: asyncio.Timeout) -> None:
        self._name = name
        self._limit: asyncio.Timeout | None = limit

    def __enter__(self) -> None:
        self._token = _limits.set((*_limits.get(), self))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._limit = None  # a task that outlives the work keeps this in its context
        if not closes_this(error):
            _limits.reset(self._token)

    @property
    def name_if_expired(self) -> str:
        """The name, if the work goes on and its time has run out; else ""."""
        return self._name if self._limit is not None and self._limit.expired() else ""


def expired_limit() -> str:
    """Return the name of the time limit that has run out around this code; "" if none has."""
    return next(filter(None, (limit.name_if_expired for limit in _limits.get())), "")
