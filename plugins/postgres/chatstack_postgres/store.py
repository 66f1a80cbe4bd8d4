"""A store of decisions in one table of a PostgreSQL database."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import psycopg
from chatstack.errors import WiringError
from chatstack.stores.opening import OpenedOnce
from psycopg.conninfo import conninfo_to_dict

from chatstack_postgres.connections import Connections
from chatstack_postgres.table import LINKS_AT_ONCE, Table, reason

LONGEST_TTL_SECONDS = 10 * 365 * 86_400
PURGE_SECONDS = 600.0
"""How long a store waits, after it has let go of what is too old, before it does so again. It does when it puts."""


class PostgresStore:
    """Decisions in one table of a PostgreSQL database, for any number of processes of any machines.

    ``conninfo`` is a URL or a connection string, as libpq takes it; what it does not say comes from libpq's
    environment. ``table`` is a name, or a schema's and a name; the table is made when it is found to be missing. What
    was neither put nor found for ``ttl_seconds`` is gone, and is deleted by whoever puts something later. One question
    takes ``timeout_seconds`` at most (a new connection two, at least); a lost idle connection is made again.

    Nothing is connected before it is needed. At most ``max_connections`` threads, each with one connection while it
    needs it, do what is asked for from any event loop or thread, and end with ``aclose``. Whoever is cancelled takes
    its question back, or has its connection closed; the question may have been carried out, as a whole. What is wrong
    is a ``StoreError`` each time; options that cannot be are a ``WiringError``. What layers wrote is in the table as
    it is, excerpts and summaries included.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        table: str = "chatstack_decisions",
        ttl_seconds: float = 30 * 86_400,
        timeout_seconds: float = 5.0,
        max_connections: int = 4,
    ) -> None:
        for name, seconds in (("ttl_seconds", ttl_seconds), ("timeout_seconds", timeout_seconds)):
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)  # pyright: ignore[reportUnnecessaryIsInstance]
            if not is_number or not 0 < seconds <= LONGEST_TTL_SECONDS:
                raise WiringError(
                    f"PostgresStore: {name}={seconds!r} must be a number above 0, at most {LONGEST_TTL_SECONDS:,}",
                    parameter=name,
                )
        if type(max_connections) is not int or max_connections < 1:
            raise WiringError(
                f"PostgresStore: max_connections={max_connections!r} must be a whole number greater than 0",
                parameter="max_connections",
            )
        self.ttl_seconds = ttl_seconds
        self._where = _address(conninfo)
        self._table = Table(table, ttl_seconds)
        where = f"PostgreSQL at {self._where}"
        told = partial(reason, table=table)
        self._opened = OpenedOnce(
            where,
            partial(Connections, conninfo, where, told, timeout_seconds=timeout_seconds, most=max_connections),
        )
        self._purged: float | None = None

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """The last of these links that has a record: link and record. See ``DecisionStore``."""
        asked, of = list(links), _encoded(owner)
        connections = self._opened.get()
        found = await connections.run(lambda connection: self._table.find(connection, of, asked))
        if found is None:
            return None
        link, record, should_touch = found
        if should_touch:
            connections.later(lambda connection: self._table.touch(connection, of, link))
        return link, record

    async def put(self, owner: str, link: bytes, record: bytes, *, replaces: bytes | None = None) -> bytes:
        """Keep a record, unless another one is there than the one it replaces. See ``DecisionStore``."""
        of = _encoded(owner)
        connections = self._opened.get()
        there = await connections.run(lambda connection: self._table.put(connection, of, link, record, replaces))
        if self._should_purge():
            connections.later(self._table.purge)
        return there

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Forget what is kept for these links, or everything, of everybody."""
        connections = self._opened.get()
        if links is None:
            while await connections.run(self._table.forget_some):
                pass
            return
        for start in range(0, len(links), LINKS_AT_ONCE):
            chunk = list(links[start : start + LINKS_AT_ONCE])
            await connections.run(partial(self._table.forget, links=chunk))

    async def aclose(self) -> None:
        """Wait for what is under way, let go of connections and threads. The store cannot be used any more."""
        await self._opened.aclose()

    def _should_purge(self) -> bool:
        """Two threads in the very same moment may both be told so, which does no harm."""
        now = time.monotonic()
        if self._purged is not None and now - self._purged < PURGE_SECONDS:
            return False
        self._purged = now
        return True

    def __repr__(self) -> str:
        return f"PostgresStore({self._where!r}, table={self._table.name!r}, ttl_seconds={self.ttl_seconds:g})"


def _address(conninfo: str) -> str:
    """Where the database is, as far as it is said, for people; neither user nor password."""
    try:
        given = conninfo_to_dict(conninfo)
    except (psycopg.Error, TypeError, AttributeError, ValueError):
        # Without the cause: libpq quotes what it does not understand, and that may be a password.
        raise WiringError(
            "PostgresStore: conninfo must be postgresql://[user:password@]host[:port]/database, or key=value pairs",
            parameter="conninfo",
        ) from None
    server = given.get("host") or given.get("hostaddr") or "the default server"
    port = f":{given['port']}" if given.get("port") else ""
    return f"{server}{port}/{given.get('dbname') or ''}".rstrip("/")


def _encoded(owner: str) -> bytes:
    return owner.encode("utf-8", "surrogatepass")
