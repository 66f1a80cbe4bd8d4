"""Applications that share a database: each has workers, queues and runs of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from processes import check, wait_for, workers_on
from worker_process import QUICK

from chatstack import ChatStack, FunctionInvoker, StoreError
from chatstack.testing import ScriptedClient
from chatstack_dbos import DurableRuns, DurableTurn, RunWorker
from chatstack_dbos.execution import Served


def answering(*answers: str) -> DurableTurn:
    return DurableTurn(ChatStack(ScriptedClient(answers)).use(FunctionInvoker).build())


async def in_application(
    runs: DurableRuns, serves: dict[str, Served], story: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Play a story beside a worker of an application in this process."""
    async with RunWorker(runs, serves, **QUICK):
        await story()


def test_workers_of_two_applications_work_at_once_and_each_looks_after_its_own_dead(
    database: str, tmp_path: Path
) -> None:
    async def story() -> None:
        runs = DurableRuns(database, application="tenant-b")
        with workers_on(database, tmp_path) as workers:
            (other,) = workers.start(application="tenant-a")
            first, second = workers.start(2, application="tenant-b", seconds=0.2)
            await runs.start("letters", "run-1")
            wait_for(lambda: len(workers.log.lines("sent")) == 2)
            owner = workers.log.lines("sent")[0][1]
            workers.kill(owner)
            await check(runs, workers.log, ["run-1"])
            assert {line[1] for line in workers.log.lines("sent")} == {first, second}
            assert workers.is_alive(other)
        await runs.aclose()

    asyncio.run(story())


def test_a_version_that_another_application_has_in_the_database_is_a_store_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with DurableRuns(f"sqlite:///{tmp_path}/runs.db") as runs:
            await runs.client()
            runs.database.run(
                "INSERT INTO application_versions (version_id, version_name, application_name, version_timestamp,"
                " created_at) VALUES ('1', 'chatstack-runs-1', 'theirs', 1, 1)"
            )
            with pytest.raises(StoreError, match=r"RunWorker: .*'theirs'"):
                async with RunWorker(runs, {"support": answering("never")}):
                    pass

    asyncio.run(story())
