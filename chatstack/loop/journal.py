"""The journal of an iterative loop: the entries from which an interrupted run resumes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import islice
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import msgspec

from chatstack.errors import InputError, StoreError
from chatstack.loop.results import EndReason, IterationRecord, ToolCallResult
from chatstack.values.messages import Message
from chatstack.values.parts import ToolResult
from chatstack.values.responses import FinishReason, Usage

LAST_WRITE_SECONDS = 5.0
"""Time that the journal of a cancelled run has to write what its last answer has cost."""


class IterationStarted(msgspec.Struct, frozen=True, tag="iteration_started", omit_defaults=True):
    """The prompt with which an iteration resumes, whatever its tools have changed since, and the loop's name.

    Here and below, ``state`` is ``context.state`` if it has changed since it was last written, else None.
    """

    iteration: int
    prompt: tuple[Message, ...]
    is_final: bool = False
    state: dict[str, Any] | None = None
    loop: str = ""


class ModelAnswered(msgspec.Struct, frozen=True, tag="model_answered", omit_defaults=True):
    """The response of a model call. ``cost`` is in dollars, with summaries; None if no cost was limited."""

    messages: tuple[Message, ...]
    usage: Usage
    overhead_usage: Usage
    finish_reason: FinishReason | None
    model: str = ""
    cost: Decimal | None = None


class AnswerBrokeOff(msgspec.Struct, frozen=True, tag="answer_broke_off", omit_defaults=True):
    """Usage and cost of a model call that broke off; the call is made again."""

    usage: Usage
    overhead_usage: Usage
    cost: Decimal | None = None


class ToolStarted(msgspec.Struct, frozen=True, tag="tool_started"):
    """A tool is about to run: the position of the call among those of its round."""

    round: int
    position: int


class ToolEnded(msgspec.Struct, frozen=True, tag="tool_ended", omit_defaults=True):
    """The result of a tool call."""

    round: int
    position: int
    result: ToolResult
    was_run: bool = True
    state: dict[str, Any] | None = None


class IterationEnded(msgspec.Struct, frozen=True, tag="iteration_ended", omit_defaults=True):
    """The record of an iteration, with what the next one starts from, or the reason why there is none."""

    record: IterationRecord
    last_tool_results: tuple[ToolCallResult, ...]
    state: dict[str, Any] | None = None
    reason: EndReason | None = None


Entry: TypeAlias = IterationStarted | ModelAnswered | AnswerBrokeOff | ToolStarted | ToolEnded | IterationEnded
"""One line of a journal."""


@runtime_checkable
class Journal(Protocol):
    """A store of the runs of an ``IterativeLoop``, by their id. ``SQLiteJournal`` is one.

    An entry is a value that msgspec writes and reads: ``msgspec.json.encode(entry)``, and
    ``msgspec.json.decode(data, type=Entry)`` with the ``Entry`` of ``chatstack.loop.journal``.
    """

    async def entries(self, run_id: str) -> Sequence[Entry]:
        """Return all entries of that run, in order."""
        ...

    async def append(self, run_id: str, number: int, entry: Entry) -> None:
        """Append one entry, durably on return; ``number`` counts from 0.

        Raises ``StoreError`` if the entry of that number exists already: a run goes on in one place only.
        """
        ...


def histories(entries: Sequence[Entry]) -> list[tuple[Message, ...]]:
    """Return the messages of each iteration: its prompt, the answers, and the results of their calls.

    With these, ``ContextMemory.forget_stored`` forgets what was decided about a run; a journal that forgets a run
    should read them first.
    """
    found: list[tuple[Message, ...]] = []
    prompt: tuple[Message, ...] = ()
    answers, results = list[ModelAnswered](), dict[tuple[int, int], ToolResult]()
    for entry in (*entries, None):
        match entry:
            case ModelAnswered():
                answers.append(entry)
            case ToolEnded():
                results[entry.round, entry.position] = entry.result
            case IterationEnded():  # with the calls that were refused, too
                results = {(0, at): each.result for at, each in enumerate(entry.record.tool_calls)}
            case IterationStarted() | None:
                if prompt:
                    found.append((*prompt, *_answered(answers, [results[at] for at in sorted(results)])))
                prompt, answers, results = () if entry is None else entry.prompt, [], {}
            case ToolStarted() | AnswerBrokeOff():
                pass
            case other:  # pyright: ignore[reportUnnecessaryComparison]
                raise _no_entry("histories", other)
    return found


def _no_entry(owner: str, given: object) -> StoreError:
    read = "msgspec.json.decode(data, type=Entry), with the Entry of chatstack.loop.journal, reads one"
    return StoreError(f"{owner}: a {type(given).__name__} in the place of an entry: {read}")


def _answered(answers: Sequence[ModelAnswered], results: Sequence[ToolResult]) -> Iterator[Message]:
    """Yield the answers, each with the results of its calls behind it, which come in order."""
    rest = iter(results)
    for answer in answers:
        yield from answer.messages
        open_calls = len(answer.messages[-1].calls) if answer.messages else 0
        yield from (Message("tool", (result,)) for result in islice(rest, open_calls))


class Journalled:
    """One run's journal: the entries of an unfinished iteration, and the position to write at.

    Without a journal it remembers nothing, and writes nothing.
    """

    def __init__(self, journal: Journal | None, run_id: str | None, loop: str) -> None:
        self._journal = journal
        self._loop = loop
        self._run_id = run_id or ""
        self._number = 0
        self._writing = asyncio.Lock()
        self._is_broken = False
        self._written = b""
        self.finished: list[IterationEnded] = []
        self.paid: list[ModelAnswered | AnswerBrokeOff] = []
        """All answers of the model in the journal, of every iteration, and those that broke off."""
        self.state: dict[str, Any] | None = None
        """The last ``context.state`` that was written, if any."""
        self.started: IterationStarted | None = None
        """The unfinished iteration, if there is one."""
        self._answers: list[ModelAnswered] = []
        self.broken: list[AnswerBrokeOff] = []
        """Answers of the unfinished iteration that broke off."""
        self._tools_started: set[tuple[int, int]] = set()
        self._tools_ended: dict[tuple[int, int], ToolEnded] = {}

    async def open(self) -> None:
        """Read what was written before. Raises ``StoreError`` if that is the run of another loop."""
        if self._journal is None:
            return
        written = await self._done("entries", self._journal.entries(self._run_id))
        if not isinstance(written, Iterable):
            told = f"entries() gave a {type(written).__name__}: return a list of entries, which may be empty"
            raise StoreError(f"{type(self._journal).__name__}: {told}")
        for entry in cast("Iterable[Entry]", written):
            self._number += 1
            if isinstance(entry, IterationStarted | ToolEnded | IterationEnded) and entry.state is not None:
                self.state = entry.state
            match entry:
                case IterationStarted():
                    if entry.loop != self._loop:
                        told = f"run {self._run_id!r} is one of the loop {entry.loop!r}, not of {self._loop!r}"
                        raise StoreError(f"{told}: give each run an id of its own")
                    self._forget_iteration()
                    self.started = entry
                case ModelAnswered():
                    self._answers.append(entry)
                    self.paid.append(entry)
                case AnswerBrokeOff():
                    self.broken.append(entry)
                    self.paid.append(entry)
                case ToolStarted():
                    self._tools_started.add((entry.round, entry.position))
                case ToolEnded():
                    self._tools_ended[entry.round, entry.position] = entry
                case IterationEnded():
                    self._forget_iteration()
                    self.finished.append(entry)
                case other:  # pyright: ignore[reportUnnecessaryComparison]
                    raise _no_entry(f"{type(self._journal).__name__}.entries()", other)
        self._written = msgspec.json.encode(self.state or {})

    async def _done(self, method: str, coming: object) -> object:
        """Await what a method of the journal gave. Raises ``StoreError`` that names both if it is no coroutine."""
        if isinstance(coming, Awaitable):
            return await cast("Awaitable[object]", coming)
        told = f"{method}() is no coroutine function: write 'async def {method}', without a 'yield'"
        raise StoreError(f"{type(self._journal).__name__}: {told}")

    async def write(self, entry: Entry) -> None:
        """Append one entry. After one that failed, or was cancelled, all others fail: the journal must have no gap.

        Raises ``StoreError``.
        """
        if self._journal is None:
            return
        async with self._writing:
            if self._is_broken:  # a concurrent tool that is not cancelled yet
                raise StoreError(f"run {self._run_id!r}: something before could not be written down, so this is not")
            self._is_broken = True
            await self._done("append", self._journal.append(self._run_id, self._number, entry))
            self._is_broken = False
            self._number += 1
        if isinstance(entry, IterationEnded):
            self._forget_iteration()

    async def broke_off(self, paid: AnswerBrokeOff, error: BaseException) -> None:
        """Append what an answer that the error ended has cost, if anything is known. A run that is cancelled stays so:
        its journal gets ``LAST_WRITE_SECONDS``, and may fail."""
        if paid.usage == paid.overhead_usage == Usage():
            return
        self.broken.append(paid)
        if not isinstance(error, asyncio.CancelledError):
            await self.write(paid)
            return
        with suppress(Exception):  # the caller raises that the run was cancelled
            await asyncio.wait_for(self.write(paid), LAST_WRITE_SECONDS)

    def changed(self, state: dict[str, Any]) -> dict[str, Any] | None:
        """Return the state for the next entry; None if it has not changed. Raises ``InputError`` if it is no JSON."""
        if self._journal is None:
            return None
        try:
            encoded = msgspec.json.encode(state)
            kept = msgspec.json.decode(encoded, type=dict[str, Any])
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise InputError(f"IterativeLoop: context.state cannot be written down as JSON: {error}") from error
        if kept != state:
            raise InputError(
                "IterativeLoop: context.state would not come back from JSON as it is: lists, not tuples or sets; keys "
                "that are text; no dates, bytes or objects"
            )
        if encoded == self._written:
            return None
        self._written = encoded
        return kept

    def answer(self, round: int) -> ModelAnswered | None:
        """Return the answer that the journal has for that round, or None."""
        return self._answers[round] if round < len(self._answers) else None

    def tool(self, round: int, position: int) -> ToolEnded | None:
        """Return the result that the journal has for that call, or None."""
        return self._tools_ended.get((round, position))

    def begun(self, round: int) -> int:
        """Return how many calls of that round an interrupted run had let through: up to the last that it has begun, or
        has answered without running it."""
        known = (*self._tools_started, *self._tools_ended)
        return max((position + 1 for at, position in known if at == round), default=0)

    def was_interrupted(self, round: int, position: int) -> bool:
        """Return True if that call was begun, and its outcome is unknown."""
        return (round, position) in self._tools_started and (round, position) not in self._tools_ended

    def _forget_iteration(self) -> None:
        self.started = None
        self._answers.clear()
        self.broken.clear()
        self._tools_started.clear()
        self._tools_ended.clear()
