"""The one table of a SQLite store: how its file is opened, what is asked of it, and what may be wrong with it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from chatstack.errors import StoreError

SCHEMA_VERSION = 1
APPLICATION_ID = 0x43484454
"""What a file of ours says of itself, so that no other program's database is written to."""
LINKS_AT_ONCE = 500
"""How many links one statement asks for; SQLite takes 999 variables at least."""
BUSY_SECONDS = 0.1
"""How long another process's lock is waited for: well inside the time that a call has for its store."""
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


def reason(error: sqlite3.Error, path: Path) -> str:
    """What is wrong, for people. Nothing that is in the file."""
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code == sqlite3.SQLITE_CANTOPEN and not path.parent.is_dir():
        return "its folder does not exist"
    return _REASONS.get(code) or f"SQLite says {getattr(error, 'sqlite_errorname', type(error).__name__)}"


def connected(path: Path) -> sqlite3.Connection:
    """A connection to a file that is ours, or was not there. Nothing is written before that is known."""
    connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
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


def find(connection: sqlite3.Connection, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes, int] | None:
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


def put(
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


def touch(connection: sqlite3.Connection, owner: str, link: bytes, now: int) -> None:
    connection.execute("UPDATE decisions SET used = ? WHERE owner = ? AND link = ?", (now, owner, link))


def trim(connection: sqlite3.Connection, max_records: int) -> None:
    with _Transaction(connection):  # or two processes that count at the same time would let go twice as many
        too_many = connection.execute("SELECT count(*) FROM decisions").fetchone()[0] - max_records
        if too_many > 0:
            oldest = "SELECT rowid FROM decisions ORDER BY used, rowid LIMIT ?"
            connection.execute(f"DELETE FROM decisions WHERE rowid IN ({oldest})", (too_many,))


def forget(connection: sqlite3.Connection, links: Sequence[bytes] | None) -> None:
    with _Transaction(connection):
        if links is None:
            connection.execute("DELETE FROM decisions")
        for start in range(0, len(links or ()), LINKS_AT_ONCE):
            chunk = (links or ())[start : start + LINKS_AT_ONCE]
            marks = ",".join("?" * len(chunk))
            connection.execute(f"DELETE FROM decisions WHERE link IN ({marks})", tuple(chunk))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # or the log would still hold it
