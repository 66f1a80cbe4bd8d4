"""Time limits whose timers hold nothing of a call."""

from __future__ import annotations

import asyncio
import contextvars


def expire_at(limit: asyncio.Timeout, when: float) -> None:
    """Have an ``asyncio.timeout(None)``, which has been entered, expire at that time of the event loop.

    A timer that was cancelled stays with its event loop until its time, or until there are a hundred of them, and holds
    the context that it was made in: with a turn in it, all messages of a conversation. So it is made in an empty one.
    """
    contextvars.Context().run(limit.reschedule, when)


def expire_in(limit: asyncio.Timeout, seconds: float) -> None:
    """Have it expire after so many seconds."""
    expire_at(limit, asyncio.get_running_loop().time() + seconds)
