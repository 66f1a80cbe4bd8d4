"""The worker of durable runs: DBOS in this process, and what it serves."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self, cast
from uuid import uuid4

from dbos import DBOS, DBOSConfig
from dbos import error as dbos_error

from chatstack import StoreError, WiringError
from chatstack.client.closing import Closing
from chatstack.client.wiring import wrong
from chatstack_dbos.execution import Execution, Served
from chatstack_dbos.journal import DBOSJournal
from chatstack_dbos.names import WORKFLOW, queue_of, run_of, version_of
from chatstack_dbos.records import RunEnded, RunRequest
from chatstack_dbos.runs import DurableRuns, is_positive, is_text
from chatstack_dbos.watchdog import Watchdog

_running: RunWorker | None = None
"""The worker of this process: DBOS is one for each process, too."""


class RunWorker(Closing):
    """Runs what is started in ``runs``: each run in one worker at a time, and in another one if that dies.

    ``serves`` maps names to a ``DurableLoop`` or a ``DurableTurn``. ``async with RunWorker(runs, {...}):`` starts it;
    runs go on in the same event loop, at most ``max_runs`` of each name at a time. Leaving the block ends them here,
    and others go on with them.

    A worker that is dead, or stopped, or cut off from the database, loses its runs to others after
    ``dead_after_seconds``, two ``heartbeat_seconds`` and two ``poll_seconds`` at the latest, as long as one of them has
    been alive that long. It must be longer than any pause of a healthy worker. After ``max_takeovers`` a run ends with
    an error: it may be the reason why its workers die. One from a worker that was alive after all, only late, does not
    count if the run made progress until the next one.

    One worker for each process; DBOS is launched by it, and must not be launched before. Raises ``WiringError``.
    """

    def __init__(
        self,
        runs: DurableRuns,
        serves: Mapping[str, Served],
        *,
        max_runs: int = 10,
        heartbeat_seconds: float = 2.0,
        dead_after_seconds: float = 20.0,
        poll_seconds: float = 1.0,
        max_takeovers: int = 10,
    ) -> None:
        _check_served(serves)
        self.runs = runs
        self.serves = dict(serves)
        self.max_runs = max_runs
        self.heartbeat_seconds = heartbeat_seconds
        self.dead_after_seconds = dead_after_seconds
        self.poll_seconds = poll_seconds
        self.max_takeovers = max_takeovers
        self.executor = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._watchdog: Watchdog | None = None
        self._check()

    async def __aenter__(self) -> Self:
        global _running
        if _running is not None:
            raise WiringError("RunWorker: this process has one already")
        _running = self
        try:
            client = await self.runs.client()
            self._watchdog = Watchdog(
                self.runs.database,
                client,
                self.executor,
                self.runs.application,
                heartbeat_seconds=self.heartbeat_seconds,
                dead_after_seconds=self.dead_after_seconds,
                max_takeovers=self.max_takeovers,
            )
            await asyncio.to_thread(self._watchdog.start)
            for name in self.serves:
                await client.register_queue_async(
                    queue_of(self.runs.application, name),
                    worker_concurrency=self.max_runs,
                    polling_interval_sec=self.poll_seconds,
                    on_conflict="always_update",
                )
            self._launch()
            self._watchdog.allow_takeovers()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def aclose(self) -> None:
        """End the runs here, and give them back for others."""
        global _running
        if _running is not self:
            return
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            await asyncio.to_thread(watchdog.close)
        for task in tuple(_tasks):
            task.cancel()
        if _tasks:
            await asyncio.wait(tuple(_tasks))
        await asyncio.to_thread(DBOS.destroy)
        # DBOS has given its own threads to the event loop, and has ended them now.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
        if watchdog is not None:
            await asyncio.to_thread(watchdog.sign_off)
        _running = None

    async def execute(self, key: str, request: RunRequest) -> RunEnded:
        """Carry out a run, or go on with it. Called inside its workflow, whose id is the ``key``."""
        run_id = run_of(self.runs.application, key)
        served, watchdog = self.serves.get(request.name), self._watchdog
        if watchdog is None:  # it is closing: the run stays as it is, and is given back
            raise asyncio.CancelledError
        if served is None:
            raise StoreError(f"run {run_id!r}: this worker serves no {request.name!r}")
        journal = DBOSJournal(await self.runs.client(), key)
        trusted = self.dead_after_seconds / 2
        execution = Execution(run_id, request, journal, self.runs.database, self.executor, self._is_ours, trusted)
        watchdog.watch(key, execution)
        try:
            return await execution.run(served)
        finally:
            watchdog.leave(key, execution)

    async def _is_ours(self, key: str) -> bool:
        client = await self.runs.client()
        found = await client.list_workflows_async(workflow_ids=[key], load_input=False, load_output=False)
        return bool(found) and (found[0].status, found[0].executor_id) == ("PENDING", self.executor)

    def _launch(self) -> None:
        """Launch DBOS. Here, not in a thread: it takes the running event loop for its workflows."""
        database = self.runs.database
        config: DBOSConfig = {
            "name": self.runs.application,
            "system_database_url": database.address,
            "serializer": self.runs.serializer,
            "executor_id": self.executor,
            "application_version": version_of(self.runs.application),
            # One that is stopped within a transaction must have lost its locks once it is taken for dead.
            "sys_db_idle_transaction_timeout_sec": self.dead_after_seconds,
            "log_level": "WARNING",
        }
        if database.is_sqlite:
            config["system_database_engine"] = database.engine
        DBOS(config=config)
        if DBOS.executor_id != self.executor:
            raise WiringError("RunWorker: DBOS was made before in this process, with another configuration")
        queues = [queue_of(self.runs.application, name) for name in self.serves]
        DBOS.listen_queues(queues)
        try:
            DBOS.launch()
        except dbos_error.DBOSException as error:
            raise StoreError(f"RunWorker: DBOS cannot be launched on this database: {error}") from error

    def _check(self) -> None:
        if not isinstance(self.runs, DurableRuns):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise wrong("RunWorker", "runs", self.runs, "DurableRuns(database)")
        for name, number, kind in (
            ("max_runs", self.max_runs, int),
            ("heartbeat_seconds", self.heartbeat_seconds, float),
            ("dead_after_seconds", self.dead_after_seconds, float),
            ("poll_seconds", self.poll_seconds, float),
            ("max_takeovers", self.max_takeovers, int),
        ):
            if not is_positive(number) or (kind is int and type(number) is not int):
                raise wrong("RunWorker", name, number, f"a {'whole ' * (kind is int)}number greater than 0")
        if self.dead_after_seconds < 3 * self.heartbeat_seconds:
            raise WiringError(
                f"RunWorker: dead_after_seconds={self.dead_after_seconds:g} must be three heartbeat_seconds or more",
                parameter="dead_after_seconds",
            )


def _check_served(serves: object) -> None:
    """Raise ``WiringError`` for what no run could be started as, or carried out by."""
    kind = type(serves).__name__
    if not isinstance(serves, Mapping) or not serves:
        raise _wrong(f"serves, a {kind}, must be a dict with one name at least: {{'support': DurableTurn(client)}}")
    for name, served in cast("Mapping[object, object]", serves).items():
        if not is_text(name):
            raise _wrong(f"serves has the key {name!r}: each must be text, not blank, as runs are started by it")
        if isinstance(served, type) or not isinstance(served, Served):
            kind = served.__name__ if isinstance(served, type) else type(served).__name__
            remedy = "write DurableTurn(client), or DurableLoop(loop, context)"
            raise _wrong(f"serves[{name!r}] is of type {kind}, which is nothing to serve: {remedy}")


def _wrong(told: str) -> WiringError:
    return WiringError(f"RunWorker: {told}", layer="RunWorker", parameter="serves")


_tasks: set[asyncio.Task[object]] = set()


@DBOS.workflow(name=WORKFLOW, max_recovery_attempts=None)
async def _run(request: RunRequest) -> RunEnded:
    """Carry out a run in the worker of this process."""
    worker, key, task = _running, DBOS.workflow_id, asyncio.current_task()
    if worker is None or key is None or task is None:
        raise StoreError("no worker runs in this process")
    # The task outlives this function where the run is another's: DBOS then waits in it for the outcome.
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return await worker.execute(key, request)
