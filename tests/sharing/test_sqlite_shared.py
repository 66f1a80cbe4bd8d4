"""Four processes over one SQLite file, with conversations that move between them on every call.

``CHATSTACK_SHARED_TALKS=2000`` and ``-s`` for the long form, with the measured shares.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from chatstack.stores import table
from tests.sharing.fleet import Fleet, checked
from tests.sharing.talks import CALLS, SECRET, talk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "decisions.sqlite"


@pytest.fixture
def fleet(path: Path) -> Iterator[Fleet]:
    running = Fleet(at(path))
    try:
        yield running
    finally:
        running.close()


def at(path: Path) -> dict[str, Any]:
    return {"make": "chatstack.stores.sqlite:SQLiteStore", "given": [str(path)], "options": {}}


def test_the_same_prefix_is_sent_whichever_process_answers_and_what_is_forgotten_is_in_no_file(
    fleet: Fleet, path: Path
) -> None:
    fleet.play_to_the_end()
    checked(fleet)
    written = sum(each.written for each in fleet.rounds)
    assert written == fleet.alone.written * len(fleet.talks)  # none is written twice
    edits = sum((each.edits for each in fleet.rounds), Counter[str]())
    assert edits == Counter({name: count * len(fleet.talks) for name, count in fleet.alone.edits.items()})
    assert not any(each.failures for each in fleet.rounds)
    before = content(path)
    gone, stays = fleet.talks[::2], fleet.talks[1::2]
    assert all(quoted(number) in before for number in fleet.talks)
    fleet.forget(gone)
    after = content(path)
    assert [number for number in gone if quoted(number) in after] == []
    assert [number for number in stays if quoted(number) not in after] == []
    fleet.forget(stays)
    assert rows(path) == 0
    assert SECRET.encode() not in content(path)


def test_whatever_is_wrong_with_the_file_no_call_fails_and_what_was_decided_holds(fleet: Fleet, path: Path) -> None:
    fleet.play_until_settled()
    fleet.play("a process is killed", halfway=fleet.workers[1].kill)
    fleet.play("a process is stopped", halfway=lambda: fleet.stop(2))
    fleet.rest()
    with closing(sqlite3.connect(path, timeout=60)) as other, other:
        for which in (0, 1):
            record = fleet.other_version(which)
            other.execute("UPDATE decisions SET record = ? WHERE rowid % 2 = ?", (record, which))
    fleet.play("records are of other versions")
    fleet.play_until_edited()
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as other:
        fleet.play("another program locks it", halfway=lambda: other.execute("BEGIN IMMEDIATE"))
        fleet.play("while it is locked, in the same processes", moves=False)
        other.execute("ROLLBACK")
    fleet.rest()
    fleet.play("in others, after that")
    fleet.each({"file_bytes": path.stat().st_size // 2})
    fleet.play("the disk is full")
    fleet.play_until_edited()
    fleet.play("decisions on a full disk")
    fleet.play("in others, while it is full")
    fleet.each({"file_bytes": None})
    fleet.rest()
    fleet.play("after that")
    fleet.play("nothing is wrong")
    fleet.forgive()
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    fleet.play("the file is gone")
    fleet.play_until_settled()
    fleet.forgive()
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    with closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA application_id = {table.FORM.application_id}")
        other.execute("PRAGMA user_version = 1")
    fleet.play("the file is one of version 0.1.0")
    while fleet.goes_on:
        fleet.play("a store that cannot be used")
    checked(
        fleet,
        but=[
            "in others, while it is full",
            "after that",
            "the file is gone",
            "the file is one of version 0.1.0",
            "a store that cannot be used",
        ],
    )


def quoted(number: int) -> bytes:
    """What an excerpt or a summary of that conversation quotes."""
    return f"{SECRET} {number:05d}".encode()


def content(path: Path) -> bytes:
    """All bytes of the file and of its log."""
    return b"".join(each.read_bytes() for each in path.parent.iterdir())


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM decisions").fetchone()
    return int(count)


def test_the_conversations_have_as_many_calls_as_there_are_rounds() -> None:
    assert sum(each.role == "assistant" for each in talk(3)) == CALLS + 1
