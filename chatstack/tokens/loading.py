"""Loading what takes a good part of a second: in a thread, where an event loop runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def is_on_a_loop() -> bool:
    """Tell whether an event loop runs in this thread, which whatever takes long here would hold up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def off_the_loop(load: Callable[[], T]) -> T:
    """Return what is loaded, by a thread; here and now where no event loop runs, and a coroutine is driven by hand."""
    return await asyncio.to_thread(load) if is_on_a_loop() else load()
