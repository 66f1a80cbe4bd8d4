"""Sessions of stores: opened lazily, closed for good, and safe across a fork.

For a store of your own, see ``DecisionStore``: derive the class that has threads and connections from ``Session``, and
get it from an ``OpenedOnce`` on every call.
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
    """The threads and connections of a store. ``pause`` releases what must not be forked, until ``resume``."""

    def pause(self) -> None:
        """Wait for running work, then release resources. Called before a fork, in the thread that forks."""

    def resume(self) -> None:
        """Go on after the fork. Called in the parent only."""

    async def aclose(self) -> None:
        """End threads and connections. May be called several times."""


S = TypeVar("S", bound=Session)


class OpenedOnce(Generic[S]):
    """The lazily opened session of one store, for any thread. ``where`` names the store in errors, without a secret.

    Threads do not survive a fork in the child: it makes a session of its own when it needs one, and neither uses nor
    closes the connections of the parent.
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
        """Return the session, making it if need be. Raises ``StoreError`` after ``aclose``."""
        with self._lock:
            if self._is_closed:
                raise self.closed()
            if self._session is None:
                self._session = self._make()
            return self._session

    async def aclose(self) -> None:
        """Close the session, if there is one, for good. May be called several times."""
        with self._lock:
            self._is_closed = True
            session = self._session
        if session is not None:
            await session.aclose()

    def closed(self) -> StoreError:
        """Return the error for a use after closing."""
        return StoreError(f"{self._where}: it has been closed")

    def before_fork(self) -> None:
        """Pause the session. Called by the fork hook."""
        self._lock.acquire()
        if self._session is not None:
            self._session.pause()

    def after_fork(self, *, is_child: bool) -> None:
        """Resume the session in the parent, drop it in the child. Called by the fork hooks of both."""
        session = self._session
        if session is not None and is_child:
            _left_to_the_parent.append(session)  # keep a reference: collecting it would close the connections
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
