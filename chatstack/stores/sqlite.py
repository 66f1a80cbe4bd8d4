"""A store of decisions in one SQLite file, for the processes of one machine."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TypeVar

from chatstack.errors import StoreError, WiringError
from chatstack.stores import table
from chatstack.stores.opening import OpenedOnce, Session

T = TypeVar("T")

FRESH_SECONDS = 3_600
"""A record that is used again is marked so once an hour: reading is hardly ever writing."""


class SQLiteStore:
    """Decisions in one file, for any number of processes of one machine (not over a network file system: SQLite's
    write-ahead log needs shared memory).

    ``max_records`` is about how many are kept; those that were not used for longest go first. The file is opened when
    it is first needed, in a thread of its own, which ``aclose`` ends. What is wrong with it is a ``StoreError`` each
    time; a damaged or foreign file is left as it is. It holds what layers wrote, excerpts and summaries included, so
    its folder should be as private as the conversations are.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, max_records: int = 100_000, clock: Callable[[], float] = time.time
    ) -> None:
        if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(f"SQLiteStore: path must be text or a Path, not {type(path).__name__}", parameter="path")
        if not str(path) or str(path) == ":memory:":
            raise WiringError("SQLiteStore: path must name a file; memory is shared with nobody", parameter="path")
        if type(max_records) is not int or max_records < 1:
            raise WiringError(
                f"SQLiteStore: max_records={max_records!r} must be a whole number greater than 0",
                parameter="max_records",
            )
        self.path = Path(path)
        self.max_records = max_records
        self._clock = clock
        self._opened = OpenedOnce(str(self.path), partial(_Session, self.path))

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The last of these links that has a record: link and record. See ``DecisionStore``."""
        asked = list(links)
        session = self._opened.get()
        found = await session.run(lambda connection: table.find(connection, owner, asked))
        if found is None:
            return None
        link, record, used = found
        now = int(self._clock())
        if not now - FRESH_SECONDS < used <= now:
            session.later(lambda connection: table.touch(connection, owner, link, now))
        return link, record

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        """Keep a record, unless another one is there than the one it replaces. See ``DecisionStore``."""
        session = self._opened.get()
        now = int(self._clock())

        def write(connection: sqlite3.Connection) -> bytes:
            there, is_new = table.put(connection, owner, link, record, replaces, now)
            if is_new:
                session.count_one_more(self.max_records)
            return there

        return await session.run(write)

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Forget what is kept for these links, or everything, of everybody; it is overwritten in the file, too."""
        given = None if links is None else list(links)
        await self._opened.get().run(lambda connection: table.forget(connection, given))

    async def aclose(self) -> None:
        """Close the file and end the thread. The store cannot be used any more."""
        session = self._opened.close()
        if session is not None:
            await session.aclose()

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r}, max_records={self.max_records})"


class _Session(Session):
    """One thread with one connection.

    SQLite's own state must not be forked while a file is open: the child would think that locks are its.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._in_use = Lock()
        self._thread = ThreadPoolExecutor(1, "chatstack-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        self._until_trimmed = 1
        self._is_closed = False

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Have it done in the thread. Whoever is cancelled before its turn takes it back."""
        try:
            waiting = self._thread.submit(self._done, job)
        except RuntimeError as error:  # closed by another thread in this very moment, or the interpreter ends
            raise StoreError(f"{self._path}: the store has been closed") from error
        return await asyncio.wrap_future(waiting)

    def later(self, job: Callable[[sqlite3.Connection], None]) -> None:
        """Have it done sometime. Nobody hears of it, nor misses it if it fails."""
        with suppress(RuntimeError):
            self._thread.submit(self._done, job)

    async def aclose(self) -> None:
        try:
            closing = self._thread.submit(self._closed)
        except RuntimeError:  # somebody else closes it, or has
            return
        self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))

    def count_one_more(self, max_records: int) -> None:
        """Have the oldest go after every hundredth part of what may be kept."""
        self._until_trimmed -= 1
        if self._until_trimmed <= 0:
            self._until_trimmed = max(1, max_records // 100)
            self.later(lambda connection: table.trim(connection, max_records))

    def pause(self) -> None:
        """Let go of the file, once what is being done is done; it is opened again when it is needed."""
        self._in_use.acquire()
        self._close()

    def resume(self) -> None:
        self._in_use.release()

    def _done(self, job: Callable[[sqlite3.Connection], T]) -> T:
        with self._in_use:
            if self._is_closed:
                raise StoreError(f"{self._path}: the store has been closed")
            return self._tried(job)

    def _closed(self) -> None:
        with self._in_use:
            self._is_closed = True
            self._close()

    def _tried(self, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is not None and _identity(self._path) != self._opened:
                self._close()  # somebody has removed it, or put another file in its place
            if self._connection is None:
                self._connection = table.connected(self._path)
                self._opened = _identity(self._path)
            return job(self._connection)
        except sqlite3.Error as error:
            self._close()  # it is opened anew the next time: by then it may be another file, or on another disk
            raise StoreError(f"{self._path}: {table.reason(error, self._path)}") from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is, whatever it is called; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
