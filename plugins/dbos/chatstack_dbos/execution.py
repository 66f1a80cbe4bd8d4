"""One execution of a durable run in this process: its task, and what ends it early."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from dbos import error as dbos_error
from msgspec.structs import replace
from sqlalchemy.exc import SQLAlchemyError

from chatstack import ChatClient, ChatRequest, ChatStream, ProgressFeed
from chatstack.client.checks import send_to
from chatstack_dbos.database import Database
from chatstack_dbos.journal import DBOSJournal, outside_workflow
from chatstack_dbos.progress import ProgressWriter, TextWriter
from chatstack_dbos.records import RunEnded, RunRequest

Stop: TypeAlias = Literal["cancelled", "deadline", "lost"]
"""Why a run is ended early: by a caller, by its deadline, or because its executors died again and again."""

_log = logging.getLogger("chatstack_dbos")
_RETRY_SECONDS = 1.0
GRACE_SECONDS = 10.0
"""Time that a tool has to finish after a run was stopped; then it is cancelled."""


@runtime_checkable
class Served(Protocol):
    """What a worker serves under a name: it carries out one run, on the journal of its execution."""

    @property
    def feed(self) -> ProgressFeed | None:
        """The feed that tells of its turns, or None."""
        ...

    @property
    def streams_text(self) -> bool:
        """True if the text of its answers is told while it comes."""
        ...

    async def run(self, execution: Execution) -> RunEnded:
        """Run it to its end; ``execution.on_stop`` says how to end it early."""
        ...


class Execution:
    """Runs what is served, and ends it early: ``stop`` with an outcome, ``abandon`` without. Both from any thread."""

    def __init__(
        self,
        run_id: str,
        request: RunRequest,
        journal: DBOSJournal,
        database: Database,
        executor: str,
        is_ours: Callable[[str], Awaitable[bool]],
        trusted_seconds: float,
    ) -> None:
        self.run_id = run_id
        self.request = request
        self.journal = journal
        self.stopped_by: Stop | None = None
        self._database = database
        self._executor = executor
        self._text: TextWriter | None = None
        self._is_ours = is_ours
        self._trusted_seconds = trusted_seconds
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[RunEnded] | None = None
        self._on_stop: Callable[[], None] | None = None
        self._is_lost = False

    def stop(self, why: Stop) -> None:
        """Ask the run to end. What it is doing may finish within ``GRACE_SECONDS``."""
        self._loop.call_soon_threadsafe(self._stop, why)

    def abandon(self) -> None:
        """End this execution, not the run: another executor has it."""
        self._loop.call_soon_threadsafe(self._abandon)

    def on_stop(self, stop: Callable[[], None]) -> None:
        """Set what ends the run early; called at once if it has been stopped. Without it, its task is cancelled."""
        self._on_stop = stop
        if self.stopped_by is not None:
            stop()

    async def confirm(self) -> None:
        """Make sure that the run is still ours, before a model is paid: this process may have been stopped since it
        wrote the last step. Within ``trusted_seconds`` of that nobody can have taken the run over."""
        if time.monotonic() - self.journal.written_at <= self._trusted_seconds:
            return
        with self.journal.cut_off():
            is_ours = await self._is_ours(self.journal.key)
        if not is_ours:
            raise dbos_error.DBOSWorkflowConflictIDError(self.journal.key)

    async def send(self, client: ChatClient, request: ChatRequest) -> ChatStream:
        """Ask a model, if the run is still ours; its text is told while it comes, if that is wanted."""
        await self.confirm()
        if self._text is None:
            return await send_to(client, request)
        return self._text.told(await send_to(client, request.but(stream=True)), self.journal.answers)

    async def run(self, served: Served) -> RunEnded:
        """Return the outcome. Raises what DBOS ends an execution with if the run is not ours any more."""
        now, why, takeovers = await self._state()
        if why == "lost":
            told = f"given up: {takeovers} workers died while they ran it, or could not write down what they did"
            return RunEnded(reason="error", error=told)
        about = self._database, self.journal.key, self._executor
        events = ProgressWriter(*about, served.feed, self.request.conversation_id or self.run_id)
        self._text = TextWriter(*about) if served.streams_text else None
        self._task = asyncio.create_task(served.run(self), context=outside_workflow())
        if why is not None:
            self._stop(why)
        deadline = self.request.deadline
        timer = None
        if deadline is not None:
            timer = self._loop.call_later(max(0.0, deadline - now), self._stop, "deadline")
        try:
            return await self._outcome(self._task)
        finally:
            if timer is not None:
                timer.cancel()
            for each in (events, self._text):
                if each is not None:
                    await each.aclose(discard=self._is_lost)

    async def _outcome(self, task: asyncio.Task[RunEnded]) -> RunEnded:
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:  # the worker is closing
            task.cancel()
            await asyncio.wait({task})
            raise
        if self._is_lost or self.journal.is_cut_off:  # then the watchdog gives it back
            raise dbos_error.DBOSWorkflowConflictIDError(self.journal.key)
        try:
            ended = task.result()
        except asyncio.CancelledError:
            if self.stopped_by is None:
                raise
            ended = RunEnded(reason="cancelled")
        except Exception as error:  # noqa: BLE001 - it is the outcome of the run
            return RunEnded(reason="error", error=said(error))
        if ended.reason == "cancelled" and self.stopped_by == "deadline":
            return replace(ended, reason="deadline")
        return ended

    def _stop(self, why: Stop) -> None:
        if self.stopped_by is not None or self._task is None or self._task.done():
            return
        self.stopped_by = why
        if self._on_stop is not None:
            self._on_stop()
            self._loop.call_later(GRACE_SECONDS, self._task.cancel)
        else:
            self._task.cancel()

    def _abandon(self) -> None:
        self._is_lost = True
        if self._task is not None:
            self._task.cancel()

    async def _state(self) -> tuple[float, Stop | None, int]:
        """Return the database's clock, whether the run was stopped, and how often it was taken over.

        Asked until it is answered, as DBOS does it: a database that is away for a while must not end a run.
        """
        while True:
            try:
                return await asyncio.to_thread(self._read_state)
            except SQLAlchemyError as error:
                _log.warning("run %s waits for the database: %s", self.run_id, type(error).__name__)
                await asyncio.sleep(_RETRY_SECONDS)

    def _read_state(self) -> tuple[float, Stop | None, int]:
        rows = self._database.run(
            "SELECT {now}, stop, takeovers FROM (SELECT 1 AS one) AS always LEFT JOIN chatstack_runs ON run = :run",
            {"run": self.journal.key},
        )
        return float(rows[0][0]), rows[0][1], rows[0][2] or 0


def said(error: BaseException) -> str:
    """Return type and text of an exception."""
    return f"{type(error).__name__}: {error}"
