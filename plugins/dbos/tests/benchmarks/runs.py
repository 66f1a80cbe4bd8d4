"""Runs of five answers and five tool results: with SQLiteJournal, as durable runs, and as bare steps of DBOS.

``python tests/benchmarks/runs.py [DATABASE ...]``; without an address, a SQLite file. The model and the tool take no
time, so what is measured is what it costs to keep a run. The three are measured in turn, several times, and told as
ratios.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

from dbos import DBOS, EnqueueOptions, WorkflowHandleAsync

from chatstack import IterativeContext, IterativeLoop, MemoryWorkspace, Message, ToolCall, tool
from chatstack.stores.sqlite_journal import SQLiteJournal
from chatstack.testing import ScriptedClient
from chatstack_dbos import DurableLoop, DurableRuns, RunWorker
from chatstack_dbos.names import queue_of, version_of

RUNS, TIMES, ITERATIONS = 40, 5, 5
ANSWER = Message.assistant("I look it up.", ToolCall("1", "look_up", '{"word": "tram"}'))


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    return f"{word}: a vehicle on rails"


def make_loop(journal: SQLiteJournal | None = None) -> IterativeLoop:
    return IterativeLoop(
        ScriptedClient([ANSWER]),
        "You look words up.",
        lambda context: f"Word {context.iteration}",
        [look_up],
        is_complete=lambda context: context.iteration == ITERATIONS - 1,
        mode="single_call",
        max_stalled_iterations=100,
        journal=journal,
    )


@DBOS.workflow(name="bare_steps")
async def bare_steps() -> str:
    """Ten steps, as somebody would write them without this package: five answers and five results, as text."""
    for _ in range(ITERATIONS):
        answer = await DBOS.run_step_async({"name": "answer"}, _asked)
        await DBOS.run_step_async({"name": "result"}, look_up.function, answer)
    return "done"


async def _asked() -> str:
    return (await ScriptedClient([ANSWER]).get_response("Word")).text


async def with_sqlite_journal(folder: Path) -> None:
    journal = SQLiteJournal(folder / "journal.db")
    loop = make_loop(journal)

    async def one() -> None:
        result = await loop.run(IterativeContext(workspace=MemoryWorkspace(), run_id=uuid4().hex))
        assert (result.reason, result.tool_calls) == ("completed", ITERATIONS), result

    await asyncio.gather(*(one() for _ in range(RUNS)))
    await journal.aclose()


async def as_durable_runs(runs: DurableRuns) -> None:
    names = [uuid4().hex for _ in range(RUNS)]
    for name in names:
        await runs.start("loop", name)
    for name in names:
        ended = await runs.result(name)
        assert (ended.reason, len(ended.iterations)) == ("completed", ITERATIONS), ended


async def as_bare_steps(runs: DurableRuns) -> None:
    client, handles = await runs.client(), list[WorkflowHandleAsync[str]]()
    for name in [uuid4().hex for _ in range(RUNS)]:
        options: EnqueueOptions = {
            "workflow_name": "bare_steps",
            "queue_name": queue_of(runs.application, "bare"),
            "workflow_id": name,
            "app_version": version_of(runs.application),
        }
        handles.append(await client.enqueue_async(options))
    for handle in handles:
        assert await handle.get_result(polling_interval_sec=0.25) == "done"


async def measure(database: str, folder: Path) -> None:
    runs, loop = DurableRuns(database), DurableLoop(make_loop(), context)
    forms: dict[str, Callable[[], Awaitable[None]]] = {
        "SQLiteJournal": lambda: with_sqlite_journal(folder),
        "bare steps": lambda: as_bare_steps(runs),
        "durable runs": lambda: as_durable_runs(runs),
    }
    wall: dict[str, list[float]] = {name: [] for name in forms}
    used: dict[str, list[float]] = {name: [] for name in forms}
    async with RunWorker(runs, {"loop": loop, "bare": loop}, max_runs=RUNS, poll_seconds=0.1):
        for turn in range(TIMES + 1):  # the first is not counted: caches, connections, the log of SQLite
            for name, form in forms.items():
                started, cpu = time.perf_counter(), time.process_time()
                await form()
                if turn:
                    wall[name].append((time.perf_counter() - started) / RUNS * 1_000)
                    used[name].append((time.process_time() - cpu) / RUNS * 1_000)
    await runs.aclose()
    kind = database.split(":", 1)[0]
    for name in forms:
        print(f"{kind:<10} {name:<13} wall {told(wall, name)}   cpu {told(used, name)}")


def told(kept: dict[str, list[float]], name: str) -> str:
    """Say the median, and how many times that of SQLiteJournal it is, with the lowest and the highest such ratio."""
    ratios = [one / base for one, base in zip(kept[name], kept["SQLiteJournal"], strict=True)]
    middle, lowest, highest = statistics.median(ratios), min(ratios), max(ratios)
    return f"{statistics.median(kept[name]):6.1f} ms, {middle:4.1f} x ({lowest:.1f} to {highest:.1f})"


def context(run_id: str, given: object) -> IterativeContext:
    return IterativeContext(workspace=MemoryWorkspace(), run_id=run_id)


if __name__ == "__main__":
    print(
        f"{RUNS} runs at a time, {TIMES} times: milliseconds for each run, and times SQLiteJournal (lowest to highest)"
    )
    with tempfile.TemporaryDirectory() as made:
        for each in sys.argv[1:] or [f"sqlite:///{made}/runs.db"]:
            asyncio.run(measure(each, Path(made)))
