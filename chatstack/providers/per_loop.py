"""A client of an SDK for each event loop: its connections belong to the loop that opened them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary


class Closable(Protocol):
    """The attribute of an SDK's client that is needed here."""

    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class PerLoop(Generic[C]):
    """The clients of one provider. A pool that is used on a second event loop fails there: every second ``asyncio.run``
    over one client raised "Event loop is closed".

    The first client serves the first loop; ``make`` makes one for each further loop. Each is closed when its loop shuts
    down its async generators, as ``asyncio.run`` does at its end, or by ``close``. Without ``make`` there is only the
    first one, which belongs to the caller. Works from several threads.
    """

    __slots__ = ("_first", "_holders", "_is_closed", "_is_taken", "_lock", "_loops", "_make")

    def __init__(self, first: C, make: Callable[[], C] | None) -> None:
        self._first = first
        self._make = make
        self._lock = threading.Lock()
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, C] = WeakKeyDictionary()
        self._holders: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = WeakKeyDictionary()
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
        return found if found is not None else self._of_new(loop, self._make)

    def _of_new(self, loop: asyncio.AbstractEventLoop, make: Callable[[], C]) -> C:
        with self._lock:
            client = make() if self._is_taken else self._first
            self._is_taken = True
            self._loops[loop] = client
            self._holders[loop] = holder = self._held(loop, client)
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
            if self._loops.get(loop) is client:
                del self._loops[loop]
            await client.close()

    async def close(self) -> None:
        """Close the client of the running loop, and have those of other loops that run closed there."""
        if self._make is None:
            return
        self._is_closed = True
        here = asyncio.get_running_loop()
        with self._lock:
            holders = list(self._holders.items())
            self._holders.clear()
        for loop, holder in holders:
            if loop is not here and loop.is_running():
                asyncio.run_coroutine_threadsafe(holder.aclose(), loop)
            elif loop is here:
                await holder.aclose()
        await self._first.close()
