"""Workers that die, stop and come back."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from conftest import OwnDatabase
from processes import check, ended, summed, wait_for, workers_on
from worker_process import QUICK, Log, make_context, make_loop

from chatstack import IterativeContext
from chatstack_dbos import DurableLoop, DurableRuns, RunWorker

SLOW_MACHINE_SECONDS = 20


def test_the_run_of_a_killed_worker_goes_on_in_another_one_within_the_stated_time(
    database: str, tmp_path: Path
) -> None:
    async def story() -> None:
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            both = workers.start(2, seconds=0.2)
            await asyncio.sleep(QUICK["dead_after_seconds"])  # a watchdog has to be alive that long
            await runs.start("letters", "run-1")
            wait_for(lambda: len(workers.log.lines("sent")) == 2)
            owner = workers.log.lines("sent")[0][1]
            workers.kill(owner)
            killed_at = time.time()
            assert await check(runs, workers.log, ["run-1"]) <= 1, "one tool at most was running"
            (other,) = set(both) - {owner}
            taken_after = min(line[0] for line in workers.log.lines() if line[1] == other and line[3]) - killed_at
            stated = QUICK["dead_after_seconds"] + 2 * QUICK["heartbeat_seconds"] + 2 * QUICK["poll_seconds"]
            assert taken_after < stated + SLOW_MACHINE_SECONDS
        await runs.aclose()

    asyncio.run(story())


@pytest.mark.timeout(180)
def test_of_three_workers_one_is_killed_one_sleeps_and_the_database_is_restarted(
    own_database: OwnDatabase, tmp_path: Path
) -> None:
    async def story() -> None:
        runs = DurableRuns(own_database.address)
        names = [f"run-{number}" for number in range(6)]
        with workers_on(own_database.address, tmp_path) as workers:
            await runs.start("letters", names[0])
            killed, sleeper, _ = everyone = workers.start(3, seconds=0.15, max_runs=2)
            for name in names[1:]:
                await runs.start("letters", name)
            wait_for(lambda: {line[1] for line in workers.log.lines("sent")} == set(everyone))
            workers.kill(killed)
            workers.freeze(sleeper)
            await asyncio.to_thread(own_database.interrupt)
            await ended(runs, names)
            os.kill(sleeper, signal.SIGCONT)
            woken_at = time.time()
            await runs.start("letters", "run-after")
            await check(runs, workers.log, [*names, "run-after"])
            await asyncio.sleep(1)  # in which the one that was woken could do something more for the runs that it had
            unknown = await check(runs, workers.log, [*names, "run-after"])
            happened = {"runs": len(names) + 1, "killed": 1, "stopped and woken": 1, "restarts of the database": 1}
            print(f"{own_database.kind}: {summed(workers.log, happened, unknown)}")
            assert {line[3] for line in workers.log.lines("asked") if line[0] > woken_at} == {"run-after"}
        await runs.aclose()

    asyncio.run(story())


def test_a_worker_that_wakes_up_while_another_has_its_run_does_nothing_more(database: str, tmp_path: Path) -> None:
    async def story() -> None:
        runs = DurableRuns(database)
        with workers_on(database, tmp_path) as workers:
            (sleeper,) = workers.start(seconds=0.2)
            await runs.start("letters", "run-1")
            wait_for(lambda: len(workers.log.lines("sent")) == 1)
            workers.freeze(sleeper)
            asked = len(workers.log.lines("asked"))
            (other,) = workers.start(seconds=0.2)
            wait_for(lambda: any(line[1] == other for line in workers.log.lines("asked")))
            os.kill(sleeper, signal.SIGCONT)
            await check(runs, workers.log, ["run-1"])
            await asyncio.sleep(0.5)
            assert {line[1] for line in workers.log.lines("asked")[asked:]} == {other}
            await check(runs, workers.log, ["run-1"])
        await runs.aclose()

    asyncio.run(story())


def test_a_worker_that_is_taken_for_dead_and_works_on_writes_and_runs_nothing_twice(
    database: str, tmp_path: Path
) -> None:
    async def story() -> None:
        runs, names = DurableRuns(database), ["run-1", "run-2", "run-3"]
        with workers_on(database, tmp_path) as workers:
            # Its heart beats too slowly for the other one, and it does not look after the runs that it has lost.
            # What it does takes so long that the other one is far ahead when it is done.
            (undead,) = workers.start(seconds=2, heartbeat_seconds=100, dead_after_seconds=1_000)
            for name in names:
                await runs.start("letters", name)
            wait_for(lambda: {line[3] for line in workers.log.lines("sent")} == set(names))
            (other,) = workers.start(seconds=0.01)
            await check(runs, workers.log, names)
            assert {line[1] for line in workers.log.lines("sent")} == {undead, other}
            await asyncio.sleep(2.5)  # in which it comes to the end of what it was doing
            await check(runs, workers.log, names)
        await runs.aclose()

    asyncio.run(story())


def test_a_turn_whose_worker_is_killed_goes_on_in_the_next_one(postgres: str, tmp_path: Path) -> None:
    async def story() -> None:
        runs = DurableRuns(postgres)
        with workers_on(postgres, tmp_path) as workers:
            (first,) = workers.start(seconds=0.2)
            await runs.start("turns", "turn-1", "Write letters.")
            wait_for(lambda: len(workers.log.lines("sent")) == 3)
            workers.kill(first)
            asked = {line[4] for line in workers.log.lines("asked")}
            workers.start(seconds=0.01)
            ended = await runs.result("turn-1", timeout_seconds=60)
            assert (ended.reason, ended.text) == ("answered", "done")
            rounds = [line[4] for line in workers.log.lines("asked")]
            assert rounds == list(range(6)), "an answer that was written was asked for again"
            assert len(asked) >= 3
            sent = [line[4] for line in workers.log.lines("sent")]
            assert len(sent) == len(set(sent))
            assert [each.role for each in ended.messages] == [*["assistant", "tool", "tool"] * 5, "assistant"]
        await runs.aclose()

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_workers_are_killed_stopped_and_woken_at_random_moments(
    own_database: OwnDatabase, tmp_path: Path, seed: int
) -> None:
    """Forty runs; for a minute every second something happens to one of five workers, or to the database."""
    chance = random.Random(seed)

    async def story() -> None:
        runs = DurableRuns(own_database.address)
        names = [f"run-{number}" for number in range(40)]
        with workers_on(own_database.address, tmp_path) as workers:
            alive, asleep = set(workers.start(5, seconds=0.3, max_runs=5)), set[int]()
            happened = Counter({"runs": len(names)})
            for name in names:
                await runs.start("letters", name)
            for _ in range(60):
                await asyncio.sleep(chance.uniform(0.2, 1.8))
                what = chance.choice(["kill", "stop", "wake", "wake", "database", "nothing"])
                if what == "kill" and len(alive) > 1:
                    victim = chance.choice(sorted(alive))
                    alive.discard(victim)
                    happened["killed"] += 1
                    workers.kill(victim)
                    alive |= set(workers.start(seconds=0.3, max_runs=5))
                elif what == "stop" and len(alive) > 2:
                    victim = chance.choice(sorted(alive))
                    alive.discard(victim)
                    asleep.add(victim)
                    happened["stopped and woken"] += 1
                    workers.freeze(victim)
                elif what == "wake" and asleep:
                    woken = chance.choice(sorted(asleep))
                    asleep.discard(woken)
                    alive.add(woken)
                    os.kill(woken, signal.SIGCONT)
                elif what == "database" and chance.random() < 0.3:
                    happened["restarts of the database"] += 1
                    await asyncio.to_thread(own_database.interrupt)
            for woken in asleep:
                os.kill(woken, signal.SIGCONT)
            await ended(runs, names, seconds=300)
            await asyncio.sleep(3)
            unknown = await check(runs, workers.log, names)
            print(f"{own_database.kind}: {summed(workers.log, happened, unknown)}")
        await runs.aclose()

    asyncio.run(story())


def test_a_worker_that_lost_its_run_before_it_asked_does_not_pay_for_the_answer(tmp_path: Path) -> None:
    log, path = Log(tmp_path / "log"), tmp_path / "runs.db"

    def lose(name: str, context: IterativeContext) -> bool:
        """Take the run away after its last step was written, and before the model is asked."""
        with closing(sqlite3.connect(path, timeout=30)) as connection, connection:
            connection.execute("UPDATE workflow_status SET status = 'CANCELLED', owner_xid = NULL")
        time.sleep(0.1)
        return True

    async def story() -> None:
        runs = DurableRuns(f"sqlite:///{path}")
        loop = dataclasses.replace(make_loop(log), tool_filter=lose)
        slow_heart = QUICK | {"heartbeat_seconds": 100, "dead_after_seconds": 300}
        async with RunWorker(runs, {"letters": DurableLoop(loop, make_context)}, **slow_heart) as worker:
            worker.dead_after_seconds = 0.05  # half of this is what it trusts
            await runs.start("letters", "run-1")
            assert (await runs.result("run-1", timeout_seconds=60)).reason == "cancelled"
            await asyncio.sleep(0.5)
            assert log.lines("asked") == []
        await runs.aclose()

    asyncio.run(story())
