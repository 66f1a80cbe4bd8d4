"""Connections that a few threads use, and that are cut when whoever waited for them has given up."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock, Timer
from typing import Any, NamedTuple, TypeVar

import psycopg
from chatstack.errors import StoreError
from chatstack.stores.opening import Session
from psycopg.conninfo import conninfo_to_dict, make_conninfo

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]
Job = Callable[[Connection], T]

CLOSING_SECONDS = 1.0
"""How long closing waits for what nobody waits for."""
_DEFAULTS: dict[str, str] = {"application_name": "chatstack"}
# In any other isolation, whoever puts second would get an error for an answer.
_SETTINGS = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED"


class Connections(Session):
    """At most ``most`` threads, each with a connection while it needs one; the newest idle one is used first.

    Whoever waits longer than ``timeout_seconds``, or is cancelled, takes its job back, or has its connection cut.
    A job that finds its idle connection lost is done once more, on a new one, so it must bear that.
    """

    def __init__(
        self, conninfo: str, where: str, told: Callable[[psycopg.Error], str], *, timeout_seconds: float, most: int
    ) -> None:
        self._conninfo = conninfo
        self._where = where
        self._told = told
        self._timeout = timeout_seconds
        self._threads = ThreadPoolExecutor(most, "chatstack-postgres")
        self._lock = Lock()
        self._idle: list[_Line] = []
        self._unattended: set[_Errand] = set()
        self._is_closed = False
        self._is_over = False

    async def run(self, job: Job[T]) -> T:
        """Have it done in one of the threads."""
        errand = _Errand()
        try:
            waiting = self._threads.submit(self._done, job, errand)
        except RuntimeError as error:  # closed by another thread in this very moment, or the interpreter ends
            raise self.closed() from error
        try:
            async with asyncio.timeout(self._timeout):
                return await asyncio.wrap_future(waiting)
        except TimeoutError:
            raise StoreError(f"{self._where}: no answer in {self._timeout:g} seconds") from None
        finally:
            errand.give_up()

    def later(self, job: Job[None]) -> None:
        """Have it done sometime. Nobody hears of it, nor misses it if it fails."""
        errand = _Errand()

        def alone() -> None:
            self._unattended.add(errand)
            patience = _started(self._timeout, errand.give_up)
            try:
                self._done(job, errand)
            finally:
                patience.cancel()
                self._unattended.discard(errand)

        with suppress(RuntimeError):
            self._threads.submit(alone)

    async def aclose(self) -> None:
        """Wait for what is under way, which is no longer than anybody's patience; then let go of all connections."""
        with self._lock:
            self._is_closed = True
        await asyncio.shield(asyncio.to_thread(self._closed))

    def closed(self) -> StoreError:
        """What is raised from then on."""
        return StoreError(f"{self._where}: it has been closed")

    def _done(self, job: Job[T], errand: _Errand) -> T:
        try:
            line = self._taken(errand)
            if line is not None:
                try:
                    return self._carried_out(job, line, errand)
                except psycopg.OperationalError:
                    if not line.connection.closed or errand.is_given_up:
                        raise
                self._let_go()  # the server has been started again, most likely: the others are lost, too
            return self._carried_out(job, self._connected(), errand, is_new=True)
        except psycopg.Error as error:
            raise StoreError(f"{self._where}: {self._told(error)}") from error

    def _carried_out(self, job: Job[T], line: _Line, errand: _Errand, *, is_new: bool = False) -> T:
        try:
            if not errand.begins(line):
                raise StoreError(f"{self._where}: nobody waits any more")
            if is_new:
                line.connection.execute(_SETTINGS)
            return job(line.connection)
        finally:
            errand.ends()
            self._given_back(line, is_usable=not errand.is_given_up)

    def _taken(self, errand: _Errand) -> _Line | None:
        with self._lock:
            if self._is_over or (self._is_closed and errand not in self._unattended):
                raise self.closed()
            return self._idle.pop() if self._idle else None

    def _connected(self) -> _Line:
        given = conninfo_to_dict(self._conninfo)
        options = {**_DEFAULTS, "connect_timeout": str(max(2, math.ceil(self._timeout)))}
        missing = {name: value for name, value in options.items() if name not in given}
        # Prepared statements would not outlive the next statement behind a pooler.
        conninfo = make_conninfo(self._conninfo, **missing)
        connection = psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
        return _Line(connection, socket.fromfd(connection.pgconn.socket, socket.AF_INET, socket.SOCK_STREAM))

    def _given_back(self, line: _Line, *, is_usable: bool) -> None:
        is_idle = line.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        with self._lock:
            if is_usable and is_idle and not self._is_closed:
                self._idle.append(line)
                return
        line.close()

    def _let_go(self) -> None:
        with self._lock:
            lines, self._idle = self._idle, []
        for line in lines:
            line.close()

    def _closed(self) -> None:
        patience = _started(CLOSING_SECONDS, self._give_up_unattended)
        self._threads.shutdown()
        patience.cancel()
        self._let_go()

    def _give_up_unattended(self) -> None:
        self._is_over = True
        for errand in self._unattended.copy():
            errand.give_up()


class _Line(NamedTuple):
    """A connection, and a handle of our own on its socket: the driver may close its own, and the number be reused."""

    connection: Connection
    handle: socket.socket

    def cut(self) -> None:
        """Whoever reads from it, in another thread, hears that it has ended."""
        with suppress(OSError):
            self.handle.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.connection.close()
        self.handle.close()


class _Errand:
    """Whether somebody still waits for a job, and the connection that it is done with."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._line: _Line | None = None
        self.is_given_up = False

    def begins(self, line: _Line) -> bool:
        with self._lock:
            self._line = line
            return not self.is_given_up

    def ends(self) -> None:
        with self._lock:
            self._line = None

    def give_up(self) -> None:
        """Nobody waits any more: what is still under way is cut off."""
        with self._lock:
            self.is_given_up = True
            if self._line is not None:
                self._line.cut()


def _started(seconds: float, then: Callable[[], None]) -> Timer:
    """A timer that keeps no process from ending."""
    timer = Timer(seconds, then)
    timer.daemon = True
    timer.start()
    return timer
