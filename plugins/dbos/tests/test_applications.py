"""Applications that share a database: each has workers, queues and runs of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from processes import check, wait_for, workers_on
from worker_process import QUICK

from chatstack import (
    ChatStack,
    FunctionInvoker,
    InputError,
    IterativeContext,
    IterativeLoop,
    MemoryWorkspace,
    Message,
    StoreError,
)
from chatstack.testing import ScriptedClient
from chatstack_dbos import DurableLoop, DurableRuns, DurableTurn, RunWorker
from chatstack_dbos.execution import Served
from chatstack_dbos.records import RunRequest


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


def test_runs_of_two_applications_have_nothing_but_their_ids_in_common(database: str) -> None:
    async def story() -> None:
        async with DurableRuns(database, application="tenant-a") as ours, DurableRuns(database) as others:
            await others.start("support", "c-1", "Theirs?")
            await others.cancel("c-1")
            assert not await ours.has_ended("c-1")
            await ours.start("support", "c-1", "Ours?", conversation_id="c-42")

            async def answered() -> None:
                assert (await ours.result("c-1", timeout_seconds=60)).text == "our answer"

            async def cancelled() -> None:
                assert (await others.result("c-1", timeout_seconds=60)).reason == "cancelled"

            turn = DurableTurn(answering("our answer").client, streams_text=True)
            await in_application(ours, {"support": turn}, answered)
            with pytest.raises(TimeoutError):
                await others.result("c-1", timeout_seconds=0.3)
            await in_application(others, {"support": answering("never")}, cancelled)
            assert [each async for each in others.text("c-1")] == []
            await others.forget("c-1")
            assert (await ours.result("c-1")).text == "our answer"
            assert "".join([each.text async for each in ours.text("c-1")]) == "our answer"
            await ours.forget("c-1")
            assert not await ours.has_ended("c-1")

    asyncio.run(story())


def noting(seen: list[str]) -> dict[str, Served]:
    """A loop that notes the ids of the runs it is begun for."""

    def context(run_id: str, given: object) -> IterativeContext:
        seen.append(run_id)
        return IterativeContext(workspace=MemoryWorkspace(), run_id=run_id)

    loop = IterativeLoop(ScriptedClient(["done"]), "You work.", lambda context: "work")
    return {"work": DurableLoop(loop, context)}


IDS = ("c-1", "tenant-a::c-1", "chatstack::c-1", "tenant-a/c-1", "/tenant-a/c-1", "chatstack-application")


def test_a_run_knows_its_own_id_in_every_application(tmp_path: Path) -> None:
    seen = list[str]()

    async def story() -> None:
        database = f"sqlite:///{tmp_path}/runs.db"
        async with DurableRuns(database, application="tenant-a") as ours, DurableRuns(database) as others:
            for runs in (ours, others):
                for each in IDS:
                    await runs.start("work", each)

                async def ended(runs: DurableRuns = runs) -> None:
                    for each in IDS:
                        assert (await runs.result(each, timeout_seconds=60)).text == "done"

                await in_application(runs, noting(seen), ended)

        assert sorted(seen) == sorted(IDS * 2)

    asyncio.run(story())


def test_a_run_of_the_default_application_is_the_workflow_of_its_id_as_in_older_databases(tmp_path: Path) -> None:
    seen = list[str]()

    async def story() -> None:
        async with DurableRuns(f"sqlite:///{tmp_path}/runs.db") as runs:
            client = await runs.client()
            for each in IDS:
                await client.enqueue_async(
                    {
                        "workflow_name": "chatstack_run",
                        "queue_name": "chatstack.work",
                        "workflow_id": each,
                        "app_version": "chatstack-runs-1",
                    },
                    RunRequest("work"),
                )
                await runs.start("work", each)

            async def ended() -> None:
                for each in IDS:
                    assert (await runs.result(each, timeout_seconds=60)).text == "done"
                    await runs.start("work", each)

            await in_application(runs, noting(seen), ended)
            assert len(await client.list_workflows_async()) == len(IDS)
        assert sorted(seen) == sorted(IDS)

    asyncio.run(story())


@pytest.mark.parametrize("application", ["chatstack", "tenant-a", "tenant-b"])
def test_an_id_that_looks_like_a_run_of_another_application_is_refused(tmp_path: Path, application: str) -> None:
    async def story() -> None:
        database = f"sqlite:///{tmp_path}/runs.db"
        async with DurableRuns(database, application="tenant-a") as theirs:
            await theirs.start("work", "c-1")
            (found,) = await (await theirs.client()).list_workflows_async()
        async with DurableRuns(database, application=application) as runs:
            wrong = found.workflow_id
            for ask in (runs.result, runs.has_ended, runs.cancel, runs.forget, runs.events, runs.text):
                with pytest.raises(InputError, match=f"run_id={wrong!r} must not begin with 'chatstack-application/'"):
                    await ask(wrong)  # type: ignore[misc]
            with pytest.raises(InputError, match="must not begin with"):
                await runs.start("work", wrong)

    asyncio.run(story())


def test_only_the_same_start_may_be_asked_again(database: str) -> None:
    async def story() -> None:
        async with DurableRuns(database) as runs:
            for seconds in (None, 60):
                given = [Message.user("Where?")]
                await runs.start("support", "c-1", given, conversation_id="c-42", timeout_seconds=seconds)
            with pytest.raises(InputError, match="run 'c-1' is one of 'support', not of 'other'"):
                await runs.start("other", "c-1", [Message.user("Where?")], conversation_id="c-42")
            with pytest.raises(InputError, match="run 'c-1' was started with another given"):
                await runs.start("support", "c-1", "When?", conversation_id="c-42")
            with pytest.raises(InputError, match="run 'c-1' was started with another conversation_id"):
                await runs.start("support", "c-1", [Message.user("Where?")])

            client = await runs.client()
            await client.enqueue_async({"workflow_name": "backup", "queue_name": "theirs", "workflow_id": "nightly"})
            with pytest.raises(InputError, match="run_id='nightly' is the id of another workflow of DBOS, 'backup'"):
                await runs.start("support", "nightly")

    asyncio.run(story())
