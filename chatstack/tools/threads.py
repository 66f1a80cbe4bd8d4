"""A plain function off the event loop, in a thread of its own.

Not in the loop's pool: that has a few threads for everybody, so a tool that hangs would take one away from whoever
resolves a host name or reads a file, and a tool that waits for one would use up its time limit before it began.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(function: Callable[[], T], name: str) -> T:
    """Call it in a new daemon thread, with the caller's context variables; gives what it returns or raises.

    The thread begins at once. Whoever is cancelled meanwhile no longer listens: the function runs on to its end,
    which nobody hears, and holds up neither the loop nor the end of the process. A ``StopIteration`` comes out as
    ``RuntimeError``, its cause, as it does from every coroutine.
    """
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[tuple[list[T], BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(returned: list[T], raised: BaseException | None) -> None:
        if not waiter.done():
            waiter.set_result((returned, raised))

    def run() -> None:
        returned: list[T] = []
        raised: BaseException | None = None
        try:
            returned.append(context.run(function))
        except BaseException as error:  # noqa: BLE001 - raised again where the function was called
            raised = error
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            loop.call_soon_threadsafe(settle, returned, raised)

    threading.Thread(target=run, name=name, daemon=True).start()
    # As a value, not by set_exception: a future refuses StopIteration, and its waiter would wait for ever.
    returned, raised = await waiter
    if raised is None:
        return returned[0]
    try:
        raise raised
    finally:
        del raised  # it knows this frame: no circle
