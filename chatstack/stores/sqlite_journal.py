"""Journals of iterative loops in one SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from chatstack.client.options import check_value
from chatstack.context.memory.memory import ContextMemory
from chatstack.errors import InputError, StoreError, WiringError
from chatstack.loop.journal import Entry, histories
from chatstack.paths import absolute_path
from chatstack.stores.opening import OpenedOnce
from chatstack.stores.sqlite_file import FileForm, SQLiteThread, Transaction
from chatstack.values.surrogates import lone_surrogate_in

_FORM = FileForm(
    application_id=0x4348444A,
    version=1,
    statements=(
        "CREATE TABLE entries (run TEXT NOT NULL, number INTEGER NOT NULL, entry BLOB NOT NULL,"
        " PRIMARY KEY (run, number)) WITHOUT ROWID",
    ),
    busy_seconds=5.0,
)


class SQLiteJournal:
    """A journal of the runs of an ``IterativeLoop`` in one file, for the processes of one machine.

    A run whose process was killed goes on where it was: ``IterativeLoop(..., journal=SQLiteJournal("runs.db"))``, and
    the same ``run_id`` in a new context. An entry is on its way to the disk when ``append`` returns; a power failure
    may lose the last ones. The file holds prompts, answers and tool results in full, so its folder should be as
    private as these are. ``forget`` a run that is no longer needed. Any problem with the file raises ``StoreError``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike) or not str(path) or str(path) == ":memory:":  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(f"SQLiteJournal: path={path!r} must name a file", parameter="path")
        self.path = Path(path)
        # Absolute: whoever changes the folder later still has this file.
        whole = absolute_path("SQLiteJournal", path=path)
        self._opened = OpenedOnce(str(self.path), partial(SQLiteThread, whole, _FORM))
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Entry).decode

    async def entries(self, run_id: str) -> Sequence[Entry]:
        """Return all entries of that run, in order. Raises ``StoreError`` if one is missing or cannot be read."""
        _check_run(run_id)
        rows = await self._opened.get().run(
            lambda connection: connection.execute(
                "SELECT number, entry FROM entries WHERE run = ? ORDER BY number", (run_id,)
            ).fetchall()
        )
        found: list[Entry] = []
        for number, entry in rows:
            if number != len(found):
                raise StoreError(f"{self.path}: in the journal of run {run_id!r}, entry {len(found)} is missing")
            try:
                found.append(self._decode(entry))
            except (msgspec.DecodeError, TypeError, ValueError, RecursionError) as error:
                raise StoreError(f"{self.path}: entry {number} of run {run_id!r} cannot be read") from error
        return found

    async def append(self, run_id: str, number: int, entry: Entry) -> None:
        """Write the next entry. Raises ``StoreError`` if ``number`` is not the next: another process goes on with this
        run, or it was forgotten meanwhile."""
        _check_run(run_id)
        row = run_id, number, self._encode(entry)

        def write(connection: sqlite3.Connection) -> int:
            with Transaction(connection):
                last = connection.execute("SELECT max(number) FROM entries WHERE run = ?", (run_id,)).fetchone()[0]
                there = 0 if last is None else int(last) + 1
                if there == number:
                    connection.execute("INSERT INTO entries VALUES (?, ?, ?)", row)
                return there

        there = await self._opened.get().run(write)
        if there != number:
            why = "goes on somewhere else at the same time" if there > number else "was forgotten while it ran"
            raise StoreError(f"{self.path}: run {run_id!r} {why}")

    async def forget(self, run_id: str, *, memory: ContextMemory | None = None) -> None:
        """Forget that run; the file is rewritten without its entries. With the ``memory`` of its stack, also what was
        decided about its messages, there and in the memory's store.

        Raises ``StoreError`` if another process keeps the file or its log in use, where they can still be read.
        """
        _check_run(run_id)
        check_value("SQLiteJournal.forget", "memory", memory, ContextMemory | None)
        session = self._opened.get()
        if memory is not None:
            for messages in histories(await self.entries(run_id)):
                await memory.forget_stored(messages)
        await session.run(lambda connection: connection.execute("DELETE FROM entries WHERE run = ?", (run_id,)))
        await session.erase()

    async def aclose(self) -> None:
        """Close the file and end the thread. The journal cannot be used any more."""
        await self._opened.aclose()

    def __repr__(self) -> str:
        return f"SQLiteJournal({str(self.path)!r})"


def _check_run(run_id: object) -> None:
    if not isinstance(run_id, str) or lone_surrogate_in(run_id) is not None:
        raise InputError(f"SQLiteJournal: run_id={run_id!r} must be text, without half characters")
