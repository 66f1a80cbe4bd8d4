"""A plain function off the event loop, in a thread of its own.

Not in the loop's default pool, which is small and shared: a tool that hangs would take a thread from name resolution or
file reads, and a tool queued for a thread would use up its time limit before it starts.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")


async def in_own_thread(function: Callable[[], T], name: str, *, or_here: bool = False) -> T:
    """Call the function in a new daemon thread, with the caller's context variables; return or raise what it does.

    The thread starts at once. If the caller is cancelled, the function runs on to its end, and its result is discarded;
    it blocks neither the loop nor the end of the process. A ``StopIteration`` comes out as ``RuntimeError``, its cause,
    as from every coroutine. Where no thread can be started (a limit of the system, the end of the interpreter), raises
    ``RuntimeError``, or calls the function ``or_here``, on the loop: for what ends soon and must not fail.
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
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            raised = error
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(settle, returned, raised)

    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        if not or_here:
            raise
        return function()
    # As a value, not by set_exception: a future refuses StopIteration, and the caller would wait for ever.
    returned, raised = await waiter
    if raised is None:
        return returned[0]
    try:
        raise raised
    finally:
        del raised  # breaks the reference cycle: its traceback holds this frame
