"""A store of decisions in one SQLite file, for the processes of one machine."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import TypeVar

from chatstack.context.sharing import StoreError
from chatstack.errors import WiringError

T = TypeVar("T")

SCHEMA_VERSION = 1
APPLICATION_ID = 0x43484454
"""What a file of ours says of itself, so that no other program's database is written to."""
LINKS_AT_ONCE = 500
"""How many links one statement asks for; SQLite takes 999 variables at least."""
BUSY_SECONDS = 0.1
"""How long another process's lock is waited for: well inside the time that a call has for its store."""
FRESH_SECONDS = 3_600
"""A record that is used again is marked so once an hour: reading is hardly ever writing."""

_SCHEMA = (
    "CREATE TABLE decisions (owner TEXT NOT NULL, link BLOB NOT NULL, record BLOB NOT NULL, used INTEGER NOT NULL,"
    " PRIMARY KEY (owner, link))",
    "CREATE INDEX decisions_used ON decisions (used)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

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
        self._lock = Lock()
        self._session: _Session | None = None
        self._is_closed = False

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The last of these links that has a record: link and record. See ``DecisionStore``."""
        asked = list(links)
        session = self._opened()
        found = await session.run(lambda connection: _find(connection, owner, asked))
        if found is None:
            return None
        link, record, used = found
        now = int(self._clock())
        if not now - FRESH_SECONDS < used <= now:
            session.later(lambda connection: _touch(connection, owner, link, now))
        return link, record

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        """Keep a record, unless another one is there than the one it replaces. See ``DecisionStore``."""
        session = self._opened()
        now = int(self._clock())

        def write(connection: sqlite3.Connection) -> bytes:
            there, is_new = _put(connection, owner, link, record, replaces, now)
            if is_new:
                session.count_one_more(self.max_records)
            return there

        return await session.run(write)

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Forget what is kept for these links, or everything, of everybody; it is overwritten in the file, too."""
        given = None if links is None else list(links)
        await self._opened().run(lambda connection: _forget(connection, given))

    async def aclose(self) -> None:
        """Close the file and end the thread. The store cannot be used any more."""
        with self._lock:
            self._is_closed = True
            session, self._session = self._session, None
        if session is not None and session.process == os.getpid():
            await session.aclose()

    def _opened(self) -> _Session:
        with self._lock:
            if self._is_closed:
                raise StoreError(f"the store {self.path} has been closed")
            if self._session is not None and self._session.process != os.getpid():
                _left_to_parent.append(self._session)
                self._session = None
            if self._session is None:
                self._session = _Session(self.path)
            return self._session

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r}, max_records={self.max_records})"


class _Session:
    """One thread with one connection, in the process that it was made in."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.process = os.getpid()
        self._thread = ThreadPoolExecutor(1, "chatstack-sqlite")
        self._connection: sqlite3.Connection | None = None
        self._until_trimmed = 1

    async def run(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Have it done in the thread. Whoever is cancelled before its turn takes it back."""
        try:
            waiting = self._thread.submit(self._done, job)
        except RuntimeError as error:  # closed by another thread in this very moment, or the interpreter ends
            raise StoreError(f"the store {self._path} has been closed") from error
        return await asyncio.wrap_future(waiting)

    def later(self, job: Callable[[sqlite3.Connection], None]) -> None:
        """Have it done sometime. Nobody hears of it, nor misses it if it fails."""
        with suppress(RuntimeError):
            self._thread.submit(self._done, job)

    async def aclose(self) -> None:
        closing = self._thread.submit(self._close)
        self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closing))

    def count_one_more(self, max_records: int) -> None:
        """Have the oldest go after every hundredth part of what may be kept."""
        self._until_trimmed -= 1
        if self._until_trimmed <= 0:
            self._until_trimmed = max(1, max_records // 100)
            self.later(lambda connection: _trim(connection, max_records))

    def _done(self, job: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._connection is None:
                self._connection = _connected(self._path)
            return job(self._connection)
        except sqlite3.Error as error:
            code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
            if code not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL):
                self._close()  # it may be another file by the next time
            why = _REASONS.get(code) or f"SQLite says {getattr(error, 'sqlite_errorname', type(error).__name__)}"
            if code == sqlite3.SQLITE_CANTOPEN and not self._path.parent.is_dir():
                why = "its folder does not exist"
            raise StoreError(f"{self._path}: {why}") from error

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


_left_to_parent: list[_Session] = []
"""Of the process that this one was forked from: to use its connections here, or to close them, would harm it."""


def _connected(path: Path) -> sqlite3.Connection:
    """A connection to a file that is ours, or was not there. Nothing is written before that is known."""
    if path.exists() and not os.access(path, os.W_OK):
        raise StoreError(f"{path}: it may not be written to")
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("BEGIN")  # one look at it, not three, while somebody else makes it
        is_new = _is_new(connection, path)
        connection.execute("COMMIT")
        if is_new:
            _make(connection, path)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(f"{path}: no write-ahead log can be kept there (journal mode {mode})")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _is_new(connection: sqlite3.Connection, path: Path) -> bool:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and version == 0 and tables == 0:
        return True
    if application != APPLICATION_ID:
        raise StoreError(f"{path}: it is another program's database")
    if version != SCHEMA_VERSION:
        raise StoreError(f"{path}: its schema has version {version}, this release knows version {SCHEMA_VERSION}")
    return False


def _make(connection: sqlite3.Connection, path: Path) -> None:
    with _Transaction(connection):
        if _is_new(connection, path):  # nobody else was quicker
            for statement in _SCHEMA:
                connection.execute(statement)


class _Transaction:
    """All or nothing, and nobody else writes meanwhile."""

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


def _find(connection: sqlite3.Connection, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes, int] | None:
    """Newest first: nearly always it is among the first that are asked for."""
    for end in range(len(links), 0, -LINKS_AT_ONCE):
        chunk = links[max(0, end - LINKS_AT_ONCE) : end]
        marks = ",".join("?" * len(chunk))
        rows = connection.execute(f"SELECT link FROM decisions WHERE owner = ? AND link IN ({marks})", (owner, *chunk))
        known = {row[0] for row in rows}
        for link in reversed(chunk) if known else ():
            if link in known:
                row = connection.execute(
                    "SELECT record, used FROM decisions WHERE owner = ? AND link = ?", (owner, link)
                ).fetchone()
                if row is not None:  # nobody has let it go in the meantime
                    return link, row[0], row[1]
    return None


def _put(
    connection: sqlite3.Connection, owner: str, link: bytes, record: bytes, replaces: bytes | None, now: int
) -> tuple[bytes, bool]:
    """What is there now, and whether there was nothing before."""
    with _Transaction(connection):
        row = connection.execute("SELECT record FROM decisions WHERE owner = ? AND link = ?", (owner, link)).fetchone()
        if row is None:
            connection.execute("INSERT INTO decisions VALUES (?, ?, ?, ?)", (owner, link, record, now))
            return record, True
        if row[0] != replaces:
            return row[0], False
        connection.execute(
            "UPDATE decisions SET record = ?, used = ? WHERE owner = ? AND link = ?", (record, now, owner, link)
        )
        return record, False


def _touch(connection: sqlite3.Connection, owner: str, link: bytes, now: int) -> None:
    connection.execute("UPDATE decisions SET used = ? WHERE owner = ? AND link = ?", (now, owner, link))


def _trim(connection: sqlite3.Connection, max_records: int) -> None:
    with _Transaction(connection):  # or two processes that count at the same time would let go twice as many
        too_many = connection.execute("SELECT count(*) FROM decisions").fetchone()[0] - max_records
        if too_many > 0:
            oldest = "SELECT rowid FROM decisions ORDER BY used, rowid LIMIT ?"
            connection.execute(f"DELETE FROM decisions WHERE rowid IN ({oldest})", (too_many,))


def _forget(connection: sqlite3.Connection, links: Sequence[bytes] | None) -> None:
    with _Transaction(connection):
        if links is None:
            connection.execute("DELETE FROM decisions")
        for start in range(0, len(links or ()), LINKS_AT_ONCE):
            chunk = (links or ())[start : start + LINKS_AT_ONCE]
            marks = ",".join("?" * len(chunk))
            connection.execute(f"DELETE FROM decisions WHERE link IN ({marks})", tuple(chunk))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # or the log would still hold it
