"""Worker processes for tests, and what has to hold of all that they have done."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from worker_process import Log, main

from chatstack.loop.iteration import INTERRUPTED
from chatstack.loop.journal import ModelAnswered, ToolEnded
from chatstack_dbos import DurableRuns, RunEnded
from chatstack_dbos.names import key_of
from chatstack_dbos.records import Step


class Workers:
    """Processes that are ended by their id. They are forked from one that has imported all of it already."""

    def __init__(self, database: str, folder: Path) -> None:
        self.database = database
        self.log = Log(folder / "log")
        self._errors = str(folder / "stderr")
        self.processes: list[ForkServerProcess] = []
        os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # where the server of forks finds what it imports
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(["worker_process"])

    def start(self, count: int = 1, **settings: Any) -> list[int]:
        """Start them, wait until they work, and return their ids."""
        started = [
            self._forks.Process(target=main, args=(self.database, self.log, self._errors, dict(settings)))
            for _ in range(count)
        ]
        for process in started:
            process.start()
            self.processes.append(process)
        for process in started:
            self._wait_until_up(process)
        return [process.pid or 0 for process in started]

    def kill(self, process_id: int) -> None:
        os.kill(process_id, signal.SIGKILL)
        self._of(process_id).join()

    def freeze(self, process_id: int) -> None:
        """Stop one where it is; with SQLite not within a write, a read or a checkpoint: until it goes on nobody could
        write, or empty the log, as ``forget`` does."""
        _stop(process_id)
        while self.database.startswith("sqlite") and not self._is_free():
            os.kill(process_id, signal.SIGCONT)
            time.sleep(0.01)
            _stop(process_id)

    def _is_free(self) -> bool:
        path = self.database.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=2)) as connection:
            is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            return not is_busy

    def end(self) -> None:
        for process in self.processes:
            if process.is_alive():
                os.kill(process.pid or 0, signal.SIGCONT)
                process.kill()
            process.join()
            process.close()

    def stop(self, process_id: int) -> None:
        """Let one end in its own way."""
        os.kill(process_id, signal.SIGTERM)
        self._of(process_id).join()

    def is_alive(self, process_id: int) -> bool:
        return self._of(process_id).is_alive()

    def said(self) -> str:
        return Path(self._errors).read_text()

    def _of(self, process_id: int) -> ForkServerProcess:
        return next(each for each in self.processes if each.pid == process_id)

    def _wait_until_up(self, process: ForkServerProcess) -> None:
        def is_up() -> bool:
            code = process.exitcode
            assert code is None or code < 0, self.said()  # below 0: the first run that it took has killed it
            return code is not None or any(line[1] == process.pid for line in self.log.lines("up"))

        wait_for(is_up)


def _stop(process_id: int) -> None:
    """Stop a process, and wait until all of its threads stand still: they go on for a moment."""
    os.kill(process_id, signal.SIGSTOP)
    wait_for(lambda: _states(process_id) <= {"t", "T"})


def _states(process_id: int) -> set[str]:
    found: set[str] = set()
    for each in Path(f"/proc/{process_id}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            found.add(each.read_text().rpartition(")")[2].split()[0])
    return found


@contextmanager
def workers_on(database: str, folder: Path) -> Iterator[Workers]:
    workers = Workers(database, folder)
    try:
        yield workers
    finally:
        workers.end()


def wait_for(holds: Callable[[], bool], seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.05)


async def until(holds: Callable[[], bool]) -> None:
    """Wait without holding up the workers of this process."""
    while not holds():  # noqa: ASYNC110 - what is waited for happens in files and other processes
        await asyncio.sleep(0.05)


async def ended(runs: DurableRuns, run_ids: list[str], seconds: float = 60) -> dict[str, RunEnded]:
    found = await asyncio.gather(*(runs.result(run_id, timeout_seconds=seconds) for run_id in run_ids))
    return dict(zip(run_ids, found, strict=True))


async def check(runs: DurableRuns, log: Log, run_ids: list[str], iterations: int = 5) -> int:
    """Check that every run has ended once, that no letter was sent twice, and no written answer was paid twice.

    Returns the number of calls of which the model was told that nobody knows whether they ran.
    """
    outcomes, unknown = await ended(runs, run_ids), 0
    sent = Counter((line[3], line[4]) for line in log.lines("sent"))
    assert not [call for call, times in sent.items() if times > 1]
    last_asked = {(line[3], line[4]): line[5] for line in log.lines("asked")}
    client = await runs.client()
    for run_id, outcome in outcomes.items():
        assert (outcome.reason, [each.iteration for each in outcome.iterations]) == (
            "max_iterations",
            list(range(iterations)),
        ), (run_id, outcome)
        key = key_of(runs.application, run_id)
        found = await client.list_workflows_async(workflow_ids=[key])
        assert found[0].status == "SUCCESS"
        steps = await client.list_workflow_steps_async(key)
        entries = [step["output"].entry for step in steps if isinstance(step["output"], Step)]
        assert len(entries) == len(steps)
        written = [entry.messages[-1].text for entry in entries if isinstance(entry, ModelAnswered)]
        assert written == [last_asked[run_id, number] for number in range(iterations)]
        results = [entry.result.output for entry in entries if isinstance(entry, ToolEnded)]
        unknown += results.count(INTERRUPTED)
        assert len(results) == 2 * iterations
    return unknown


def summed(log: Log, happened: Mapping[str, int], unknown: int) -> str:
    """One line about a whole test: what was done to the workers, and what they did."""
    sent, looked = (Counter((line[3], line[4]) for line in log.lines(kind)) for kind in ("sent", "looked"))
    asked = Counter((line[3], line[4]) for line in log.lines("asked"))
    told = ", ".join(f"{what} {times}" for what, times in happened.items())
    return (
        f"{told}; {len(asked)} answers written, {asked.total() - len(asked)} asked for again before they were; "
        f"{len(sent)} tools that may not run twice, {sent.total() - len(sent)} run twice, of {unknown} calls nobody "
        f"knows; {looked.total() - len(looked)} idempotent ones run again"
    )
