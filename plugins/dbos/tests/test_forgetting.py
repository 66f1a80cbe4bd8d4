"""A durable run is forgotten as a whole: its steps, its progress, its text, and what was decided about its messages."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer
from test_runs import in_worker
from worker_process import make_context

from chatstack import (
    ChatStack,
    ContextMemory,
    FunctionInvoker,
    IterativeLoop,
    Message,
    Summarizer,
    ToolCall,
    ToolResultClearer,
    tool,
)
from chatstack.stores.sqlite import SQLiteStore
from chatstack.testing import ScriptedClient
from chatstack_dbos import DurableLoop, DurableRuns, DurableTurn

SECRET = "a secret of theirs"


@tool
async def look(what: str) -> str:
    """Look something up."""
    return f"saw {what}"


def asking() -> list[Message]:
    """Answers that ask for tools, until the conversation has been cleared and summarized."""
    about = [f"{SECRET} {at} " + "grey " * 80 for at in range(6)]
    calls = [ToolCall(f"c{at}", "look", f'{{"what": "{each}"}}') for at, each in enumerate(about)]
    return [*(Message.assistant(each) for each in calls), Message.assistant(f"{SECRET}: done")]


def stack(memory: ContextMemory) -> ChatStack:
    writer = ScriptedClient([f"They told {SECRET}."])
    return (
        ChatStack(ScriptedClient(asking()), memory=memory)
        .use(FunctionInvoker, tools=[look])
        .use(ToolResultClearer, trigger={"tokens": 300}, keep={"messages": 1})
        .use(Summarizer, max_tokens=320, keep_recent_turns=1, summary_client=writer)
    )


def memory_over(folder: Path) -> ContextMemory:
    return ContextMemory(store=SQLiteStore(folder / "decisions.db"), scope="all", store_timeout_seconds=300)


def kept_in(folder: Path, pattern: str) -> bool:
    return any(SECRET.encode() in each.read_bytes() for each in folder.glob(pattern))


def everything_of(database: str, folder: Path, request: pytest.FixtureRequest) -> bytes:
    """SQLite's raw files, or what ``pg_dump`` writes."""
    if database.startswith("sqlite"):
        return b"".join(each.read_bytes() for each in folder.glob("runs.db*"))
    server: PostgresServer = request.getfixturevalue("server")
    return server.dumped(database)


@pytest.mark.parametrize("served", ["loop", "turn"])
def test_a_run_is_forgotten_with_what_was_decided_about_its_messages(
    database: str, tmp_path: Path, served: str, request: pytest.FixtureRequest
) -> None:
    memory = memory_over(tmp_path)
    serves: dict[str, Any] = {"turn": DurableTurn(stack(memory).build(), streams_text=True)}
    inner = stack(memory).without("FunctionInvoker").build()
    loop = IterativeLoop(
        inner, "You look.", lambda context: f"look for {SECRET}", [look], mode="multi_round", max_tool_rounds=20
    )
    serves["loop"] = DurableLoop(loop, make_context, streams_text=True)

    async def story(runs: DurableRuns) -> None:
        await runs.start(served, "run-1", f"look for {SECRET}")
        outcome = await runs.result("run-1", timeout_seconds=60)
        assert (outcome.reason, outcome.text) == ("answered", f"{SECRET}: done")
        assert "".join([each.text async for each in runs.text("run-1")]) == f"{SECRET}: done"
        assert SECRET.encode() in everything_of(database, tmp_path, request)
        await memory.aclose()
        assert kept_in(tmp_path, "decisions.db*")
        other = memory_over(tmp_path)
        await runs.forget("run-1", memory=other)
        await other.aclose()
        assert not kept_in(tmp_path, "decisions.db*")
        left = everything_of(database, tmp_path, request)
        assert SECRET.encode() not in left
        assert b"run-1" not in left

    in_worker(database, serves, story)


@pytest.mark.slow
def test_nothing_is_left_of_it_where_sqlite_has_moved_rows_between_pages(tmp_path: Path) -> None:
    """Copies of rows stay in such pages, which ``secure_delete`` does not overwrite."""
    chance, path = random.Random(2), tmp_path / "runs.db"
    names = [f"{chance.randbytes(8).hex()}-{at:05d}" for at in range(4_000)]

    async def story() -> None:
        runs = DurableRuns(f"sqlite:///{path}")
        assert not await runs.has_ended("a run")  # makes the tables
        rows = [{"run": name, "stop": "x" * chance.randrange(100, 900)} for name in names]
        runs.database.insert("INSERT INTO chatstack_runs (run, stop) VALUES (:run, :stop)", rows)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("PRAGMA secure_delete = ON")
            for name in names[1::2]:
                connection.execute("DELETE FROM chatstack_runs WHERE run = ?", (name,))
        await runs.forget(names[0])
        await runs.aclose()
        raw = path.read_bytes()
        assert [name for name in names[1::2] if name.encode() in raw] == []
        assert names[2].encode() in raw

    asyncio.run(story())
