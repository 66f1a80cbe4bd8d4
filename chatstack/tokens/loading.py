"""Slow loading (a good part of a second): in a thread if an event loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from chatstack.client.threads import in_own_thread

T = TypeVar("T")


def is_on_a_loop() -> bool:
    """Tell whether an event loop runs in this thread, which slow work here would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def off_the_loop(load: Callable[[], T]) -> T:
    """Load in a thread, and return the result; directly if no event loop runs, and a coroutine is driven by hand."""
    return await in_own_thread(load, "chatstack-loading", or_here=True) if is_on_a_loop() else load()
