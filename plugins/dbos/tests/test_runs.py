"""Runs as their callers see them: started once, followed, cancelled, overdue, forgotten."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from processes import check, ended, wait_for, workers_on
from worker_process import QUICK, Log, make_context, make_loop, make_turn

from chatstack import (
    ChatStack,
    FunctionInvoker,
    InputError,
    IterativeContext,
    IterativeLoop,
    MemoryWorkspace,
    Message,
    StoreError,
    ToolCall,
    WiringError,
    tool,
)
from chatstack.stores.sqlite_journal import SQLiteJournal
from chatstack.testing import ScriptedClient
from chatstack_dbos import DurableLoop, DurableRuns, DurableTurn, RunEnded, RunText, RunWorker
from chatstack_dbos.execution import Served


def in_worker(
    database: str, serves: dict[str, Served], story: Callable[[DurableRuns], Coroutine[Any, Any, None]], **settings: Any
) -> None:
    """Play a story beside a worker in this process."""

    async def play() -> None:
        runs = DurableRuns(database)
        async with RunWorker(runs, serves, **(QUICK | settings)):
            await story(runs)
        await runs.aclose()

    asyncio.run(play())


def letters(tmp_path: Path, seconds: float = 0.0, **settings: Any) -> tuple[Log, dict[str, Served]]:
    log = Log(tmp_path / "log")
    return log, {
        "letters": DurableLoop(make_loop(log, seconds, **settings), make_context),
        "turns": DurableTurn(make_turn(log, seconds)),
    }


def test_a_run_is_started_once_however_often_it_is_asked_for(database: str, tmp_path: Path) -> None:
    log, serves = letters(tmp_path)

    async def story(runs: DurableRuns) -> None:
        await asyncio.gather(*(runs.start("letters", "run-1") for _ in range(5)))
        await check(runs, log, ["run-1"])
        await runs.start("letters", "run-1")
        assert await runs.has_ended("run-1")
        assert len(log.lines("asked")) == 5
        outcome = await runs.result("run-1")
        assert outcome.usage.total_tokens > 0
        assert [each.tool_calls[0].output for each in outcome.iterations] == [f"sent {n}" for n in range(5)]

    in_worker(database, serves, story)


def test_what_is_given_to_a_run_is_given_to_its_context(tmp_path: Path) -> None:
    seen: list[Any] = []

    def context(run_id: str, given: Any) -> IterativeContext:
        seen.append(given)
        return IterativeContext(workspace=MemoryWorkspace(), run_id=run_id)

    loop = IterativeLoop(ScriptedClient(["done"]), "You work.", lambda context: "work")

    async def story(runs: DurableRuns) -> None:
        await runs.start("work", "run-1", {"topic": "trams", "pages": [1, 2]})
        assert (await runs.result("run-1", timeout_seconds=60)).text == "done"
        assert seen == [{"topic": "trams", "pages": [1, 2]}]

    in_worker(f"sqlite:///{tmp_path}/runs.db", {"work": DurableLoop(loop, context)}, story)


def test_a_run_is_cancelled_and_another_is_overdue_in_another_process(database: str, tmp_path: Path) -> None:
    async def story() -> None:
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            workers.start(seconds=0.2, iterations=100)
            await runs.start("letters", "cancelled")
            await runs.start("letters", "overdue", timeout_seconds=2)
            await runs.start("turns", "turn", "Write letters.")
            wait_for(lambda: {line[3] for line in workers.log.lines("sent")} >= {"cancelled", "turn"})
            await runs.cancel("cancelled")
            await runs.cancel("turn")
            found = await ended(runs, ["cancelled", "overdue", "turn"])
            assert [each.reason for each in found.values()] == ["cancelled", "deadline", "cancelled"]
            assert found["cancelled"].iterations, "what was done is in the outcome"
            messages = found["turn"].messages
            assert len(messages) % 3 == 0, "whole rounds: an answer, and its two results"
            sent = len(workers.log.lines("sent"))
            await asyncio.sleep(0.6)
            assert len(workers.log.lines("sent")) == sent
        await runs.aclose()

    asyncio.run(story())


def test_a_run_that_nobody_has_begun_ends_as_cancelled_or_overdue_once_a_worker_comes(tmp_path: Path) -> None:
    database, (log, serves) = f"sqlite:///{tmp_path}/runs.db", letters(tmp_path)

    async def before() -> None:
        runs = DurableRuns(database)
        await runs.start("letters", "cancelled")
        await runs.cancel("cancelled")
        await runs.start("letters", "overdue", timeout_seconds=0.01)
        with pytest.raises(TimeoutError):
            await runs.result("overdue", timeout_seconds=0.5)
        await runs.aclose()

    async def story(runs: DurableRuns) -> None:
        found = await ended(runs, ["cancelled", "overdue"])
        assert [each.reason for each in found.values()] == ["cancelled", "deadline"]
        assert log.lines("asked") == []

    asyncio.run(before())
    in_worker(database, serves, story)


def test_a_deadline_holds_across_a_takeover(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/runs.db"

    async def story() -> None:
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            (first,) = workers.start(seconds=0.2, iterations=1_000)
            await runs.start("letters", "run-1", timeout_seconds=4)
            started = time.monotonic()
            wait_for(lambda: len(workers.log.lines("sent")) > 1)
            workers.kill(first)
            workers.start(seconds=0.1, iterations=1_000)
            outcome = await runs.result("run-1", timeout_seconds=60)
            assert outcome.reason == "deadline"
            assert time.monotonic() - started >= 3.5
        await runs.aclose()

    asyncio.run(story())


def test_a_run_that_was_started_before_an_upgrade_ends_after_it(postgres: str, tmp_path: Path) -> None:
    async def story() -> None:
        runs = DurableRuns(postgres)
        with workers_on(postgres, tmp_path) as workers:
            (old,) = workers.start(seconds=0.2, release=1, iterations=30)
            await runs.start("letters", "run-1")
            wait_for(lambda: len(workers.log.lines("sent")) == 2)
            workers.stop(old)  # in its own way, as a deployment does
            assert any(line[1] == old for line in workers.log.lines("down")), workers.said()
            (new,) = workers.start(seconds=0.01, release=2, iterations=30)
            await check(runs, workers.log, ["run-1"], iterations=30)
            assert workers.log.lines("prompted by release 1")
            after = workers.log.lines("prompted by release 2")
            assert after
            assert {line[1] for line in after} == {new}
        await runs.aclose()

    asyncio.run(story())


def test_a_worker_that_closes_gives_its_runs_back_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        database = f"sqlite:///{tmp_path}/runs.db"
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            first, second = workers.start(2, seconds=0.2, dead_after_seconds=600)
            await runs.start("letters", "run-1")
            wait_for(lambda: len(workers.log.lines("sent")) == 2)
            owner = workers.log.lines("sent")[0][1]
            workers.stop(owner)
            await check(runs, workers.log, ["run-1"])
            assert {line[1] for line in workers.log.lines("sent")} == {first, second}
        await runs.aclose()

    asyncio.run(story())


def test_progress_is_seen_in_another_process_while_it_happens(database: str, tmp_path: Path) -> None:
    async def story() -> None:
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            workers.start(seconds=0.3)
            await runs.start("letters", "run-1")
            kinds: list[str] = []
            was_live = False
            async with runs.events("run-1") as events:
                async for event in events:
                    assert event.conversation_id == "run-1"
                    kinds.append(event.kind)
                    was_live = was_live or (event.kind == "iteration_ended" and not await runs.has_ended("run-1"))
            assert was_live
            assert (kinds[0], kinds[-1]) == ("turn_started", "turn_ended")
            assert (kinds.count("iteration_ended"), kinds.count("tool_ended")) == (5, 10)
            again = [event.kind async for event in runs.events("run-1")]
            assert again == kinds, "who comes later sees it from the beginning"
            await runs.start("turns", "turn-1", "Write.", conversation_id="c-42")
            told = [event async for event in runs.events("turn-1")]
            assert {event.conversation_id for event in told} == {"c-42"}
            assert [each.kind for each in told].count("model_call_ended") == 6
            assert [each.kind for each in told].count("tool_ended") == 10
        await runs.aclose()

    asyncio.run(story())


def test_text_is_read_in_another_process_while_the_model_writes_it(database: str, tmp_path: Path) -> None:
    async def story() -> None:
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            workers.start(seconds=0.15)
            for served in ("stories", "answers"):
                run = f"run-{served}"
                await runs.start(served, run, "Tell one.")
                pieces: list[RunText] = []
                while_written: list[int] = []
                async with runs.text(run) as text:
                    async for piece in text:
                        pieces.append(piece)
                        while_written.append(len([line for line in workers.log.lines("wrote") if line[3] == run]))
                told = "".join(each.text for each in pieces)
                assert told == (await runs.result(run)).text == "".join(f"Word{number} " for number in range(10))
                assert while_written[0] < 10, "it came when all was written"
                assert 2 <= len(pieces) <= 10
                assert [(each.answer, each.begins) for each in pieces] == [(0, True), *[(0, False)] * (len(pieces) - 1)]
        await runs.aclose()

    asyncio.run(story())


def test_an_answer_that_a_dead_worker_was_writing_begins_anew(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/runs.db"

    async def story() -> None:
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            (first,) = workers.start(seconds=0.4)
            await runs.start("stories", "run-1")
            shown = ""
            is_killed = False
            async for piece in runs.text("run-1"):
                shown = piece.text if piece.begins else shown + piece.text
                if not is_killed:
                    assert piece.begins
                    workers.kill(first)
                    workers.start(seconds=0.01)
                    is_killed = True
            assert len([line for line in workers.log.lines("wrote") if line[1] != first]) == 10
            assert shown == (await runs.result("run-1")).text
        await runs.aclose()

    asyncio.run(story())


def everything_in(database: str) -> list[Any]:
    """All values in all tables, those of DBOS and ours."""
    if database.startswith("sqlite"):
        with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as connection:
            names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            return [value for name in names for row in connection.execute(f'SELECT * FROM "{name}"') for value in row]
    with psycopg.connect(database) as asked:
        tables = asked.execute(
            "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('dbos', 'public')"
        ).fetchall()
        return [
            value
            for schema, name in tables
            for row in asked.execute(f'SELECT * FROM "{schema}"."{name}"')  # type: ignore[arg-type]
            for value in row
        ]


def bytes_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("runs.db*"))


def test_the_database_holds_typed_json_and_nothing_pickled_and_forgets_it(database: str, tmp_path: Path) -> None:
    _, serves = letters(tmp_path)

    async def story(runs: DurableRuns) -> None:
        await runs.start("letters", "run-1", {"secret": "Kardamom"})
        await runs.start("turns", "turn-1", [Message.user("Muskat?")])
        await ended(runs, ["run-1", "turn-1"])
        texts = [each for each in everything_in(database) if isinstance(each, str | bytes)]
        assert not [each for each in texts if isinstance(each, bytes)]
        assert "py_pickle" not in texts
        records = [msgspec.json.decode(each) for each in texts if each.startswith('{"record"')]  # type: ignore[arg-type]
        assert {each["version"] for each in records if each["record"] != "ended"} == {1}
        kinds = [each["record"] for each in records]
        # A loop's iteration has six entries; a turn has its first one, then five rounds of five, and the answer.
        assert (kinds.count("step"), kinds.count("ended")) == (5 * 7 + 1 + 5 * 5 + 1, 2)
        assert any("Kardamom" in each for each in texts)  # type: ignore[operator]
        await runs.forget("run-1")
        await runs.forget("turn-1")
        left = [
            each for each in everything_in(database) if isinstance(each, str) and ("run-1" in each or "turn-1" in each)
        ]
        assert left == []
        with pytest.raises(StoreError, match="no run"):
            await runs.result("run-1")
        if database.startswith("sqlite"):
            raw = bytes_below(tmp_path)
            assert b"Kardamom" not in raw
            assert b"Muskat" not in raw

    in_worker(database, serves, story)


def test_a_failed_run_says_why_and_one_that_cannot_begin_too(tmp_path: Path) -> None:
    def no_context(run_id: str, given: Any) -> IterativeContext:
        return IterativeContext(workspace=MemoryWorkspace(), run_id="another")

    refused = IterativeLoop(
        ScriptedClient([ConnectionError("the network is gone")]), "You work.", lambda context: "work"
    )
    loop = IterativeLoop(ScriptedClient(["done"]), "You work.", lambda context: "work")
    client = ChatStack(ScriptedClient([ConnectionError("no network")])).use(FunctionInvoker).build()
    serves: dict[str, Served] = {
        "refused": DurableLoop(refused, make_context),
        "astray": DurableLoop(loop, no_context),
        "turn": DurableTurn(client),
    }

    async def story(runs: DurableRuns) -> None:
        for name in serves:
            await runs.start(name, name, "Hello")
        await runs.start("turn", "no-messages", {"role": "user"})
        found = await ended(runs, [*serves, "no-messages"])
        assert {each.reason for each in found.values()} == {"error"}
        assert found["refused"].error == "ConnectionError: the network is gone"
        assert "run_id='another'" in found["astray"].error
        assert found["turn"].error == "ConnectionError: no network"
        assert "text or messages" in found["no-messages"].error

    in_worker(f"sqlite:///{tmp_path}/runs.db", serves, story)


def test_a_turn_keeps_the_rules_of_its_tool_loop_when_it_resumes(tmp_path: Path) -> None:
    database, calls = f"sqlite:///{tmp_path}/runs.db", list[int]()
    is_running, is_second = asyncio.Event(), False

    @tool
    async def fails(number: int) -> str:
        calls.append(number)
        if len(calls) == 2 and not is_second:
            is_running.set()
            await asyncio.sleep(60)  # in which its worker is closed
        raise ValueError("no")

    asks = [Message.assistant(ToolCall(str(n), "fails", f'{{"number": {n}}}')) for n in range(4)]

    def client(answers: list[Message]) -> dict[str, Served]:
        stack = ChatStack(ScriptedClient(answers)).use(FunctionInvoker, tools=[fails], max_consecutive_failures=2)
        return {"turn": DurableTurn(stack.build())}

    async def first(runs: DurableRuns) -> None:
        await runs.start("turn", "run-1", "Go on.")
        await is_running.wait()

    async def second(runs: DurableRuns) -> None:
        outcome = await runs.result("run-1", timeout_seconds=60)
        # The first round failed, in the other process; of the second nobody knows, which is no failure.
        assert (outcome.reason, calls) == ("error", [0, 1, 2, 3])
        assert "ToolLoopError: every tool call failed, 2 rounds" in outcome.error
        outputs = [result.output for message in outcome.messages for result in message.results]
        assert "nobody knows whether it took effect" in str(outputs[1])

    in_worker(database, client(asks[:2]), first)
    is_second = True
    in_worker(database, client(asks[2:]), second)


def test_what_cannot_work_is_refused_when_it_is_made(tmp_path: Path) -> None:
    for address in ("", "runs.db", "sqlite://", "mysql://host/name", "sqlite:///:memory:", 5):
        with pytest.raises(WiringError, match="DurableRuns: database"):
            DurableRuns(address)  # type: ignore[arg-type]
    with pytest.raises(WiringError, match="application="):
        DurableRuns("sqlite:///runs.db", application="My App")
    runs = DurableRuns(f"sqlite:///{tmp_path}/runs.db")
    loop = make_loop(Log(tmp_path / "log"))
    journal = SQLiteJournal(tmp_path / "journal.db")
    with pytest.raises(WiringError, match="has a journal"):
        DurableLoop(IterativeLoop(ScriptedClient(), "You work.", lambda context: "work", journal=journal), make_context)
    with pytest.raises(WiringError, match="no FunctionInvoker"):
        DurableTurn(ScriptedClient())
    serves: dict[str, Served] = {"letters": DurableLoop(loop, make_context)}
    with pytest.raises(WiringError, match="serves"):
        RunWorker(runs, {})
    with pytest.raises(WiringError, match="max_runs=0"):
        RunWorker(runs, serves, max_runs=0)
    with pytest.raises(WiringError, match="three heartbeat_seconds"):
        RunWorker(runs, serves, heartbeat_seconds=2, dead_after_seconds=3)


def test_a_wrong_call_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def story() -> None:
        runs = DurableRuns(f"sqlite:///{tmp_path}/runs.db")
        with pytest.raises(InputError, match="run_id=''"):
            await runs.start("letters", "")
        with pytest.raises(InputError, match="timeout_seconds=0"):
            await runs.start("letters", "run-1", timeout_seconds=0)
        with pytest.raises(InputError, match="JSON"):
            await runs.start("letters", "run-1", object())
        with pytest.raises(StoreError, match="no run"):
            await runs.result("run-1")
        assert not await runs.has_ended("run-1")
        await runs.aclose()

    asyncio.run(story())


def test_a_database_that_is_not_there_is_a_store_error_without_its_password() -> None:
    async def story() -> None:
        runs = DurableRuns("postgresql://me:geheim@127.0.0.1:1/runs")
        with pytest.raises(StoreError) as raised:
            await runs.start("letters", "run-1")
        assert "geheim" not in str(raised.value) + repr(runs)
        await runs.aclose()

    asyncio.run(story())


def test_a_second_worker_in_one_process_is_refused(tmp_path: Path) -> None:
    _, serves = letters(tmp_path)

    async def story(runs: DurableRuns) -> None:
        with pytest.raises(WiringError, match="has one already"):
            async with RunWorker(runs, serves):
                pass
        await runs.start("letters", "run-1")
        assert isinstance(await runs.result("run-1", timeout_seconds=60), RunEnded)

    in_worker(f"sqlite:///{tmp_path}/runs.db", serves, story)
