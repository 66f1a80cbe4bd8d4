"""A client of an SDK for each event loop: its connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Generic, Protocol, TypeVar


class Closable(Protocol):
    """The attribute of an SDK's client that is needed here."""

    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
_Served = tuple[C, AsyncGenerator[None, None], list[asyncio.Task[None]]]  # a loop holds its tasks weakly


class PerLoop(Generic[C]):
    """The clients of one provider. A pool that is used on a second event loop fails there: every second ``asyncio.run``
    over one client raised "Event loop is closed".

    The first client serves the first loop; ``make`` makes one for each further loop. Each is closed when its loop shuts
    down its async generators, as ``asyncio.run`` does at its end, or by ``close``. Without ``make`` there is only the
    first one, which belongs to the caller. Works from several threads.
    """

    __slots__ = ("_first", "_is_closed", "_is_taken", "_lock", "_loops", "_make")

    def __init__(self, first: C, make: Callable[[], C] | None) -> None:
        self._first = first
        self._make = make
        self._lock = threading.Lock()
        # A holder holds its loop, so weak keys would let go of none.
        self._loops: dict[asyncio.AbstractEventLoop, _Served[C]] = {}
        self._is_taken = self._is_closed = False

    @property
    def current(self) -> C:
        """The client of the running event loop; the first one where none runs."""
        if self._make is None or self._is_closed:
            return self._first
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._first
        found = self._loops.get(loop)
        return found[0] if found is not None else self._of_new(loop, self._make)

    def _of_new(self, loop: asyncio.AbstractEventLoop, make: Callable[[], C]) -> C:
        with self._lock:
            is_taken, self._is_taken = self._is_taken, True
        client = make() if is_taken else self._first  # takes long, and no other loop is to wait for it
        holder = self._held(loop, client)
        over = [self._loops.pop(each, None) for each in list(self._loops) if each.is_closed()]
        self._loops[loop] = client, holder, [loop.create_task(_give_up(each[0])) for each in over if each is not None]
        try:
            holder.__anext__().send(None)  # begins it, without awaiting, so that the loop knows of it
        except StopIteration:
            pass
        return client

    async def _held(self, loop: asyncio.AbstractEventLoop, client: C) -> AsyncGenerator[None, None]:
        """Hold a client as long as its loop runs."""
        try:
            yield
        finally:
            self._loops.pop(loop, None)
            await _give_up(client)

    async def close(self) -> None:
        """Close the client of the running loop, and have those of other loops that run closed there."""
        if self._make is None:
            return
        self._is_closed = True
        here = asyncio.get_running_loop()
        loops, self._loops = self._loops, {}
        for loop, (client, holder, _) in list(loops.items()):
            if loop is here:
                await holder.aclose()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(holder.aclose(), loop)
            elif loop.is_closed():
                await _give_up(client)
        await self._first.close()


async def _give_up(client: Closable) -> None:
    """Close a client. If its loop was closed before its async generators, or never closes them (nest_asyncio), its
    connections cannot end in order, and the SDK's own finalizer would log that."""
    with contextlib.suppress(RuntimeError):  # Event loop is closed; not in async context
        await client.close()
