"""Journals of loops in one SQLite file: what is written is there as it was, in order, once, and for one writer."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from chatstack import (
    File,
    Image,
    InputError,
    Message,
    Reasoning,
    StoreError,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    WiringError,
)
from chatstack.loop.journal import (
    Entry,
    IterationEnded,
    IterationStarted,
    Journal,
    ModelAnswered,
    ToolEnded,
    ToolStarted,
)
from chatstack.loop.results import IterationRecord, ToolCallResult
from chatstack.stores.sqlite import SQLiteStore
from chatstack.stores.sqlite_journal import SQLiteJournal

T = TypeVar("T")

RESULT = ToolResult("c1", "look", (Text("saw"), Image(url="http://x/y.png")), is_error=True)
ENTRIES: list[Entry] = [
    IterationStarted(
        0,
        (
            Message.system("be brief"),
            Message.user(
                "naïve 日本 \u2028 \x00",
            ),
            Message("user", (Image(data="AAAA", media_type="image/png"), File(text="text", name="a.txt"))),
            Message(
                "assistant",
                (Reasoning("hm"), Text("yes", extra_json='{"anthropic":{}}'), ToolCall("c1", "look", '{"a": 1 }')),
            ),
            Message("tool", (RESULT,)),
        ),
        is_final=True,
        state={"a": [1, None, {"b": 2.5}]},
    ),
    ModelAnswered((Message.assistant("ok"),), Usage(1, 2, 3, 4, 5), Usage(6), "tool_calls", "m"),
    ModelAnswered((), Usage(), Usage(), None),
    ToolStarted(0, 1),
    ToolEnded(0, 1, RESULT, was_run=False, state={}),
    IterationEnded(
        IterationRecord(iteration=0, text="ok", tool_calls=(ToolCallResult("look", "{", RESULT),), seconds=0.25),
        (ToolCallResult("look", "{}", RESULT, was_run=False),),
        reason="completed",
    ),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def done(path: Path, work: Callable[[SQLiteJournal], Awaitable[T]]) -> T:
    async def bounded() -> T:
        journal = SQLiteJournal(path)
        try:
            async with asyncio.timeout(300):
                return await work(journal)
        finally:
            await journal.aclose()

    return asyncio.run(bounded())


async def write(journal: SQLiteJournal, run_id: str = "r") -> None:
    for number, entry in enumerate(ENTRIES):
        await journal.append(run_id, number, entry)


def change(path: Path, statement: str, *given: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, given)
    connection.close()


def test_it_is_a_journal() -> None:
    assert isinstance(SQLiteJournal("runs.db"), Journal)


def test_every_entry_comes_back_as_it_was_after_closing_and_opening(path: Path) -> None:
    done(path, write)
    assert done(path, lambda journal: journal.entries("r")) == ENTRIES


def test_a_run_that_nobody_has_written_has_no_entries(path: Path) -> None:
    assert done(path, lambda journal: journal.entries("r")) == []


def test_runs_do_not_see_one_another(path: Path) -> None:
    async def work(journal: SQLiteJournal) -> list[int]:
        await write(journal, "a")
        await journal.append("b", 0, ENTRIES[3])
        return [len(await journal.entries(run_id)) for run_id in ("a", "b", "A", "c", "")]

    assert done(path, work) == [len(ENTRIES), 1, 0, 0, 0]


def test_an_entry_that_is_there_is_not_written_again_and_both_are_told_apart(path: Path) -> None:
    done(path, write)

    async def again(journal: SQLiteJournal) -> None:
        for number, why in {0: "goes on somewhere else", 5: "goes on somewhere else", 7: "was forgotten"}.items():
            with pytest.raises(StoreError, match=f"run 'r' {why}"):
                await journal.append("r", number, ToolStarted(9, 9))

    done(path, again)
    assert done(path, lambda journal: journal.entries("r")) == ENTRIES


def test_of_two_that_write_at_once_one_succeeds_each_time(path: Path) -> None:
    async def work(journal: SQLiteJournal) -> list[int]:
        other = SQLiteJournal(path)
        won: list[int] = []
        for number in range(20):
            tries = (
                each.append("r", number, ToolStarted(which, number)) for which, each in enumerate((journal, other))
            )
            told = await asyncio.gather(*tries, return_exceptions=True)
            assert sorted(type(each).__name__ for each in told) == ["NoneType", "StoreError"]
            won.append([each is None for each in told].index(True))
        await other.aclose()
        assert [entry.round for entry in await journal.entries("r") if isinstance(entry, ToolStarted)] == won
        return won

    assert len(done(path, work)) == 20


def test_a_forgotten_run_is_gone_from_the_file_too(path: Path) -> None:
    async def work(journal: SQLiteJournal) -> None:
        await journal.append("secret-run", 0, IterationStarted(0, (Message.user("hunter2 " * 50),)))
        await journal.append("b", 0, ENTRIES[3])
        await journal.forget("secret-run")
        await journal.forget("never there")
        assert (await journal.entries("secret-run"), len(await journal.entries("b"))) == ([], 1)

    done(path, work)
    everything = b"".join(each.read_bytes() for each in path.parent.iterdir())
    assert b"hunter2" not in everything
    assert b"secret-run" not in everything


def test_who_goes_on_with_a_run_that_was_forgotten_meanwhile_is_told(path: Path) -> None:
    async def work(journal: SQLiteJournal) -> None:
        await write(journal)
        await journal.forget("r")
        with pytest.raises(StoreError, match="run 'r' was forgotten while it ran"):
            await journal.append("r", len(ENTRIES), ENTRIES[3])
        assert await journal.entries("r") == []

    done(path, work)


DEEP = (
    b'{"type":"iteration_started","iteration":0,"prompt":[],"state":' + b'{"hunter2":' * 100_000 + b"1" + b"}" * 100_001
)
UNREADABLE = (
    b"",
    b"{",
    b"[]",
    b"5",
    b'{"type":"hunter2"}',
    b'{"type":"tool_started","round":"hunter2"}',
    b"\xff\xfe",
    7,
)


@pytest.mark.parametrize("entry", [*UNREADABLE, DEEP, None], ids=lambda entry: repr(entry)[:40])
def test_an_entry_that_cannot_be_read_is_named_and_not_quoted(path: Path, entry: object) -> None:
    done(path, write)
    if entry is None:
        change(path, "DELETE FROM entries WHERE number = 2")
        said = "in the journal of run 'r', entry 2 is missing"
    else:
        change(path, "UPDATE entries SET entry = ? WHERE number = 2", entry)
        said = "entry 2 of run 'r' cannot be read"
    with pytest.raises(StoreError) as caught:
        done(path, lambda journal: journal.entries("r"))
    assert str(caught.value) == f"{path}: {said}"


def test_another_program_s_file_and_a_store_of_decisions_are_left_alone(path: Path) -> None:
    change(path, "CREATE TABLE theirs (x)")
    decisions = path.with_name("decisions.db")

    async def decide() -> None:
        store = SQLiteStore(decisions)
        await store.put("o", b"k", b"record")
        await store.aclose()

    asyncio.run(decide())
    for each in (path, decisions):
        before = each.read_bytes()
        with pytest.raises(StoreError, match="it is another program's database"):
            done(each, write)
        assert each.read_bytes() == before


def test_a_file_that_is_no_database_or_whose_folder_is_missing_is_a_store_error(path: Path) -> None:
    path.write_bytes(b"text" * 1000)
    with pytest.raises(StoreError, match="it is not a SQLite database"):
        done(path, write)
    with pytest.raises(StoreError, match="its folder does not exist"):
        done(path.parent / "no" / "runs.db", write)


def test_a_closed_one_cannot_be_used_and_may_be_closed_again(path: Path) -> None:
    async def work(journal: SQLiteJournal) -> None:
        await write(journal)
        await journal.aclose()
        await journal.aclose()
        with pytest.raises(StoreError, match="has been closed"):
            await journal.entries("r")

    done(path, work)


@pytest.mark.parametrize("wrong", ["", ":memory:", 5, None])
def test_what_is_no_path_is_refused_where_it_is_made(wrong: object) -> None:
    with pytest.raises(WiringError, match="must name a file"):
        SQLiteJournal(wrong)  # type: ignore[arg-type]


def test_the_repr_names_the_file() -> None:
    assert repr(SQLiteJournal("runs.db")) == "SQLiteJournal('runs.db')"


def test_a_killed_process_leaves_all_that_append_has_returned_for(path: Path) -> None:
    program = (
        "import asyncio, os, signal, sys\n"
        "from chatstack.stores.sqlite_journal import SQLiteJournal\n"
        "from chatstack.loop.journal import ToolStarted\n"
        "async def main():\n"
        "    journal = SQLiteJournal(sys.argv[1])\n"
        "    for number in range(50):\n"
        "        await journal.append('r', number, ToolStarted(0, number))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    killed = subprocess.run([sys.executable, "-c", program, str(path)], timeout=300, check=False)
    assert killed.returncode == -9
    assert done(path, lambda journal: journal.entries("r")) == [ToolStarted(0, number) for number in range(50)]


@pytest.mark.parametrize("given", [None, 5, 10**30, b"r", ["r"], "\ud800"])
def test_what_is_no_id_of_a_run_is_named(tmp_path: Path, given: str) -> None:
    journal = SQLiteJournal(tmp_path / "runs.db")
    for asked in (journal.entries, journal.forget):
        with pytest.raises(InputError, match=r"SQLiteJournal: run_id=.* must be text"):
            asyncio.run(asked(given))
