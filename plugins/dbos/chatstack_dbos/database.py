"""The database of durable runs: engines for it, and the tables that are ours beside those of DBOS."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ArgumentError, DBAPIError

from chatstack import WiringError

LOWEST_SQLITE = (3, 42, 0) if sys.version_info >= (3, 12) else (3, 0, 0)
"""The version that DBOS's tables need: from Python 3.12 on it has SQLite tell the time in milliseconds."""
_BUSY_SECONDS = 30.0
_LOCK_SECONDS = 2
_CLOCKS = {
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
    "postgresql": "extract(epoch FROM clock_timestamp())",
}
_COUNTED = {"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "postgresql": "BIGSERIAL PRIMARY KEY"}
_TABLES = (
    "CREATE TABLE IF NOT EXISTS chatstack_executors (executor TEXT PRIMARY KEY, beat_at DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS chatstack_leases (application TEXT PRIMARY KEY, holder TEXT NOT NULL,"
    " until DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS chatstack_runs (run TEXT PRIMARY KEY, stop TEXT, takeovers INTEGER NOT NULL DEFAULT 0)",
    "CREATE TABLE IF NOT EXISTS chatstack_takeovers (run TEXT PRIMARY KEY, executor TEXT NOT NULL,"
    " begun_at BIGINT NOT NULL, steps INTEGER NOT NULL, taken_at DOUBLE PRECISION NOT NULL)",
    "CREATE TABLE IF NOT EXISTS chatstack_progress (id {counted}, run TEXT NOT NULL, event TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS chatstack_progress_run ON chatstack_progress (run, id)",
    "CREATE TABLE IF NOT EXISTS chatstack_text (id {counted}, run TEXT NOT NULL, event TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS chatstack_text_run ON chatstack_text (run, id)",
)
# DBOS's own table. The lock is one that only a deletion of the run waits for.
_RUN_OF = "workflow_status WHERE workflow_uuid = :run AND executor_id = :me AND status = 'PENDING'"
_OWNED_RUNS = {"sqlite": _RUN_OF, "postgresql": f"dbos.{_RUN_OF} FOR KEY SHARE"}


class Database:
    """One database, by its address; its engine is made when it is first used. For any thread."""

    def __init__(self, address: str) -> None:
        try:
            url = sa.make_url(address)
            kind = url.get_backend_name()
        except (ArgumentError, TypeError, AttributeError) as error:
            raise WiringError("DurableRuns: database must be an address: sqlite:///... or postgresql://...") from error
        if kind not in _CLOCKS or (kind == "sqlite" and not url.database) or url.database == ":memory:":
            raise WiringError("DurableRuns: database must be sqlite:///file, or postgresql://host/database")
        self.is_sqlite = kind == "sqlite"
        if self.is_sqlite and sqlite3.sqlite_version_info < LOWEST_SQLITE:
            lowest = ".".join(map(str, LOWEST_SQLITE))
            raise WiringError(
                f"DurableRuns: DBOS needs SQLite {lowest} or later on this Python, which has {sqlite3.sqlite_version}; "
                "take Python 3.11, a Python with a newer SQLite, or PostgreSQL"
            )
        self.url = url if self.is_sqlite else url.set(drivername="postgresql+psycopg")
        self.clock = _CLOCKS[kind]
        self.owned_run = _OWNED_RUNS[kind]
        """A source of one row if ``:run`` is a run of the executor ``:me``, else of none."""
        self._counted = _COUNTED[kind]
        self._engine: sa.Engine | None = None

    @property
    def address(self) -> str:
        """The address as DBOS takes it, the password included."""
        return self.url.set(drivername="sqlite" if self.is_sqlite else "postgresql").render_as_string(False)

    @property
    def engine(self) -> sa.Engine:
        """The engine of our own tables; for SQLite, that of DBOS, too."""
        if self._engine is None:
            self._engine = self._made()
        return self._engine

    def make_tables(self) -> None:
        """Create the tables that are missing."""
        for attempt in (1, 2):
            try:
                with self.engine.begin() as connection:
                    for statement in _TABLES:
                        connection.execute(sa.text(statement.format(counted=self._counted)))
                return
            except DBAPIError:  # another process has made one at the same time
                if attempt == 2:
                    raise

    def run(self, statement: str, given: Mapping[str, Any] | None = None) -> list[Any]:
        """Run one statement in a transaction of its own, and return its rows.

        ``{now}`` in it is the database's clock; a value whose name ends with ``_in`` is a list, for ``IN :names_in``.
        """
        asked = sa.text(statement.replace("{now}", self.clock))
        lists: list[sa.BindParameter[Any]] = [
            sa.bindparam(name, expanding=True) for name in given or () if name.endswith("_in")
        ]
        with self.engine.begin() as connection:
            found = connection.execute(asked.bindparams(*lists) if lists else asked, given)
            return list(found) if found.returns_rows else []

    def change(self, *statements: str, given: Mapping[str, Any]) -> None:
        """Run statements with the same values in one transaction; ``{now}`` in them is the database's clock."""
        with self.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement.replace("{now}", self.clock)), given)

    def insert(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Run one statement for each row, in one transaction."""
        with self.engine.begin() as connection:
            for row in rows:  # PostgreSQL bounds no wait within the pipeline that psycopg would run many in
                connection.execute(sa.text(statement), row)

    def rewrite(self) -> bool:
        """Rewrite SQLite's file, and empty its write-ahead log: both would still hold what was deleted, as SQLite
        leaves copies of rows in pages that it has moved them from. Return False if another process kept some of it."""
        with self.engine.connect() as connection:
            connection.exec_driver_sql("VACUUM")
            return not connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()

    def close(self) -> None:
        """Close all connections; they are opened again when needed."""
        if self._engine is not None:
            self._engine.dispose()

    def _made(self) -> sa.Engine:
        if not self.is_sqlite:
            told = {"application_name": "chatstack_dbos", "connect_timeout": 10, "tcp_user_timeout": 10_000}
            engine = sa.create_engine(self.url, pool_size=5, max_overflow=0, pool_pre_ping=True, connect_args=told)
            event.listen(engine, "connect", _prepare_postgres)
            return engine
        engine = sa.create_engine(self.url, pool_size=20, max_overflow=0, connect_args={"timeout": _BUSY_SECONDS})
        event.listen(engine, "connect", _prepare_sqlite)
        return engine


def _prepare_postgres(connection: Any, _: object) -> None:
    """Bound the wait for a lock, and how long a lock of ours is kept: a process may be stopped within a transaction."""
    connection.execute(f"SET lock_timeout = '{_LOCK_SECONDS}s'")
    connection.execute(f"SET idle_in_transaction_session_timeout = '{_LOCK_SECONDS}s'")
    connection.commit()


def _prepare_sqlite(connection: sqlite3.Connection, _: object) -> None:
    """Set what DBOS sets on its own connections, a write-ahead log, and that deleted text is overwritten."""
    connection.isolation_level = "IMMEDIATE"
    connection.execute(f"PRAGMA busy_timeout = {_BUSY_SECONDS * 1000:.0f}")
    connection.execute("PRAGMA foreign_keys = ON")
    until = time.monotonic() + _BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError:  # SQLite does not wait by itself while another process does the same
            if time.monotonic() >= until:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA secure_delete = ON")
