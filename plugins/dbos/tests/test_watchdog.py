"""What a watchdog takes over, and which takeovers count: step by step, with a clock that the test sets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dbos import DBOSClient
from sqlalchemy.exc import OperationalError

from chatstack_dbos import DurableRuns
from chatstack_dbos.watchdog import Watchdog

RUN = "run-1"
DEAD_AFTER, HEARTBEAT, MOST = 20.0, 2.0, 3


class Locked:
    """A client of DBOS to which the run's row is locked for some times when it is given back."""

    def __init__(self, client: DBOSClient, times: int) -> None:
        self._client = client
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def resume_workflow(self, run_id: str, **settings: Any) -> None:
        if self.times:
            self.times -= 1
            raise OperationalError("UPDATE", {}, Exception("canceling statement due to lock timeout"))
        self._client.resume_workflow(run_id, **settings)


class World:
    """One run, a watchdog that is healthy, and workers that do what the test says."""

    def __init__(self, runs: DurableRuns, client: DBOSClient, locked: int = 0) -> None:
        self.database, self.now, self.steps = runs.database, 1e6, 0
        self.of_dbos = "" if self.database.is_sqlite else "dbos."
        self.database.run("CREATE TABLE test_clock AS SELECT 1000000.0 AS now")
        self.database.clock = "(SELECT CAST(now AS DOUBLE PRECISION) FROM test_clock)"
        self.watchdog = Watchdog(
            self.database,
            Locked(client, locked),  # type: ignore[arg-type]
            "watcher",
            runs.application,
            heartbeat_seconds=HEARTBEAT,
            dead_after_seconds=DEAD_AFTER,
            max_takeovers=MOST,
            clock=lambda: self.now,
        )

    def starts(self) -> None:
        """Let the watchdog's own worker be up, and the watchdog healthy for long enough."""
        self.watchdog.allow_takeovers()
        assert not self.looks_for(DEAD_AFTER, alive="first")

    def looks_for(self, seconds: float, *, alive: str = "") -> bool:
        """Let the watchdog look until that time is over, or the run is given back; True if it is."""
        until = self.now + seconds
        while self.now <= until:
            self.now += HEARTBEAT
            self.database.run("UPDATE test_clock SET now = :now", {"now": self.now})
            if alive:
                self.beats(alive)
            self.watchdog.look()
            if self._is_waiting():
                return True
        return False

    def beats(self, executor: str) -> None:
        self.database.run(
            "INSERT INTO chatstack_executors (executor, beat_at) VALUES (:executor, {now})"
            " ON CONFLICT (executor) DO UPDATE SET beat_at = excluded.beat_at",
            {"executor": executor},
        )

    def begins(self, executor: str) -> None:
        """Take the run from its queue as DBOS does it."""
        self.database.run(
            f"UPDATE {self.of_dbos}workflow_status SET status = 'PENDING', executor_id = :executor, owner_xid = 'x',"
            " started_at_epoch_ms = :now WHERE workflow_uuid = :run AND status = 'ENQUEUED'",
            {"executor": executor, "now": int(self.now * 1_000), "run": RUN},
        )
        assert not self._is_waiting()

    def writes_a_step(self) -> None:
        self.steps += 1
        self.database.run(
            f"INSERT INTO {self.of_dbos}operation_outputs (workflow_uuid, function_id, function_name)"
            " VALUES (:run, :number, 'step')",
            {"run": RUN, "number": self.steps},
        )

    @property
    def is_given_up(self) -> bool:
        return self._first("SELECT stop FROM chatstack_runs WHERE run = :run") == "lost"

    @property
    def takeovers(self) -> int:
        return int(self._first("SELECT takeovers FROM chatstack_runs WHERE run = :run") or 0)

    def _is_waiting(self) -> bool:
        return self._first(f"SELECT status FROM {self.of_dbos}workflow_status WHERE workflow_uuid = :run") == "ENQUEUED"

    def _first(self, statement: str) -> Any:
        rows = self.database.run(statement, {"run": RUN})
        return rows[0][0] if rows else None


def play(database: str, story: Callable[[World], None], *, locked: int = 0) -> None:
    async def played() -> None:
        runs = DurableRuns(database)
        async with runs:
            client = await runs.client()
            await runs.start("letters", RUN)
            await asyncio.to_thread(lambda: story(World(runs, client, locked)))

    asyncio.run(played())


def test_a_worker_that_has_not_begun_to_ask_its_queues_takes_nothing_over(database: str) -> None:
    def story(world: World) -> None:
        world.begins("first")
        assert not world.looks_for(10 * DEAD_AFTER)
        world.watchdog.allow_takeovers()
        assert world.looks_for(HEARTBEAT)
        assert world.takeovers == 1

    play(database, story)


def test_whoever_takes_a_run_from_its_queue_has_it_for_a_while_without_a_heartbeat(database: str) -> None:
    def story(world: World) -> None:
        world.begins("first")
        world.starts()
        for _ in range(2):
            assert world.looks_for(DEAD_AFTER + HEARTBEAT)
            world.begins("first")
            assert not world.looks_for(DEAD_AFTER - 2 * HEARTBEAT), "it was alive when it took it"

    play(database, story)


def test_a_worker_that_is_held_for_dead_and_takes_its_run_again_does_not_use_up_takeovers(database: str) -> None:
    def story(world: World) -> None:
        world.begins("first")
        world.starts()
        for _ in range(5 * MOST):
            assert world.looks_for(2 * DEAD_AFTER)
            world.begins("first")
            world.writes_a_step()
            assert (world.takeovers, world.is_given_up) == (1, False)
        for number in range(MOST):  # who dies counts still, with the first one's last takeover
            assert not world.is_given_up
            assert world.looks_for(2 * DEAD_AFTER)
            world.begins(f"dies-{number}")
        assert world.looks_for(2 * DEAD_AFTER)
        assert world.is_given_up

    play(database, story)


def test_workers_whose_hearts_beat_again_after_a_pause_do_not_use_up_takeovers(database: str) -> None:
    def story(world: World) -> None:
        world.begins("first")
        world.starts()
        for number in range(5 * MOST):
            assert world.looks_for(2 * DEAD_AFTER)
            world.begins(f"late-{number}")
            world.writes_a_step()
            assert not world.looks_for(HEARTBEAT, alive=f"late-{number - 1}" if number else "first")
            assert (world.takeovers, world.is_given_up) == (1, False)

    play(database, story)


def test_a_run_whose_workers_die_is_given_up_whatever_it_did_before(database: str) -> None:
    def story(world: World) -> None:
        world.begins("first")
        world.starts()
        for number in range(MOST + 1):
            assert not world.is_given_up
            assert world.looks_for(2 * DEAD_AFTER)
            assert world.takeovers == number + 1
            world.begins(f"dies-{number}")
            world.writes_a_step()
        assert world.is_given_up

    play(database, story)


def test_a_run_that_makes_no_progress_is_given_up_though_its_worker_is_alive(database: str) -> None:
    def story(world: World) -> None:
        world.begins("first")
        world.starts()
        for number in range(MOST + 1):
            assert not world.is_given_up
            assert world.looks_for(2 * DEAD_AFTER)
            assert world.takeovers == number + 1
            world.begins("first")
        assert world.is_given_up

    play(database, story)


def test_a_takeover_that_waits_for_a_lock_counts_once(database: str) -> None:
    def story(world: World) -> None:
        world.begins("first")
        world.starts()
        assert world.looks_for(2 * DEAD_AFTER + 5 * MOST * HEARTBEAT)
        assert (world.takeovers, world.is_given_up) == (1, False)

    play(database, story, locked=5 * MOST)


def test_a_run_that_its_worker_could_not_write_of_is_left_to_it_for_as_long_when_it_takes_it_again(
    database: str,
) -> None:
    def story(world: World) -> None:
        world.begins("watcher")
        for _ in range(2):
            assert world.looks_for(2 * DEAD_AFTER)
            world.begins("watcher")
            assert not world.looks_for(DEAD_AFTER - 2 * HEARTBEAT)

    play(database, story)


def test_a_run_that_is_forgotten_leaves_no_takeover(database: str) -> None:
    def story(world: World) -> None:
        world.begins("first")
        world.starts()
        assert world.looks_for(2 * DEAD_AFTER)
        assert world.database.run("SELECT run FROM chatstack_takeovers") == [(RUN,)]

    async def forget() -> None:
        async with DurableRuns(database) as runs:
            await runs.forget(RUN)
            assert runs.database.run("SELECT run FROM chatstack_takeovers") == []

    play(database, story)
    asyncio.run(forget())
