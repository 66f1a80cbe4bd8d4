"""The one table: how it is made, what is asked of it, and what may be wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, LiteralString

import psycopg
from chatstack.errors import WiringError
from psycopg import errors, sql

LINKS_AT_ONCE = 1_000
"""How many links one statement asks for, or forgets."""
ROWS_AT_ONCE = 10_000
"""How many rows one statement lets go of."""
FRESH_SHARE = 0.1
"""A record that is used again is marked so once a tenth of its time is over: reading is hardly ever writing."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?")

_MAKE = """
    CREATE TABLE {table} (
        link bytea NOT NULL, owner bytea NOT NULL, record bytea NOT NULL, used timestamptz NOT NULL,
        PRIMARY KEY (link, owner)
    );
    CREATE INDEX ON {table} (used)
"""
_FIND = """
    SELECT kept.link, kept.record, kept.used < now() - make_interval(secs => %(fresh)s)
    FROM unnest(%(links)b::bytea[]) WITH ORDINALITY AS asked (link, place)
    JOIN {table} AS kept ON kept.link = asked.link
    WHERE kept.owner = %(owner)b AND kept.used > now() - make_interval(secs => %(ttl)s)
    ORDER BY asked.place DESC LIMIT 1
"""
# Whoever comes second waits for the first to commit, then compares with what that one has left there.
_PUT = """
    INSERT INTO {table} AS kept (link, owner, record, used)
    VALUES (%(link)b, %(owner)b, %(record)b, now())
    ON CONFLICT (link, owner) DO UPDATE SET
        record = CASE
            WHEN kept.record = %(replaces)b OR kept.used <= now() - make_interval(secs => %(ttl)s)
            THEN excluded.record ELSE kept.record
        END,
        used = excluded.used
    RETURNING CASE WHEN record = %(record)b THEN NULL ELSE record END
"""
_TOUCH = "UPDATE {table} SET used = now() WHERE link = %(link)b AND owner = %(owner)b"
_FORGET = "DELETE FROM {table} WHERE link = ANY(%(links)b::bytea[])"
_FORGET_ALL = """
    DELETE FROM {table} AS kept USING (SELECT link, owner FROM {table} LIMIT %(rows)s) AS few
    WHERE kept.link = few.link AND kept.owner = few.owner
"""
_PURGE = """
    DELETE FROM {table} AS kept USING (
        SELECT link, owner FROM {table} WHERE used <= now() - make_interval(secs => %(ttl)s)
        LIMIT %(rows)s FOR UPDATE SKIP LOCKED
    ) AS old
    WHERE kept.link = old.link AND kept.owner = old.owner
"""

_Row = tuple[Any, ...]


class Table:
    """A table by its name, and by how long records stay in it. It is made when it is found to be missing."""

    def __init__(self, name: str, ttl_seconds: float) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"PostgresStore: table={name!r} must be a name, or schema.name, of letters, digits and underscores, "
                "each of 63 at most, and none of which begins with a digit",
                parameter="table",
            )
        self.name = name
        self._identifier = sql.Identifier(*name.split("."))
        self._ttl = ttl_seconds

    def find(
        self, connection: psycopg.Connection[_Row], owner: bytes, links: Sequence[bytes]
    ) -> tuple[bytes, bytes, bool] | None:
        """The last of these links that has a record of that owner, the record, and whether it should be touched."""
        for end in range(len(links), 0, -LINKS_AT_ONCE):
            chunk = list(links[max(0, end - LINKS_AT_ONCE) : end])
            given = {"owner": owner, "links": chunk, "ttl": self._ttl, "fresh": self._ttl * FRESH_SHARE}
            row = self._done(connection, _FIND, given).fetchone()
            if row is not None:
                return row[0], row[1], row[2]
        return None

    def put(
        self, connection: psycopg.Connection[_Row], owner: bytes, link: bytes, record: bytes, replaces: bytes | None
    ) -> bytes:
        """Keep a record unless another one is there; what is there then."""
        given = {"owner": owner, "link": link, "record": record, "replaces": replaces, "ttl": self._ttl}
        row = self._done(connection, _PUT, given).fetchone()
        return record if row is None or row[0] is None else bytes(row[0])

    def touch(self, connection: psycopg.Connection[_Row], owner: bytes, link: bytes) -> None:
        """It was used, and stays."""
        self._done(connection, _TOUCH, {"owner": owner, "link": link})

    def forget(self, connection: psycopg.Connection[_Row], links: Sequence[bytes]) -> None:
        """Forget these links, by any owner."""
        self._done(connection, _FORGET, {"links": list(links)})

    def forget_some(self, connection: psycopg.Connection[_Row]) -> bool:
        """Forget some of what is there; whether there was anything."""
        return self._done(connection, _FORGET_ALL, {"rows": ROWS_AT_ONCE}).rowcount > 0

    def purge(self, connection: psycopg.Connection[_Row]) -> None:
        """Let go of what was not used for its time, if nobody else is about to."""
        self._done(connection, _PURGE, {"ttl": self._ttl, "rows": ROWS_AT_ONCE})

    def _done(
        self, connection: psycopg.Connection[_Row], statement: LiteralString, given: Mapping[str, Any]
    ) -> psycopg.Cursor[_Row]:
        query = sql.SQL(statement).format(table=self._identifier)
        try:
            return connection.execute(query, given, binary=True)
        except errors.UndefinedTable:
            self._make(connection)
            return connection.execute(query, given, binary=True)

    def _make(self, connection: psycopg.Connection[_Row]) -> None:
        try:
            connection.execute(sql.SQL(_MAKE).format(table=self._identifier))
        except (errors.DuplicateTable, errors.DuplicateObject, errors.UniqueViolation):
            pass  # somebody else was quicker; both statements are one transaction


_REASONS: tuple[tuple[type[psycopg.Error], str], ...] = (
    (errors.InsufficientPrivilege, "its user may not do this with table {table}"),
    (errors.InvalidSchemaName, "the schema of table {table} does not exist"),
    (errors.UndefinedTable, "table {table} does not exist, and was removed as soon as it was made"),
    (errors.UndefinedColumn, "table {table} is another program's; choose another name"),
    (errors.DatatypeMismatch, "table {table} is another program's; choose another name"),
    (errors.UndefinedFunction, "table {table} is another program's; choose another name"),
    (errors.InvalidColumnReference, "table {table} is another program's; choose another name"),
    (errors.WrongObjectType, "table {table} is another program's; choose another name"),
    (errors.ReadOnlySqlTransaction, "it takes no writes: a standby, or a read-only session"),
    (errors.DiskFull, "its disk is full"),
    (errors.QueryCanceled, "it took longer than the server allows"),
    (errors.LockNotAvailable, "table {table} is locked"),
    (errors.AdminShutdown, "it has been shut down"),
    (errors.ConnectionTimeout, "it cannot be reached in time"),
)
_PHRASES = (
    ("authentication failed", "it refuses the user or the password"),
    ("no password supplied", "it refuses the user or the password"),
    ("pg_hba.conf", "it refuses the user or the password"),
    ("too many", "it has too many connections"),
    ("remaining connection slots", "it has too many connections"),
    ("starting up", "it is starting up"),
    ("shutting down", "it has been shut down"),
    ("database", "the database does not exist"),
)
"""What is in the message when a connection is refused, where the driver has no code: in English servers only."""


def reason(error: psycopg.Error, table: str) -> str:
    """What is wrong, for people. Nothing that the server or the driver said: it may quote a record or an address."""
    for kind, text in _REASONS:
        if isinstance(error, kind):
            return text.format(table=table)
    if error.sqlstate is not None:
        return f"PostgreSQL says {type(error).__name__} ({error.sqlstate})"
    if not isinstance(error, psycopg.OperationalError):
        return f"the driver says {type(error).__name__}"
    said = str(error).partition("FATAL")[2]
    for phrase, text in _PHRASES:
        if phrase in said:
            return text
    return "it cannot be reached, or the connection was lost"
