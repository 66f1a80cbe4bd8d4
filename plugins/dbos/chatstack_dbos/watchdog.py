"""The watchdog of a worker: its heartbeat, stops for its runs, and the runs of executors that are dead."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from dbos import DBOSClient, WorkflowStatus
from sqlalchemy.exc import SQLAlchemyError

from chatstack_dbos.database import Database
from chatstack_dbos.execution import Stop
from chatstack_dbos.names import WORKFLOW

_log = logging.getLogger("chatstack_dbos")
_KEPT_SECONDS = 86_400.0
"""Time for which a heartbeat is kept at least: another application's workers may take longer for one than ours."""


class Watched(Protocol):
    """An execution, as the watchdog sees it."""

    def stop(self, why: Stop) -> None: ...

    def abandon(self) -> None: ...


class Watchdog:
    """A thread that, every ``heartbeat_seconds``, says in a table that this executor lives, and looks after runs.

    - A run of ours that was stopped is told so; one that another executor has by now is abandoned.
    - A run of ours that is none here for ``dead_after_seconds`` is given back: the database had failed when a step or
      the outcome was to be written.
    - The runs of an executor without a heartbeat for ``dead_after_seconds`` are given back to their queues, by one
      watchdog at a time. That is DBOS's ``resume_workflow``: it takes the ownership from whoever had it, so an executor
      that was only stopped, and wakes up, can write no step and no outcome any more. An executor that takes a run from
      its queue is alive then, however late its heartbeat is.

    It takes over runs of others only after ``allow_takeovers``: once its own worker asks the queues. After a pause of
    its own (stopped, or the database away), and after the database's clock has jumped, it waits ``dead_after_seconds``
    before it declares others dead: they may have had the same pause, and what their heartbeats say is of another time.

    Each takeover counts, save one whose executor was alive after all, and after which the run made progress: only the
    next takeover can tell. ``clock`` is in seconds, and monotonic.
    """

    def __init__(
        self,
        database: Database,
        client: DBOSClient,
        executor: str,
        application: str,
        *,
        heartbeat_seconds: float,
        dead_after_seconds: float,
        max_takeovers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._client = client
        self._executor = executor
        self._application = application
        self._heartbeat = heartbeat_seconds
        self._dead_after = dead_after_seconds
        self._max_takeovers = max_takeovers
        self._clock = clock
        self._runs: dict[str, Watched] = {}
        self._strays: dict[tuple[str, int | None], float] = {}
        """Since when a run is one; anew when it was begun anew."""
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._may_take_over = threading.Event()
        self._healthy_since: float | None = None
        self._beat_at = 0.0
        """The database's clock at the last heartbeat."""
        self._thread = threading.Thread(target=self._watch, name="chatstack-dbos-watchdog", daemon=True)

    def start(self) -> None:
        """Write the first heartbeat, so that no run is begun without one, and start the thread."""
        self._beat()
        self._thread.start()

    def allow_takeovers(self) -> None:
        """Take over runs of the dead from now on: there is a worker here that asks the queues for them."""
        self._may_take_over.set()

    def close(self) -> None:
        """End the thread."""
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def sign_off(self) -> None:
        """Give back the runs that are still this executor's, and remove its heartbeat."""
        for run in self._pending(executor=self._executor):
            self._give_back(run)
        self._database.run("DELETE FROM chatstack_executors WHERE executor = :me", {"me": self._executor})

    def watch(self, key: str, execution: Watched) -> None:
        """Look after an execution of the run with that key. An older one of the same run is abandoned."""
        with self._lock:
            before = self._runs.get(key)
            self._runs[key] = execution
        if before is not None:
            before.abandon()

    def leave(self, key: str, execution: Watched) -> None:
        """Stop looking after it."""
        with self._lock:
            if self._runs.get(key) is execution:
                del self._runs[key]

    def _watch(self) -> None:
        while not self._is_closing.wait(self._heartbeat):
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - it goes on; whoever is without a heartbeat is taken for dead
                self._healthy_since = None
                _log.warning("the watchdog of %s: %s: %s", self._executor, type(error).__name__, error)

    def look(self) -> None:
        """Write the heartbeat, and look after runs once; the thread does this every ``heartbeat_seconds``."""
        self._beat()
        now = self._clock()
        if self._healthy_since is None:
            self._healthy_since = now
        with self._lock:
            runs = dict(self._runs)
        if runs:
            self._tell_stops(runs)
            self._abandon_lost(runs)
        self._give_back_strays(now, runs)
        if self._may_take_over.is_set() and now - self._healthy_since >= self._dead_after:
            self._try(self._take_over_in_turn)

    def _beat(self) -> None:
        ((beat_at,),) = self._database.run(
            "INSERT INTO chatstack_executors (executor, beat_at) VALUES (:me, {now})"
            " ON CONFLICT (executor) DO UPDATE SET beat_at = excluded.beat_at RETURNING beat_at",
            {"me": self._executor},
        )
        late, self._beat_at = beat_at - self._beat_at, beat_at
        if not -self._heartbeat <= late <= self._heartbeat + self._dead_after / 3:
            self._healthy_since = None

    def _tell_stops(self, runs: dict[str, Watched]) -> None:
        for key, why in self._database.run(
            "SELECT run, stop FROM chatstack_runs WHERE stop IS NOT NULL AND run IN :runs_in", {"runs_in": list(runs)}
        ):
            runs[key].stop(why)

    def _abandon_lost(self, runs: dict[str, Watched]) -> None:
        found = self._client.list_workflows(workflow_ids=list(runs), load_input=False, load_output=False)
        ours = {each.workflow_id for each in found if self._has(each)}
        for key, execution in runs.items():
            if key not in ours:
                execution.abandon()

    def _give_back_strays(self, now: float, runs: Mapping[str, Watched]) -> None:
        """A run is a stray for a moment while it begins, and while its outcome is written."""
        pending = {(each.workflow_id, each.dequeued_at): each for each in self._pending(self._executor)}
        strays = {begun: each for begun, each in pending.items() if each.workflow_id not in runs}
        self._strays = {begun: self._strays.get(begun, now) for begun in strays}
        for begun, since in self._strays.items():
            if now - since >= self._dead_after:
                self._try(partial(self._give_back, strays[begun], why="could not write of it"))

    def _has(self, run: WorkflowStatus) -> bool:
        return run.status == "PENDING" and run.executor_id == self._executor

    def _is_my_turn(self) -> bool:
        """Return True if this watchdog looks after the dead of its application: it holds the lease."""
        given = {"application": self._application, "me": self._executor, "seconds": self._heartbeat * 3}
        return bool(
            self._database.run(
                "INSERT INTO chatstack_leases (application, holder, until) VALUES (:application, :me, {now} + :seconds)"
                " ON CONFLICT (application) DO UPDATE SET holder = excluded.holder, until = excluded.until"
                " WHERE chatstack_leases.holder = :me OR chatstack_leases.until < {now}"
                " OR chatstack_leases.until > {now} + :seconds RETURNING holder",  # the clock was set back
                given,
            )
        )

    def _try(self, step: Callable[[], None]) -> None:
        """Do it, or do it next time: one that was stopped within a transaction holds locks until the server ends it."""
        try:
            step()
        except SQLAlchemyError as error:
            _log.warning("the watchdog of %s tries again: %s", self._executor, type(error).__name__)

    def _take_over_in_turn(self) -> None:
        if not self._is_my_turn():
            return
        # By the clock of our own heartbeat: a pause since then makes nobody's older. One of the future is from before
        # the clock was set back.
        about = {"now": self._beat_at, "dead_after": self._dead_after}
        living = {
            row[0]
            for row in self._database.run(
                "SELECT executor FROM chatstack_executors"
                " WHERE beat_at BETWEEN :now - :dead_after AND {now} + :dead_after",
                about,
            )
        }
        orphans = [run for run in self._pending() if run.executor_id not in living and not self._was_just_begun(run)]
        for run in orphans:
            self._beat()  # waiting for a lock takes its time
            self._try(partial(self._give_back, run, why="is dead"))
        if not orphans:
            about = {"now": self._beat_at, "kept": max(_KEPT_SECONDS, 10 * self._dead_after)}
            self._database.run("DELETE FROM chatstack_executors WHERE beat_at < :now - :kept", about)

    def _was_just_begun(self, run: WorkflowStatus) -> bool:
        """Return True if its executor has taken it from the queue, by the database's clock, since it could have died:
        that one is alive, with a late heartbeat."""
        return abs(self._beat_at - (run.dequeued_at or 0) / 1_000) < self._dead_after

    def _pending(self, executor: str | None = None) -> list[WorkflowStatus]:
        return self._client.list_workflows(
            name=WORKFLOW,
            status="PENDING",
            executor_id=executor,
            application_name=self._application,
            load_input=False,
            load_output=False,
        )

    def _give_back(self, run: WorkflowStatus, *, why: str = "") -> None:
        """Put the run into its queue again, if it is still where it was a moment ago."""
        found = self._client.list_workflows(workflow_ids=[run.workflow_id], load_input=False, load_output=False)
        about = "PENDING", run.executor_id, run.dequeued_at
        if not found or (found[0].status, found[0].executor_id, found[0].dequeued_at) != about:
            return
        if why:
            self._count_takeover(found[0])
        self._client.resume_workflow(run.workflow_id, queue_name=run.queue_name)
        if why:
            _log.warning("run %s is taken over from the executor %s, which %s", run.workflow_id, run.executor_id, why)

    def _count_takeover(self, run: WorkflowStatus) -> None:
        """Count it; a run whose workers die, or cannot write, again and again is given up."""
        given = {
            "run": run.workflow_id,
            "executor": run.executor_id or "",
            "begun_at": run.dequeued_at or 0,
            "steps": len(self._client.list_workflow_steps(run.workflow_id, load_output=False)),
            "most": self._max_takeovers,
        }
        last = self._database.run(_LAST_TAKEOVER, given)
        if last and last[0].is_this_one:  # the database failed before the run was given back
            return
        # Where the last one was needless, this one takes its place in the count.
        counted = () if last and last[0].was_needless else (_COUNTED,)
        self._database.change(_TAKEOVER, *counted, given=given)


_LAST_TAKEOVER = """
    SELECT executor = :executor AND begun_at = :begun_at AS is_this_one,
        steps < :steps AND (executor = :executor OR EXISTS (SELECT 1 FROM chatstack_executors AS beating
            WHERE beating.executor = taken.executor AND beating.beat_at > taken.taken_at)) AS was_needless
    FROM chatstack_takeovers AS taken WHERE run = :run
"""
"""The takeover of the run before this one: its executor was alive if it has begun the run anew, or its heart beat."""
_TAKEOVER = """
    INSERT INTO chatstack_takeovers (run, executor, begun_at, steps, taken_at)
    VALUES (:run, :executor, :begun_at, :steps, {now})
    ON CONFLICT (run) DO UPDATE SET executor = excluded.executor, begun_at = excluded.begun_at,
        steps = excluded.steps, taken_at = excluded.taken_at
"""
_COUNTED = """
    INSERT INTO chatstack_runs (run, takeovers) VALUES (:run, 1)
    ON CONFLICT (run) DO UPDATE SET takeovers = chatstack_runs.takeovers + 1,
        stop = CASE WHEN chatstack_runs.takeovers >= :most THEN 'lost' ELSE chatstack_runs.stop END
"""
