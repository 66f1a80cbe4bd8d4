"""The journal of one execution of a durable run: each entry is a step of its DBOS workflow."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from dbos import DBOS, DBOSClient, StepInfo
from dbos import error as dbos_error
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError

from chatstack import StoreError
from chatstack.loop.journal import Entry, ModelAnswered
from chatstack_dbos.records import Step

T = TypeVar("T")
DATABASE_FAILED = (OperationalError, InternalError, InterfaceError)
"""Errors of the database itself, and not of what it was given: a full disk, a server that takes no writes."""


class DBOSJournal:
    """A ``Journal`` of the run whose workflow makes it.

    A step is written only while this execution owns the run. If another executor has taken the run over, ``append``
    raises what DBOS ends an execution with (``DBOSWorkflowConflictIDError``), and nothing is written.
    """

    def __init__(self, client: DBOSClient, key: str) -> None:
        self._client = client
        self.key = key
        """The id of the workflow."""
        self._workflow = contextvars.copy_context()
        self.written_at = time.monotonic()
        """When this execution owned the run for certain, the last time."""
        self.answers = 0
        """How many answers of the model it has."""
        self.is_cut_off = False
        """True once the database has failed, as one on a full disk does: what has happened is not written down."""

    async def entries(self, run_id: str) -> Sequence[Entry]:
        """Return the entries of all steps that were written, and go on behind them. Raises ``StoreError``."""
        with self.cut_off():
            steps = await self._client.list_workflow_steps_async(self.key)
        found = [_entry(run_id, number, step) for number, step in enumerate(steps)]
        for _ in found:
            # DBOS counts the steps of an execution. What the journal has is not asked for again, only counted.
            self._workflow.copy().run(DBOS.reserve_step)
        self.answers = sum(isinstance(each, ModelAnswered) for each in found)
        return found

    async def append(self, run_id: str, number: int, entry: Entry) -> None:
        """Write the next entry, durably on return."""
        step, is_ours, started = Step(number, entry), False, time.monotonic()

        def write() -> Step:
            nonlocal is_ours
            is_ours = True
            return step

        name = str(type(entry).__struct_config__.tag)
        with self.cut_off():
            await self._inside(lambda: DBOS.run_step_async({"name": name}, write))
        if not is_ours:
            # DBOS gives a step that is there to whoever asks; who owns the run, it checks only before it writes. What
            # was there was read by ``entries``: so this step is of the execution that has the run by now.
            raise dbos_error.DBOSWorkflowConflictIDError(self.key)
        self.written_at = started
        self.answers += isinstance(entry, ModelAnswered)

    @contextmanager
    def cut_off(self) -> Generator[None]:
        """Note that the database has failed. Where the connection alone was lost, DBOS tries again by itself."""
        try:
            yield
        except DATABASE_FAILED as error:
            self.is_cut_off = True
            raise StoreError(f"the database of runs failed ({type(error).__name__})") from error

    async def _inside(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await it inside the workflow: the loop itself runs outside, so that its tools' calls of DBOS are no steps."""
        return await asyncio.create_task(make(), context=self._workflow.copy())


def _entry(run_id: str, number: int, step: StepInfo) -> Entry:
    record = step["output"]
    if not isinstance(record, Step) or record.number != number or step["function_id"] != number + 1:
        raise StoreError(f"step {number + 1} of run {run_id!r} is none of this package's, or cannot be read")
    return record.entry


def outside_workflow() -> contextvars.Context:
    """Return the current context without what DBOS keeps in it."""
    outside = contextvars.Context()
    for variable, value in contextvars.copy_context().items():
        if not type(value).__module__.startswith("dbos."):
            outside.run(variable.set, value)
    return outside
