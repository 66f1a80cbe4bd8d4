"""A turn of the tool loop as a durable run: its answers and its tools' results are the steps."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass

import msgspec

from chatstack import (
    ChatClient,
    ChatRequest,
    ChatResponse,
    FunctionInvoker,
    InputError,
    Message,
    ProgressFeed,
    ProgressReporter,
    ToolCall,
    ToolLoopError,
    ToolResult,
    Usage,
    WiringError,
    find,
)
from chatstack.client.answers import updates_of
from chatstack.client.stream import ChatStream
from chatstack.loop.calling import called
from chatstack.loop.iteration import INTERRUPTED
from chatstack.loop.journal import AnswerBrokeOff, IterationStarted, Journalled, ModelAnswered, ToolEnded, ToolStarted
from chatstack.tools.execution import Outcome, ToolRunner
from chatstack.tools.parameters import ToolContext
from chatstack.tools.recording import turn_recorder
from chatstack.values.responses import ChatUpdate
from chatstack_dbos.execution import Execution, said
from chatstack_dbos.records import RunEnded


@dataclass(frozen=True, slots=True)
class DurableTurn:
    """A client with a ``FunctionInvoker``, as a worker serves it: each run is one turn.

    What is given to a run is a text, or the messages of a history. A turn that goes on in another worker gives the tool
    loop the answers and the results that were written; a tool that was interrupted is run again only if it is marked
    ``idempotent``. ``approve`` and the layers around the tool loop are asked again.

    With ``streams_text`` the model is asked to stream, and ``DurableRuns.text`` tells the text while it comes.
    """

    client: ChatClient
    _: KW_ONLY
    streams_text: bool = False

    def __post_init__(self) -> None:
        if find(self.client, FunctionInvoker) is None:
            raise WiringError("DurableTurn: the client has no FunctionInvoker; its turns are one answer each")

    @property
    def feed(self) -> ProgressFeed | None:
        """The feed of the client's ``ProgressReporter``, if it has one."""
        reporter = find(self.client, ProgressReporter)
        return None if reporter is None else reporter.feed

    async def run(self, execution: Execution) -> RunEnded:
        """Run the turn to its end, or go on where it was."""
        given = _messages(execution.request.given)
        journal = Journalled(execution.journal, execution.run_id, execution.request.name)
        await journal.open()
        if journal.started is None:
            await journal.write(IterationStarted(0, given, loop=execution.request.name))
        recorder = _Recorder(journal, execution)
        turn_recorder.set(recorder)  # in the context of this run alone
        try:
            response = await self._answer(given, execution.request.conversation_id or execution.run_id)
        except asyncio.CancelledError:
            if execution.stopped_by is None:
                raise
            return recorder.ended("cancelled")
        except ToolLoopError as error:
            return msgspec.structs.replace(recorder.ended("error"), messages=error.messages, error=said(error))
        except Exception as error:  # noqa: BLE001 - it is the outcome of the run
            return msgspec.structs.replace(recorder.ended("error"), error=said(error))
        return msgspec.structs.replace(recorder.ended("answered"), messages=response.messages, text=response.text)

    async def _answer(self, given: tuple[Message, ...], conversation_id: str) -> ChatResponse:
        async with await self.client.send(ChatRequest(given, conversation_id=conversation_id)) as stream:
            return await stream.response()


class _Recorder:
    """Records one turn in a journal."""

    def __init__(self, journal: Journalled, execution: Execution) -> None:
        self._journal = journal
        self._execution = execution
        self._answers: list[ModelAnswered] = []
        self._given: int | None = None
        """The length of the first request: what later ones have behind it are whole rounds."""
        self._whole: tuple[Message, ...] = ()
        """Whole rounds: each of their calls has its result."""

    async def answer(self, client: ChatClient, request: ChatRequest) -> ChatStream:
        broken = [] if self._answers else self._journal.broken  # told once, for a budget around the tool loop
        if self._given is None:
            self._given = len(request.messages)
        self._whole = request.messages[self._given :]
        known = self._journal.answer(len(self._answers))
        if known is None:
            with _not_recorded():
                async with await self._execution.send(client, request) as stream:
                    try:
                        answer = await stream.response()
                    except (Exception, asyncio.CancelledError) as error:
                        paid = stream.so_far
                        await self._journal.broke_off(AnswerBrokeOff(paid.usage, paid.overhead_usage), error)
                        raise
            known = ModelAnswered(
                answer.messages, answer.usage, answer.overhead_usage, answer.finish_reason, answer.model
            )
            await self._journal.write(known)
        self._answers.append(known)
        called = {call.id for message in known.messages for call in message.calls}
        if called <= {result.call_id for message in known.messages for result in message.results}:
            self._whole += known.messages
        return await ChatStream.primed(_played(known, broken))

    async def outcome(self, runner: ToolRunner, position: int, call: ToolCall, context: ToolContext) -> Outcome:
        done = self._journal.tool(context.round, position)
        if done is None:
            outcome = await self._run(runner, position, call, context)
            await self._journal.write(ToolEnded(context.round, position, outcome.result, outcome.was_run))
        else:
            failure = ToolLoopError(str(done.result.output)) if done.result.is_error and done.was_run else None
            outcome = Outcome(done.result, failure, done.was_run)
        return outcome

    def begun(self, round: int) -> int:
        return self._journal.begun(round)

    async def _run(self, runner: ToolRunner, position: int, call: ToolCall, context: ToolContext) -> Outcome:
        found = runner.tools.get(call.name)
        if self._journal.was_interrupted(context.round, position) and (found is None or not found.idempotent):
            return Outcome(ToolResult(call.id, call.name, INTERRUPTED, is_error=True))

        async def approve(asked: ToolCall, about: ToolContext) -> bool | str:
            allowed: bool | str = True
            if runner.approve is not None:
                allowed = await called(runner.approve, asked, about)
            if allowed is True:
                await self._journal.write(ToolStarted(context.round, position))
            return allowed

        with _not_recorded():
            return await dataclasses.replace(runner, approve=approve).run(call, context)

    def ended(self, reason: str) -> RunEnded:
        """Return the outcome with what was recorded; a turn that was stopped has its whole rounds."""
        paid: list[ModelAnswered | AnswerBrokeOff] = [*self._answers, *self._journal.broken]
        return RunEnded(
            reason=reason,  # type: ignore[arg-type]
            messages=self._whole,
            usage=sum((each.usage for each in paid), Usage()),
            overhead_usage=sum((each.overhead_usage for each in paid), Usage()),
        )


@contextmanager
def _not_recorded() -> Generator[None]:
    """Keep a tool loop further in, or in a tool, from the record of this turn."""
    token = turn_recorder.set(None)
    try:
        yield
    finally:
        turn_recorder.reset(token)


async def _played(answer: ModelAnswered, broken: Sequence[AnswerBrokeOff]) -> AsyncGenerator[ChatUpdate, None]:
    for before in broken:
        yield ChatUpdate(usage=before.usage, overhead_usage=before.overhead_usage)
    if answer.overhead_usage.total_tokens:
        yield ChatUpdate(overhead_usage=answer.overhead_usage)
    last = answer.messages[-1]
    for message in answer.messages:
        closing = {"usage": answer.usage, "finish_reason": answer.finish_reason} if message is last else {}
        for update in updates_of(message, model=answer.model, **closing):  # type: ignore[arg-type]
            yield update


def _messages(given: object) -> tuple[Message, ...]:
    try:
        found = msgspec.convert(given, str | Message | tuple[Message, ...])
    except msgspec.ValidationError as error:
        raise InputError(f"DurableTurn: a run is given a text or messages: {error}") from error
    if isinstance(found, str):
        return (Message.user(found),)
    return (found,) if isinstance(found, Message) else found
