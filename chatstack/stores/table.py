"""The table of a SQLite store of decisions, and its queries."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from chatstack.errors import UnusableRecordError
from chatstack.stores.sqlite_file import FileForm, Transaction

LINKS_AT_ONCE = 500
"""Maximum number of links in one statement; every SQLite takes at least 999 variables."""
FORM = FileForm(
    application_id=0x43484454,
    version=2,
    statements=(
        "CREATE TABLE decisions (owner TEXT NOT NULL, link BLOB NOT NULL, record BLOB NOT NULL, used INTEGER NOT NULL,"
        " PRIMARY KEY (owner, link))",
        "CREATE INDEX decisions_used ON decisions (used)",
    ),
    busy_seconds=0.1,  # well inside the time that a call has for its store
)


_RECORD = "CASE typeof(record) WHEN 'blob' THEN record END"
"""The record, or null if it is not a blob: SQLite keeps values of any type, and reading text that is no UTF-8 fails."""
_USED = "CASE typeof(used) WHEN 'integer' THEN used ELSE 0 END"


def find(connection: sqlite3.Connection, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes, int] | None:
    """Return the last of these links that has a record, the record, and its time of use; None if none has one.

    Searches from the end in chunks, as the record is nearly always among the newest links.
    """
    for end in range(len(links), 0, -LINKS_AT_ONCE):
        chunk = links[max(0, end - LINKS_AT_ONCE) : end]
        marks = ",".join("?" * len(chunk))
        rows = connection.execute(f"SELECT link FROM decisions WHERE owner = ? AND link IN ({marks})", (owner, *chunk))
        known = {row[0] for row in rows}
        for link in reversed(chunk) if known else ():
            if link in known:
                row = connection.execute(
                    f"SELECT {_RECORD}, {_USED} FROM decisions WHERE owner = ? AND link = ?", (owner, link)
                ).fetchone()
                if row is not None:  # else it was evicted in the meantime
                    return link, _record_in(row, link), row[1]
    return None


def put(
    connection: sqlite3.Connection, owner: str, link: bytes, record: bytes, replaces: bytes | None, now: int
) -> tuple[bytes, bool]:
    """Write a record, unless one other than ``replaces`` is there; return the record now kept and whether it is new."""
    with Transaction(connection):
        row = connection.execute(
            f"SELECT {_RECORD} FROM decisions WHERE owner = ? AND link = ?", (owner, link)
        ).fetchone()
        if row is None:
            connection.execute("INSERT INTO decisions VALUES (?, ?, ?, ?)", (owner, link, record, now))
            return record, True
        there = _record_in(row, link)
        if there != replaces:
            return there, False
        connection.execute(
            "UPDATE decisions SET record = ?, used = ? WHERE owner = ? AND link = ?", (record, now, owner, link)
        )
        return record, False


def _record_in(row: tuple[bytes | None, ...], link: bytes) -> bytes:
    if row[0] is None:
        raise UnusableRecordError("it is of another type than records are", link=link)
    return row[0]


def touch(connection: sqlite3.Connection, owner: str, link: bytes, now: int) -> None:
    """Update a record's time of use."""
    connection.execute("UPDATE decisions SET used = ? WHERE owner = ? AND link = ?", (now, owner, link))


def trim(connection: sqlite3.Connection, max_records: int, ahead: int) -> None:
    """Evict the least recently used records, down to that many; first those used after the time ``ahead``, by a clock
    that was wrong."""
    with Transaction(connection):  # else two processes that count at the same time would evict twice as many
        too_many = connection.execute("SELECT count(*) FROM decisions").fetchone()[0] - max_records
        if too_many > 0:
            connection.execute("UPDATE decisions SET used = 0 WHERE used > ?", (ahead,))
            oldest = "SELECT rowid FROM decisions ORDER BY used, rowid LIMIT ?"
            connection.execute(f"DELETE FROM decisions WHERE rowid IN ({oldest})", (too_many,))


def forget(connection: sqlite3.Connection, links: Sequence[bytes] | None) -> None:
    """Delete the records of these links, or all records. The log beside the file holds them until it is emptied."""
    with Transaction(connection):
        if links is None:
            connection.execute("DELETE FROM decisions")
        for start in range(0, len(links or ()), LINKS_AT_ONCE):
            chunk = (links or ())[start : start + LINKS_AT_ONCE]
            marks = ",".join("?" * len(chunk))
            connection.execute(f"DELETE FROM decisions WHERE link IN ({marks})", tuple(chunk))
