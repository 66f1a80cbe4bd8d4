"""One event loop in a thread of its own, shared by all synchronous clients of a process.

It starts with its first user and ends with the last one, or with the process. One for all, because the connections of
an SDK's client belong to the loop that opened them: two stacks around one provider must not run on two loops.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast
from weakref import WeakSet

from chatstack.client.closing import close
from chatstack.client.collecting import is_collecting
from chatstack.errors import StreamClosedError, WiringError
from chatstack.forks import at_fork

if sys.platform == "win32":
    from asyncio import ProactorEventLoop as PlatformLoop
else:
    from asyncio import SelectorEventLoop as PlatformLoop

T = TypeVar("T")

_EXIT_SECONDS = 10.0
_INTERRUPTED_SECONDS = 1.0
"""Seconds after which an interrupted call is cancelled at the latest."""
_UNSET: Any = object()


class _Loop(PlatformLoop):
    """An event loop that knows its connections.

    Pools keep idle connections, and would use them again on the next loop, or in a forked child. After ``abort_all`` or
    ``leave_to_parent`` they find them closed, and open new ones.
    """

    def __init__(self) -> None:
        super().__init__()
        self._connections: WeakSet[asyncio.BaseTransport] = WeakSet()
        self._left: tuple[asyncio.BaseTransport, ...] = ()

    async def create_connection(self, *args: Any, **options: Any) -> Any:
        transport, protocol = await super().create_connection(*args, **options)
        self._connections.add(transport)
        return transport, protocol

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        with suppress(RuntimeError):  # while the process exits, Python 3.12.0 and 3.12.1 start no thread to wait in
            await super().shutdown_default_executor(*args, **options)

    def abort_all(self) -> None:
        """Close every connection at once."""
        for transport in tuple(self._connections):
            cast("asyncio.WriteTransport", transport).abort()

    def leave_to_parent(self) -> None:
        """Give up a forked child's copies of the connections. The parent's stay open: its poll set, which both share,
        is not touched, as it would be by closing the transports."""
        self.set_debug(False)  # pools close them from another thread, which can do no harm here
        self._left = tuple(self._connections)  # a transport that is collected complains
        nowhere = os.open(os.devnull, os.O_RDWR)
        for transport in self._left:
            number = transport.get_extra_info("socket").fileno()
            if number >= 0:
                os.dup2(nowhere, number)
        os.close(nowhere)


class _Call(Generic[T]):
    """One step on its way to the loop and back. ``begin`` and ``abandon`` run on the loop."""

    __slots__ = ("_ends", "_error", "_returned", "_step", "_task")

    def __init__(self, step: Callable[[], Awaitable[T]]) -> None:
        self._ends: SimpleQueue[None] = SimpleQueue()
        self._step = step
        self._task: asyncio.Task[None] | None = None
        self._returned: T = _UNSET
        self._error: BaseException | None = None

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._work())
        self._task.add_done_callback(lambda _: self._ends.put(None))

    def abandon(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
        else:  # the caller was interrupted before it could begin, or when it had just waited for its end
            self._ends.put(None)

    def wait(self) -> None:
        """Wait for its end, in the caller's thread: once, and once more after ``abandon``."""
        while True:
            try:
                return self._ends.get(timeout=_INTERRUPTED_SECONDS)
            except Empty:  # the interpreter handles a signal now that came just before it began to wait
                continue

    async def _work(self) -> None:
        try:
            self._returned = await self._step()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller; SystemExit would end the loop
            self._error = error

    def result(self) -> T:
        error, self._error = self._error, None
        if self._returned is not _UNSET:
            return self._returned
        try:
            if error is None or isinstance(error, asyncio.CancelledError):
                raise StreamClosedError("the synchronous client was closed during this call") from error
            raise error
        finally:
            del error  # breaks the reference cycle: its traceback holds this frame


class Portal:
    """An event loop in a daemon thread, and those who use it."""

    def __init__(self) -> None:
        self.users: set[Hold] = set()
        self.is_over = False
        self._lock = threading.RLock()  # a handler of a signal may take it again
        self._loop = _Loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="chatstack-sync", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            main = runner.get_loop().create_task(self._until_stopped())
            while not main.done():
                # A task that raises one of these stops the loop, and keeps it for whoever awaits the task.
                with suppress(KeyboardInterrupt, SystemExit):
                    self._loop.run_until_complete(main)

    async def _until_stopped(self) -> None:
        await self._stopping.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
        # Streams before their connections, each from the outside in: the loop closes generators in any order.
        closing = [self._loop.create_task(user.aclose()) for user in tuple(self.users) if user.is_stream]
        if closing:
            await asyncio.wait(closing)
        await self._loop.shutdown_asyncgens()
        self._loop.abort_all()
        await asyncio.sleep(0)  # the transports close in the next round

    def call(self, step: Callable[[], Awaitable[T]]) -> T:
        """Run a step on the loop, with the caller's context variables; return or raise what it does.

        If the caller is interrupted (Ctrl-C), the step is cancelled, and has ended when this raises. Raises
        ``WiringError`` on the loop's own thread, which would wait for itself.
        """
        self._refuse_own_thread()
        call = _Call(step)
        try:
            is_begun = self._soon(call.begin)
            if is_begun:
                call.wait()
        except BaseException:
            if self._soon(call.abandon):
                call.wait()
            else:
                self._thread.join()  # it ends, and with it whatever was begun
            raise
        if not is_begun:
            raise StreamClosedError(_why_over(self))
        return call.result()

    def _soon(self, callback: Callable[[], object]) -> bool:
        """Have the loop call it, in order; False if the loop is ending."""
        with self._lock:
            if not self.is_over:
                with suppress(RuntimeError):  # a handler of a signal has just ended it
                    self._loop.call_soon_threadsafe(callback)
            return not self.is_over

    def may_wait(self) -> bool:
        """Tell whether this thread may wait for the loop. The loop's own may not, nor one that the collector has
        interrupted: at any point, with any lock held."""
        return threading.get_ident() != self._thread.ident and not is_collecting()

    def drop(self, user: Hold) -> None:
        """Close what a user holds, and release it. Never waits, and takes no lock."""
        if not self.is_over and user in self.users:
            last = Hold(user.held, is_stream=user.is_stream)  # as the user may lease again meanwhile
            self.users.add(last)
            self.users.discard(user)
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._begin_drop, last, context=contextvars.Context())

    def _begin_drop(self, user: Hold) -> None:
        task = self._loop.create_task(user.aclose())
        task.add_done_callback(lambda _: release(self, user))

    def end(self, seconds: float | None = None) -> None:
        """Cancel what runs, close what is open, and wait for the thread to end, at most so long."""
        with self._lock:
            if self.is_over:
                return
            self.is_over = True
            self._loop.call_soon_threadsafe(self._stopping.set)
        if threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def in_child(self) -> None:
        """End it in a forked child, where its thread does not exist."""
        self.is_over = True
        self._lock = threading.RLock()
        self._loop.leave_to_parent()

    def _refuse_own_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise WiringError(
                "a synchronous client was called from an async function that runs on its own event loop, as an async "
                "tool or a layer does; await the async client there: stack.build()"
            )


_lock = threading.RLock()
_current: Portal | None = None
_of_parent: list[Portal] = []
"""Portals from before a fork: never collected, as their transports would meddle with the parent's."""


def lease(user: Hold) -> Portal:
    """Return the portal of this process, which runs at least until that user is released.

    Raises ``StreamClosedError`` once the exit of the process has ended it: nobody would end another one, and Python
    3.12 starts no thread then.
    """
    global _current
    with _lock:
        if _current is None:
            _current = Portal()
        if _current.is_over:
            raise StreamClosedError(_why_over(_current))
        _current.users.add(user)
        return _current


def _why_over(portal: Portal) -> str:
    """Return the reason why nothing runs on a portal any more. Only the exit of the process ends the current one."""
    if portal is not _current:
        return "the synchronous client that this stream came from was closed"
    return (
        "the process is exiting, and the event loop of its synchronous clients has ended; exit handlers run last "
        "registered first: register yours after the import of chatstack's SyncClient, or call it before the exit"
    )


def release(portal: Portal, user: Hold) -> None:
    """Release a user, who may be released already. The portal ends with the last one."""
    global _current
    with _lock:
        portal.users.discard(user)
        if portal.users:
            return
        if _current is portal:
            _current = None
    portal.end()


class Hold:
    """One user's hold on the portal of the process, taken when it is first needed, and what is closed when it ends. A
    stream is closed also when the portal ends with the process."""

    __slots__ = ("_portal", "held", "is_stream")

    def __init__(self, held: object = None, *, is_stream: bool = False) -> None:
        self.held = held
        self.is_stream = is_stream
        self._portal: Portal | None = None

    def portal(self) -> Portal:
        portal = self._portal
        if portal is None or portal.is_over:
            self._portal = portal = lease(self)
        return portal

    async def aclose(self) -> None:
        """Close what is held, on the loop."""
        await close(self.held)

    def close(self) -> None:
        """Close what is held, and release. Waits for it, where this thread may wait."""
        portal = self._portal
        if portal is not None and not portal.may_wait():
            self.drop()
            return
        try:
            if portal is not None and not portal.is_over:
                portal.call(self.aclose)
        finally:
            self.release()

    def drop(self) -> None:
        """Have the loop close what is held, and release, some time."""
        portal, self._portal = self._portal, None
        if portal is not None:
            portal.drop(self)

    def release(self) -> None:
        portal, self._portal = self._portal, None
        if portal is not None:
            release(portal, self)


def _at_exit() -> None:
    portal = _current
    if portal is not None:
        portal.end(_EXIT_SECONDS)


def _in_child() -> None:
    global _lock, _current
    _lock = threading.RLock()
    if _current is not None:
        _current.in_child()
        _of_parent.append(_current)
        _current = None


atexit.register(_at_exit)
at_fork(after_in_child=_in_child)
