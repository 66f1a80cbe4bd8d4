"""Clocks that jump, tools that hang, runs that kill their workers, disks that are full, tables of another version."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from processes import check, until, wait_for, workers_on
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from test_runs import everything_in, in_worker, letters
from worker_process import QUICK, make_context

from chatstack import IterativeLoop, Message, StoreError, ToolCall, tool
from chatstack.testing import ScriptedClient
from chatstack_dbos import DurableLoop, DurableRuns, RunWorker, execution
from chatstack_dbos import database as database_module
from chatstack_dbos.database import Database

HOUR = 3_600.0
QUICKER = QUICK | {"dead_after_seconds": 0.9}
GIVEN_UP = "given up: 3 workers died while they ran it, or could not write down what they did"


def asked(path: Path, statement: str, *given: Any) -> list[Any]:
    """Run a statement behind everybody's back."""
    with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        return list(connection.execute(statement, given))


def give_to(path: Path, executor: str, takeovers: int = 0) -> None:
    """Make the only run, which waits in its queue, one that this executor has begun."""
    asked(path, "UPDATE workflow_status SET status = 'PENDING', executor_id = ?, owner_xid = 'theirs'", executor)
    asked(path, "INSERT INTO chatstack_runs (run, takeovers) SELECT workflow_uuid, ? FROM workflow_status", takeovers)


@pytest.mark.slow
def test_a_clock_that_jumps_makes_nobody_dead_and_the_dead_are_still_found(tmp_path: Path) -> None:
    path, (log, serves) = tmp_path / "runs.db", letters(tmp_path)

    def looks() -> int:
        return int(asked(path, "SELECT looks FROM test")[0][0])

    async def looked(times: int) -> None:
        enough = looks() + times
        await until(lambda: looks() >= enough)

    async def story() -> None:
        runs = DurableRuns(f"sqlite:///{path}")
        await runs.start("letters", "run-1")
        asked(path, "CREATE TABLE test AS SELECT 0.0 AS jump, 0 AS looks")
        runs.database.clock += " + (SELECT jump FROM test)"
        asked(path, f"INSERT INTO chatstack_executors VALUES ('other', {runs.database.clock})")
        # The other one's heart beats one beat behind the worker's, so neither depends on how fast the machine is.
        asked(
            path,
            "CREATE TRIGGER alive AFTER UPDATE ON chatstack_executors WHEN NEW.executor <> 'other' BEGIN"
            " UPDATE chatstack_executors SET beat_at = OLD.beat_at WHERE executor = 'other';"
            " UPDATE test SET looks = looks + 1; END",
        )
        give_to(path, "other")
        async with RunWorker(runs, serves, **QUICK):
            for jump in (HOUR, -HOUR):
                await looked(10)  # it has been healthy for as long as it waits
                asked(path, "UPDATE test SET jump = ?", jump)
            await looked(10)
            assert log.lines("asked") == [], "the other one was alive all the time"
            asked(path, "DROP TRIGGER alive")
            asked(path, "UPDATE test SET jump = ?", -2 * HOUR)  # its last heartbeat is in the future from now on
            await check(runs, log, ["run-1"])
        await runs.aclose()

    asyncio.run(story())


def test_a_run_whose_workers_die_again_and_again_is_given_up(tmp_path: Path) -> None:
    path, (log, serves) = tmp_path / "runs.db", letters(tmp_path)

    async def story() -> None:
        runs = DurableRuns(f"sqlite:///{path}")
        for most in (3, 2):
            await runs.start("letters", f"run-{most}")
            give_to(path, "dead", takeovers=2)
            async with RunWorker(runs, serves, max_takeovers=most, **QUICKER):
                outcome = await runs.result(f"run-{most}", timeout_seconds=60)
            asked_for = {line[3] for line in log.lines("asked")}
            assert asked_for == {"run-3"}
            if most == 3:
                assert outcome.reason == "max_iterations"
            else:
                assert (outcome.reason, outcome.error) == ("error", GIVEN_UP)
            await runs.forget(f"run-{most}")
        await runs.aclose()

    asyncio.run(story())


@pytest.mark.slow
def test_a_run_that_kills_its_workers_is_given_up_and_the_others_end(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/runs.db"

    async def story() -> None:
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            await runs.start("poison", "poison")
            await runs.start("letters", "run-1")
            alive = workers.start(2, seconds=0.2, max_takeovers=2)
            dead = 0
            while not await runs.has_ended("poison"):
                await asyncio.sleep(0.1)
                for each in [each for each in alive if not workers.is_alive(each)]:
                    alive.remove(each)
                    alive += workers.start(seconds=0.2, max_takeovers=2)
                    dead += 1
            outcome = await runs.result("poison")
            assert (outcome.reason, outcome.error) == ("error", GIVEN_UP)
            assert 1 <= dead <= 3  # on a slow machine one may have been taken for dead, too
            await check(runs, workers.log, ["run-1"])
        await runs.aclose()

    asyncio.run(story())


def test_a_tool_that_hangs_has_its_time_after_a_cancel_and_is_then_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "GRACE_SECONDS", 1.0)
    began, ended = asyncio.Event(), list[float]()

    @tool
    async def hang() -> str:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(time.monotonic())
        return ""

    @tool
    async def finish() -> str:
        began.set()
        await asyncio.sleep(0.5)
        ended.append(time.monotonic())
        return "finished"

    def serving(called: Any) -> DurableLoop:
        model = ScriptedClient([Message.assistant(ToolCall("1", called.name, "{}"))])
        return DurableLoop(IterativeLoop(model, "You work.", lambda context: "work", [called]), make_context)

    async def story(runs: DurableRuns) -> None:
        for name in ("hangs", "finishes"):
            began.clear()
            await runs.start(name, name)
            await began.wait()
            cancelled_at = time.monotonic()
            await runs.cancel(name)
            outcome = await runs.result(name, timeout_seconds=60)
            assert outcome.reason == "cancelled"
            done = [each.output for record in outcome.iterations for each in record.tool_calls]
            assert done == ([] if name == "hangs" else ["finished"])
            if name == "hangs":
                assert ended.pop() - cancelled_at >= 1.0

    in_worker(f"sqlite:///{tmp_path}/runs.db", {"hangs": serving(hang), "finishes": serving(finish)}, story)


def test_a_worker_that_wakes_up_after_its_run_was_forgotten_leaves_nothing_of_it(database: str, tmp_path: Path) -> None:
    async def story() -> None:
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            (sleeper,) = workers.start(seconds=0.2, iterations=100)
            await runs.start("letters", "run-1", "Kardamom")
            await runs.start("turns", "turn-1", "Kardamom")
            await runs.start("stories", "story-1", "Kardamom")
            wait_for(lambda: {line[3] for line in workers.log.lines()} >= {"run-1", "turn-1", "story-1"})
            workers.freeze(sleeper)
            gone = ["run-1", "turn-1", "story-1"]
            for each in gone:
                await runs.forget(each)
            os.kill(sleeper, signal.SIGCONT)
            await runs.start("letters", "run-2")
            wait_for(lambda: len([line for line in workers.log.lines("sent") if line[3] == "run-2"]) > 4)
            wrote = [line for line in workers.log.lines("asked") if line[3] in gone]
            left = [each for each in everything_in(database) if isinstance(each, str)]
            assert not [each for each in left if any(name in each for name in (*gone, "Kardamom", "Word"))]
            await asyncio.sleep(0.5)
            assert [line for line in workers.log.lines("asked") if line[3] in gone] == wrote, "it pays for them still"
        await runs.aclose()

    asyncio.run(story())


def test_a_lock_that_is_held_while_rows_are_written_is_given_up(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a worker that was stopped before it committed: or nobody could delete the run until it goes on."""
    monkeypatch.setattr(database_module, "_LOCK_SECONDS", 0.2)
    database = Database(postgres)
    database.run("CREATE TABLE kept (word TEXT)")

    def held(_: object) -> None:
        with psycopg.connect(postgres) as connection:
            connection.execute("SET statement_timeout = '10s'")
            connection.execute("LOCK TABLE kept IN EXCLUSIVE MODE")  # waits for whoever writes

    event.listen(database.engine, "commit", held)
    with pytest.raises(DBAPIError, match="idle-in-transaction"):
        database.insert("INSERT INTO kept VALUES (:word)", [{"word": "one"}, {"word": "two"}])
    database.close()


def test_a_full_disk_fails_no_run_and_what_was_written_is_not_done_again(database: str, tmp_path: Path) -> None:
    log, serves = letters(tmp_path, 0.1)

    async def story(runs: DurableRuns) -> None:
        await runs.start("letters", "run-1")
        await runs.start("turns", "turn-1", "Write letters.")
        await until(lambda: {line[3] for line in log.lines("sent")} == {"run-1", "turn-1"})
        with full_disk(database):
            before = len(log.lines("asked"))
            await asyncio.sleep(1.5)
            if database.startswith("sqlite"):
                with pytest.raises(StoreError, match="database of runs failed"):
                    await runs.start("letters", "run-2")
                assert len(log.lines("asked")) <= before + 2, "it pays for what it cannot write down"
        await check(runs, log, ["run-1"])
        turn = await runs.result("turn-1", timeout_seconds=60)
        assert (turn.reason, turn.text) == ("answered", "done")

    in_worker(database, serves, story, **QUICKER)


@contextmanager
def full_disk(database: str) -> Iterator[None]:
    """Let no file of this process grow any more; let PostgreSQL refuse steps as it does then."""
    if not database.startswith("sqlite"):
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(_FULL)
            yield
            connection.execute("DROP FUNCTION full_disk CASCADE")
        return
    path = Path(database.removeprefix("sqlite:///"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = max(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


_FULL = """
    CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = '53100'; END $$;
    CREATE TRIGGER full_disk BEFORE INSERT ON dbos.operation_outputs FOR EACH ROW EXECUTE FUNCTION full_disk()
"""
