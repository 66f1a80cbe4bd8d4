"""A store of decisions in one SQLite file, for the processes of one machine."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, TypeAlias

from msgspec import Meta

from chatstack.client.options import PositiveInt, check_arguments
from chatstack.errors import WiringError
from chatstack.paths import absolute_path
from chatstack.stores import table
from chatstack.stores.opening import OpenedOnce
from chatstack.stores.sqlite_file import SQLiteThread

FilePath: TypeAlias = (
    Annotated[str, Meta(min_length=1, extra_json_schema={"not": {"const": ":memory:"}})] | os.PathLike[str]
)

FRESH_SECONDS = 3_600
"""Seconds for which a record's time of use is not updated again, so that reading hardly ever writes."""


class SQLiteStore:
    """Decisions in one file, for any number of processes of one machine (not over a network file system: SQLite's
    write-ahead log needs shared memory).

    ``max_records`` is the approximate maximum number of records; the least recently used go first. The file is opened
    when it is first needed, in a thread of its own, which ``aclose`` ends. Any problem with it raises ``StoreError``; a
    damaged or foreign file is left as it is. It holds what layers wrote, excerpts and summaries included, so its folder
    should be as private as the conversations are.
    """

    def __init__(
        self, path: FilePath, *, max_records: PositiveInt = 100_000, clock: Callable[[], float] = time.time
    ) -> None:
        if not isinstance(path, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(f"SQLiteStore: path must be text or a Path, not {type(path).__name__}", parameter="path")
        if not str(path) or str(path) == ":memory:":
            raise WiringError("SQLiteStore: path must name a file; memory is shared with nobody", parameter="path")
        check_arguments(SQLiteStore, max_records=max_records, clock=clock)
        self.path = Path(path)
        self.max_records = max_records
        self._clock = clock
        # Absolute: whoever changes the folder later still has this file.
        self._opened = OpenedOnce(str(self.path), partial(_Decisions, absolute_path("SQLiteStore", path=path)))

    async def find(self, owner: str, links: Sequence[bytes]) -> tuple[bytes, bytes] | None:
        """Return the last of these links that has a record, and the record. See ``DecisionStore``."""
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
        """Keep a record, unless one other than ``replaces`` is there; return what is kept. See ``DecisionStore``."""
        session = self._opened.get()
        now = int(self._clock())

        def write(connection: sqlite3.Connection) -> bytes:
            there, is_new = table.put(connection, owner, link, record, replaces, now)
            if is_new:
                session.count_one_more(self.max_records, self._clock)
            return there

        return await session.run(write)

    async def forget(self, links: Sequence[bytes] | None = None) -> None:
        """Forget the records of these links, or all records, of all owners; the file is rewritten without them.

        Raises ``StoreError`` if another process keeps the file or its log in use, where they can still be read.
        """
        given, session = None if links is None else list(links), self._opened.get()
        await session.run(lambda connection: table.forget(connection, given))
        await session.erase()

    async def aclose(self) -> None:
        """Close the file and end the thread. The store cannot be used any more."""
        await self._opened.aclose()

    def __repr__(self) -> str:
        return f"SQLiteStore({str(self.path)!r}, max_records={self.max_records})"


class _Decisions(SQLiteThread):
    """The thread of a store of decisions, which evicts the least recently used records."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, table.FORM)
        self._until_trimmed = 1

    def count_one_more(self, max_records: int, clock: Callable[[], float]) -> None:
        """Count a new record; schedule an eviction after every hundredth of ``max_records``."""
        self._until_trimmed -= 1
        if self._until_trimmed <= 0:
            self._until_trimmed = max(1, max_records // 100)
            self.later(lambda connection: table.trim(connection, max_records, int(clock()) + FRESH_SECONDS))
