"""What workers serve: an iterative loop."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from msgspec.structs import replace

from chatstack import (
    ChatClient,
    ChatRequest,
    ChatStream,
    InputError,
    IterationRecord,
    IterativeContext,
    IterativeLoop,
    ProgressFeed,
    Usage,
    WiringError,
)
from chatstack.client.checks import wraps_a_client
from chatstack.client.fronts import ChatFronts
from chatstack.loop.calling import called
from chatstack_dbos.execution import Execution, said
from chatstack_dbos.records import RunEnded

ContextOf = Callable[[str, Any], IterativeContext | Awaitable[IterativeContext]]
"""A function from a run's id, and what was given, to its context: with that ``run_id``, and its workspace."""


@dataclass(frozen=True, slots=True)
class DurableLoop:
    """An ``IterativeLoop`` as a worker serves it. The loop must have no journal: it gets one for each run.

    ``context`` is called by each worker that goes on with the run, so its workspace must be one that all of them reach.
    With ``streams_text`` its client is asked to stream, and ``DurableRuns.text`` tells the text while it comes.
    """

    loop: IterativeLoop
    context: ContextOf
    _: KW_ONLY
    streams_text: bool = False

    def __post_init__(self) -> None:
        if self.loop.journal is not None:
            raise WiringError("DurableLoop: the loop has a journal; its runs are kept by DBOS", parameter="loop")

    @property
    def feed(self) -> ProgressFeed:
        """The feed of the loop."""
        return self.loop.feed

    async def run(self, execution: Execution) -> RunEnded:
        """Run the loop to its end, or go on where it was."""
        run_id = execution.run_id
        if execution.request.conversation_id is not None:
            raise InputError("DurableLoop: the conversation_id of a loop's run is its run_id; give a turn's only")
        context = await called(self.context, run_id, execution.request.given)
        if context.run_id != run_id:
            raise InputError(f"DurableLoop: context gave one with run_id={context.run_id!r}, not {run_id!r}")
        execution.on_stop(context.cancellation.cancel)
        client = _Confirmed(self.loop.client, execution=execution)
        loop = dataclasses.replace(self.loop, client=client, journal=execution.journal)
        try:
            result = await loop.run(context)
        except asyncio.CancelledError:
            if execution.stopped_by is None:
                raise
            return _ended(RunEnded(reason="cancelled"), context.records)
        error = "" if result.error is None else said(result.error)
        return _ended(
            RunEnded(reason=result.reason, text=result.text, cost=result.cost, error=error), result.iterations
        )


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class _Confirmed(ChatFronts):
    """Calls the model by way of an execution."""

    inner: ChatClient
    _: KW_ONLY
    execution: Execution = field(repr=False)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.execution.send(self.inner, request)


def _ended(ended: RunEnded, records: Sequence[IterationRecord]) -> RunEnded:
    """Return the outcome with the records, and the sums over them."""
    return replace(
        ended,
        iterations=tuple(records),
        usage=sum((each.usage for each in records), Usage()),
        overhead_usage=sum((each.overhead_usage for each in records), Usage()),
    )
