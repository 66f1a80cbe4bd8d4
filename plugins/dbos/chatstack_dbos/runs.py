"""Durable runs as their callers see them: start, follow, cancel, wait, forget."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, TypeGuard, cast

import msgspec
from dbos import DBOS, DBOSClient, EnqueueOptions, WorkflowStatus
from dbos import error as dbos_error
from sqlalchemy.exc import SQLAlchemyError

from chatstack import ContextMemory, InputError, ProgressEvent, StoreError, WiringError
from chatstack.client.closing import Closing
from chatstack.loop.journal import histories
from chatstack.values.surrogates import lone_surrogate_in
from chatstack_dbos.database import Database
from chatstack_dbos.names import DEFAULT_APPLICATION, OF_OTHERS, WORKFLOW, key_of, queue_of, version_of
from chatstack_dbos.progress import RunEvents, RunText
from chatstack_dbos.records import RecordSerializer, RunEnded, RunRequest, Step

_OVER = ("SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED")
_WAIT_SECONDS = 0.25
_PATIENCE_SECONDS = 30.0


class DurableRuns(Closing):
    """Runs in a database, for their callers: any process that can reach it, with a ``RunWorker`` or without.

    ``database`` is ``sqlite:///runs.db``, for the processes of one machine, or ``postgresql://user@host/name``, for
    those of many. ``application`` keeps apart what shares a database: its runs, their ids, and the workers that serve
    them. The tables are made when they are first needed. Prompts, answers and results are in it in full.

    Raises ``WiringError`` for an address that is none, ``StoreError`` for a database that fails.
    """

    def __init__(self, database: str, *, application: str = DEFAULT_APPLICATION) -> None:
        self.database = Database(database)
        if not isinstance(application, str) or len(application) < 3 or not set(application) <= _NAME:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"DurableRuns: application={application!r} must be three letters or more: a-z, 0-9, - and _",
                parameter="application",
            )
        self.application = application
        self.serializer = RecordSerializer()
        self._opening = asyncio.Lock()
        self._client: DBOSClient | None = None

    async def start(
        self,
        name: str,
        run_id: str,
        given: object = None,
        *,
        conversation_id: str | None = None,
        timeout_seconds: float | None = None,
    ) -> None:
        """Start a run of what workers serve as ``name``; a run that was started so before is not started again.

        ``given`` is what can be written as JSON: for a turn, a text, or messages. ``conversation_id`` is that of a
        turn, which else has its ``run_id``, as a loop has. ``timeout_seconds`` counts from now, waiting included; then
        the run ends with the reason ``deadline``.

        Raises ``InputError`` for the id of a run that was started as another one: of another name, or with something
        else given. Its own deadline stays as it is.
        """
        key = self._key(run_id)
        _check_text("name", name)
        if conversation_id is not None:
            _check_text("conversation_id", conversation_id)
        if timeout_seconds is not None and not is_positive(timeout_seconds):
            raise InputError(f"DurableRuns: timeout_seconds={timeout_seconds!r} must be a number greater than 0")
        try:
            plain = msgspec.json.decode(msgspec.json.encode(given))
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise InputError(
                f"DurableRuns: what is given to run {run_id!r} cannot be written as JSON: {error}"
            ) from error
        client = await self.client()
        deadline = None if timeout_seconds is None else await self._now() + timeout_seconds
        request = RunRequest(name, plain, conversation_id, deadline)
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": queue_of(self.application, name),
            "workflow_id": key,
            "workflow_id_reuse_policy": "reject",
            "app_version": version_of(self.application),
        }
        try:
            await self._asked(client.enqueue_async(options, request))
        except StoreError as error:
            if not isinstance(error.__cause__, dbos_error.DBOSWorkflowIDInUseError):
                raise
            await self._check_same(run_id, request)

    async def result(self, run_id: str, *, timeout_seconds: float | None = None) -> RunEnded:
        """Wait until the run has ended, and return its outcome. Raises ``TimeoutError`` after that time."""
        async with asyncio.timeout(timeout_seconds):
            while True:
                found = await self._status(run_id)
                if found is None:
                    raise StoreError(f"there is no run {run_id!r}")
                if found.status in _OVER:
                    return _outcome(run_id, found)
                await asyncio.sleep(_WAIT_SECONDS)

    async def has_ended(self, run_id: str) -> bool:
        """Return True once the run has ended. False for a run that is not there: it may be started later."""
        found = await self._status(run_id, load_output=False)
        return found is not None and found.status in _OVER

    async def cancel(self, run_id: str) -> None:
        """End the run, wherever it is: what it is doing may finish within ten seconds. It ends with ``cancelled``.

        A run that no worker has begun ends when one does. Cancelling one that has ended does nothing.
        """
        key = self._key(run_id)
        await self.client()
        await self._run(
            "INSERT INTO chatstack_runs (run, stop) VALUES (:run, 'cancelled')"
            " ON CONFLICT (run) DO UPDATE SET stop = coalesce(chatstack_runs.stop, 'cancelled')",
            {"run": key},
        )

    def events(self, run_id: str) -> RunEvents[ProgressEvent]:
        """Return the progress of the run, from its first event on, live from whichever process runs it."""
        key = self._key(run_id)
        return RunEvents(self.database, "chatstack_progress", ProgressEvent, key, lambda: self.has_ended(run_id))

    def text(self, run_id: str) -> RunEvents[RunText]:
        """Return the text of the run's answers, as events are, if it is served with ``streams_text``; else none."""
        key = self._key(run_id)
        return RunEvents(self.database, "chatstack_text", RunText, key, lambda: self.has_ended(run_id))

    async def forget(self, run_id: str, *, memory: ContextMemory | None = None) -> None:
        """Delete all that is kept of the run. With the ``memory`` of its stack, also what was decided about its
        messages, there and in the memory's store.

        One that is running is abandoned: cancel it first, and wait. SQLite's file is rewritten without it, which takes
        time that grows with the file. PostgreSQL's files and its log keep it until they are vacuumed and removed.
        Raises ``StoreError`` if others hold on to it for half a minute.
        """
        key = self._key(run_id)
        client = await self.client()
        if memory is not None:
            steps = await self._asked(client.list_workflow_steps_async(key))
            for messages in histories([each["output"].entry for each in steps if isinstance(each["output"], Step)]):
                await memory.forget_stored(messages)
        await self._patiently(lambda: self._asked(client.delete_workflow_async(key)))
        for table in ("chatstack_progress", "chatstack_text", "chatstack_takeovers", "chatstack_runs"):
            await self._run(f"DELETE FROM {table} WHERE run = :run", {"run": key})
        if self.database.is_sqlite:
            await self._patiently(self._rewrite)

    async def aclose(self) -> None:
        """Close the connections. Runs go on where workers run them."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.destroy)
        await asyncio.to_thread(self.database.close)

    async def client(self) -> DBOSClient:
        """Return the client of DBOS, and make tables that are missing. Raises ``StoreError``."""
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(self._open)
            return self._client

    def _open(self) -> DBOSClient:
        with _failing("cannot be opened"):
            if self.database.is_sqlite:
                self.database.engine.connect().close()  # sets the write-ahead log before DBOS makes its tables
            DBOS.migrate(self.database.address)
            self.database.make_tables()
            return DBOSClient(
                system_database_engine=self.database.engine,
                serializer=self.serializer,
                application_name=self.application,
            )

    def _key(self, run_id: str) -> str:
        _check_text("run_id", run_id)
        if run_id.startswith(OF_OTHERS):
            raise InputError(
                f"DurableRuns: run_id={run_id!r} must not begin with {OF_OTHERS!r}, by which the database tells "
                "the runs of applications apart"
            )
        return key_of(self.application, run_id)

    async def _status(
        self, run_id: str, *, load_input: bool = False, load_output: bool = True
    ) -> WorkflowStatus | None:
        key = self._key(run_id)
        client = await self.client()
        found = await self._asked(
            client.list_workflows_async(workflow_ids=[key], load_input=load_input, load_output=load_output)
        )
        return found[0] if found else None

    async def _check_same(self, run_id: str, asked: RunRequest) -> None:
        """Raise ``InputError`` if the run of that id, which is there, was started as another one."""
        found = await self._status(run_id, load_input=True, load_output=False)
        if found is None:  # forgotten since
            return
        if found.name != WORKFLOW:
            raise InputError(f"DurableRuns: run_id={run_id!r} is the id of another workflow of DBOS, {found.name!r}")
        known: object = found.input["args"][0] if isinstance(found.input, dict) else None
        if not isinstance(known, RunRequest):  # written by a later version
            return
        if known.name != asked.name:
            raise InputError(
                f"DurableRuns: run {run_id!r} is one of {known.name!r}, not of {asked.name!r}: give each run an id of "
                "its own"
            )
        if (known.given, known.conversation_id) != (asked.given, asked.conversation_id):
            what = "given" if known.given != asked.given else "conversation_id"
            raise InputError(
                f"DurableRuns: run {run_id!r} was started with another {what}: give each run an id of its own"
            )

    async def _now(self) -> float:
        return float((await self._run("SELECT {now}"))[0][0])

    async def _run(self, statement: str, given: dict[str, Any] | None = None) -> list[Any]:
        with _failing("failed"):
            return await asyncio.to_thread(self.database.run, statement, given or {})

    async def _asked(self, asked: Any) -> Any:
        """Await a call of DBOS, outside any workflow that this is called in."""
        with _failing("failed"):
            return await asyncio.create_task(asked, context=contextvars.Context())

    async def _rewrite(self) -> None:
        with _failing("failed"):
            is_done = await asyncio.to_thread(self.database.rewrite)
        if not is_done:
            raise StoreError("deleted, but still in SQLite's log, which another process uses; forget it again")

    async def _patiently(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Try it for half a minute: a process that was stopped within a transaction may have it locked that long."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                await ask()
                return
            except StoreError:
                if time.monotonic() >= until:
                    raise
            await asyncio.sleep(_WAIT_SECONDS)

    def __repr__(self) -> str:
        return f"DurableRuns({self.database.url.render_as_string(hide_password=True)!r})"


_NAME = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-_")


def is_text(given: object) -> TypeGuard[str]:
    """Return True for text that is not blank, and that a database keeps: none does a NUL, or half a character."""
    return isinstance(given, str) and bool(given.strip()) and "\0" not in given and lone_surrogate_in(given) is None


def is_positive(given: object) -> bool:
    """Return True for a number greater than 0."""
    return isinstance(given, int | float) and not isinstance(given, bool) and given > 0


@contextmanager
def _failing(what: str) -> Generator[None]:
    """Raise ``StoreError``, with what the database did, for an error of SQLAlchemy's or of DBOS."""
    try:
        yield
    except (SQLAlchemyError, dbos_error.DBOSException) as error:
        raise StoreError(f"the database of runs {what} ({type(error).__name__})") from error


def _check_text(what: str, given: object) -> None:
    if not is_text(given):
        raise InputError(f"DurableRuns: {what}={given!r} must be text, not blank, without NUL and lone surrogates")


def _outcome(run_id: str, found: WorkflowStatus) -> RunEnded:
    if found.status == "CANCELLED":  # by DBOS itself, not by ours
        return RunEnded(reason="cancelled")
    if isinstance(found.output, RunEnded):
        return found.output
    why = found.error if found.error is not None else found.status
    raise StoreError(f"run {run_id!r} ended without an outcome: {cast(object, why)}")
