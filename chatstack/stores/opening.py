"""What a store holds open: made when it is first needed, closed once and for all, and left alone by a child that forks.

For a store of your own, see ``DecisionStore``: derive what does the work, threads and connections, from ``Session``,
and ask an ``OpenedOnce`` for it on every call.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from chatstack.errors import StoreError
from chatstack.forks import at_fork


class Session:
    """Threads and connections of a store. What must not be forked is let go of by ``pause`` until ``resume``."""

    def pause(self) -> None:
        """Called before this process forks, in whichever thread that does; it waits until nothing is under way."""

    def resume(self) -> None:
        """Called after it, in the parent alone."""

    async def aclose(self) -> None:
        """End them; each time that it is asked."""


S = TypeVar("S", bound=Session)


class OpenedOnce(Generic[S]):
    """The session of one store, from any thread. ``where`` names the store in errors, without a secret.

    Threads are only in the parent of a fork: the child makes a session of its own when it needs one, and neither uses
    nor closes the connections of the parent's.
    """

    def __init__(self, where: str, make: Callable[[], S]) -> None:
        self._where = where
        self._make = make
        self._lock = Lock()
        self._session: S | None = None
        self._is_closed = False
        with _fork_lock:
            _all.add(self)

    def get(self) -> S:
        """The session, made if need be. Raises ``StoreError`` after ``close``."""
        with self._lock:
            if self._is_closed:
                raise self.closed()
            if self._session is None:
                self._session = self._make()
            return self._session

    async def aclose(self) -> None:
        """From now on there is none. What there was is closed, each time that it is asked."""
        with self._lock:
            self._is_closed = True
            session = self._session
        if session is not None:
            await session.aclose()

    def closed(self) -> StoreError:
        """What is raised from then on."""
        return StoreError(f"{self._where}: it has been closed")

    def before_fork(self) -> None:
        """Called by the process itself."""
        self._lock.acquire()
        if self._session is not None:
            self._session.pause()

    def after_fork(self, *, is_child: bool) -> None:
        """Called by the process itself, and by its child."""
        session = self._session
        if session is not None and is_child:
            _left_to_the_parent.append(session)  # or the child would close its connections when it collects it
            self._session = None
        elif session is not None:
            session.resume()
        self._lock.release()


_all: WeakSet[OpenedOnce[Any]] = WeakSet()
_forking: list[OpenedOnce[Any]] = []
_left_to_the_parent: list[Session] = []
_fork_lock = Lock()


def _before_fork() -> None:
    _fork_lock.acquire()
    _forking.extend(_all)
    for each in _forking:
        each.before_fork()


def _after_fork(*, is_child: bool) -> None:
    for each in _forking:
        each.after_fork(is_child=is_child)
    _forking.clear()
    _fork_lock.release()


at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, is_child=False),
    after_in_child=partial(_after_fork, is_child=True),
)
