"""A SQLite file with a thread of its own, which never writes to another program's database."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar

from chatstack.errors import StoreError
from chatstack.stores.opening import Session

T = TypeVar("T")

ERASING_SECONDS = 10.0
"""Maximum wait for other processes until the log can be emptied."""
_PAUSE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class FileForm:
    """The schema of a file. ``statements`` create it; ``application_id`` marks it, so that no other program's database
    is written to. ``busy_seconds`` is the maximum wait for another process's lock."""

    application_id: int
    version: int
    statements: tuple[str, ...]
    busy_seconds: float


class SQLiteThread(Session):
    """One thread with one connection.

    SQLite's state must not be forked while a file is open: the child would take the parent's locks for its own.
    """

    def __init__(self, path: Path, form: FileForm) -> None:
        self._path = path
        self._form = form
        self._in_use = Lock()
        self._thread = ThreadPoolExecutor(1, "chatstack-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None
        self._is_closed = False
        self._asked = self._rewritten = 0
        """The number of calls of ``erase``, and the last of them for which the file was rewritten."""

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run the job in the thread and return its result. Cancelling the call drops a job that has not begun."""
        try:
            waiting = self._thread.submit(self._done, job)
        except RuntimeError as error:  # just closed by another thread; the interpreter ends; no thread can be started
            raise StoreError(f"{self._path}: its thread takes no work: {error}") from error
        return await asyncio.wrap_future(waiting)

    async def erase(self) -> None:
        """Rewrite the file, write back the log and empty it, so that what was deleted is in no file any more.

        Takes time that grows with the file; calls at the same time share it. Waits while other processes read or write.
        Raises ``StoreError`` if one does for longer than ``ERASING_SECONDS``: then it may still be there.
        """
        self._asked += 1
        mine, until = self._asked, time.monotonic() + ERASING_SECONDS
        while not await self.run(lambda connection: self._has_erased(connection, mine)):
            if time.monotonic() >= until:
                told = "deleted, but still in the file or its log, which another process uses; forget it again"
                raise StoreError(f"{self._path}: {told}")
            await asyncio.sleep(_PAUSE_SECONDS)

    def later(self, job: Callable[[sqlite3.Connection], None]) -> None:
        """Run the job in the thread some time later, without waiting; errors are ignored."""
        with suppress(RuntimeError):
            self._thread.submit(self._done, job)

    async def aclose(self) -> None:
        try:
            closing = self._thread.submit(self._closed)
        except RuntimeError:  # somebody else closes it, or has
            return
        self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))

    def pause(self) -> None:
        """Close the file once the running job is done; it is opened again when it is needed."""
        self._in_use.acquire()
        self._close()

    def resume(self) -> None:
        self._in_use.release()

    def _has_erased(self, connection: sqlite3.Connection, asked: int) -> bool:
        if self._rewritten < asked:
            until_now = self._asked
            if not _is_rewritten(connection):
                return False
            self._rewritten = until_now
        return not connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]

    def _done(self, job: Callable[[sqlite3.Connection], T]) -> T:
        with self._in_use:
            if self._is_closed:
                raise StoreError(f"{self._path}: it has been closed")
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
                self._connection = connected(self._path, self._form)
                self._opened = _identity(self._path)
            return job(self._connection)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._close()  # the next job opens it anew: by then it may be another file, or on another disk
            raise StoreError(f"{self._path}: {reason(error, self._path)}") from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _is_rewritten(connection: sqlite3.Connection) -> bool:
    """Rewrite the file; return False if another process writes.

    ``secure_delete`` overwrites rows, but not the copies of them that SQLite leaves within pages when it moves rows
    between pages: some of a thousand deleted conversations were still in the file.
    """
    try:
        connection.execute("VACUUM")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return False
        raise
    return True


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file, to notice that it was replaced; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connected(path: Path, form: FileForm) -> sqlite3.Connection:
    """Connect to a file of this form, or create it. Nothing is written before the file's form is checked.

    Raises ``StoreError`` for another program's file, another version, or where no write-ahead log can be kept.
    """
    connection = sqlite3.connect(path, timeout=form.busy_seconds, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN")  # the three reads see one state, even while another process makes the file
        is_new = _is_new(connection, path, form)
        connection.execute("COMMIT")
        if is_new:
            _make(connection, path, form)
        mode = _write_ahead(connection, form)
        if mode != "wal":
            raise StoreError(f"{path}: no write-ahead log can be kept there (journal mode {mode})")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _write_ahead(connection: sqlite3.Connection, form: FileForm) -> str:
    """Turn on the write-ahead log; return the journal mode. Retries for ``busy_seconds``: SQLite does not wait
    by itself while another process does the same."""
    until = time.monotonic() + form.busy_seconds
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
        time.sleep(0.01)


def _is_new(connection: sqlite3.Connection, path: Path, form: FileForm) -> bool:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return True
    if application != form.application_id:
        raise StoreError(f"{path}: it is another program's database")
    if version != form.version:
        raise StoreError(f"{path}: its schema has version {version}, this release knows version {form.version}")
    return False


def _make(connection: sqlite3.Connection, path: Path, form: FileForm) -> None:
    with Transaction(connection):
        if _is_new(connection, path, form):  # nobody else was quicker
            for statement in form.statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {form.application_id}")
            connection.execute(f"PRAGMA user_version = {form.version}")


_REASONS = {
    sqlite3.SQLITE_BUSY: "it is locked by another process",
    sqlite3.SQLITE_LOCKED: "it is locked by another process",
    sqlite3.SQLITE_READONLY: "it may not be written to",
    sqlite3.SQLITE_PERM: "it may not be opened",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_NOTADB: "it is not a SQLite database",
    sqlite3.SQLITE_CORRUPT: "it is damaged; it is left as it is",
    sqlite3.SQLITE_FULL: "the disk is full",
    sqlite3.SQLITE_IOERR: "reading or writing it failed",
}


def reason(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> str:
    """Return a readable reason for an error, which quotes nothing from the file."""
    if isinstance(error, UnicodeDecodeError):  # Python cannot read SQLite's message, which quotes a damaged schema
        return _REASONS[sqlite3.SQLITE_CORRUPT]
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_CANTOPEN and not path.parent.is_dir():
        return "its folder does not exist"
    return _REASONS.get(code) or f"SQLite says {getattr(error, 'sqlite_errorname', type(error).__name__)}"


class Transaction:
    """A write transaction: committed as a whole or rolled back, while no other connection writes."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            try:
                self._connection.execute("COMMIT")
            except sqlite3.Error:
                self._roll_back()
                raise
        else:
            self._roll_back()

    def _roll_back(self) -> None:
        if self._connection.in_transaction:  # SQLite does it itself for some errors
            self._connection.execute("ROLLBACK")
