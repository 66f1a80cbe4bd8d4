"""Running one tool call: every failure becomes a result that the model can act on."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import msgspec

from chatstack import semconv
from chatstack.client.collecting import outside_collector
from chatstack.client.threads import in_own_thread
from chatstack.client.time_limits import told_as
from chatstack.client.wiring import Resolver, ask, instance_in, is_bound, nearest
from chatstack.errors import (
    ChatStackError,
    ToolDeniedError,
    ToolError,
    ToolLoopError,
    ToolTimeoutError,
    UnknownToolError,
    WiringError,
)
from chatstack.telemetry.content import as_attributes, tool_content
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.spans import end_span, error_type, start_span
from chatstack.telemetry.standard_logging import write_tool_failure
from chatstack.telemetry.turns import attached, beside, current_turn, within
from chatstack.tools.free_text import arguments_of
from chatstack.tools.output import is_large, output_of
from chatstack.tools.parameters import ToolContext, has_default
from chatstack.tools.tool import Tool
from chatstack.values.parts import ToolCall, ToolResult
from chatstack.values.surrogates import without_lone_surrogates

T = TypeVar("T")

_UNKNOWN = "_OTHER"
"""Name of an unknown tool in spans, metrics and events: the model's own text would be unbounded cardinality, and could
hold anything."""
_CORRECT = "Correct them and call again."
_NOT_GIVEN = "its result cannot be given to you; calling it again would not help."
_RETURN = "the tool must return text, or plain values with text as keys"

graph_signals: ContextVar[tuple[type[Exception], ...]] = ContextVar("graph_signals", default=())
"""Exceptions by which a tool pauses or leaves the graph around this turn; every tool loop in it lets them propagate.
``GraphNode.ask`` sets it. It is a context variable because the code that built the tool loop may not know of the
graph."""

Approval: TypeAlias = Callable[[ToolCall, ToolContext], bool | str | Awaitable[bool | str]]
"""A check before each call: True runs it; False, or a text for the model to read, refuses it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a call: its result, and the reason for a failure."""

    result: ToolResult
    failure: BaseException | None = None
    was_run: bool = True
    unwritable: str = ""
    """Reason why what the tool returned cannot be written, or ""."""


@dataclass(frozen=True, slots=True)
class ToolRunner:
    """Runs calls of the tools it holds. Cancellation passes through; it never counts as a tool's failure."""

    tools: Mapping[str, Tool[..., Any]]
    telemetry: Telemetry
    resolve: Resolver | None = None
    timeout_seconds: float | None = None
    include_error_details: bool = False
    approve: Approval | None = None
    propagate: tuple[type[Exception], ...] = ()
    owner: str = "FunctionInvoker"

    def known_name(self, call: ToolCall) -> str:
        """Return the tool's name for spans and warnings."""
        return call.name if call.name in self.tools else _UNKNOWN

    async def run(self, call: ToolCall, context: ToolContext) -> Outcome:
        """Run one call inside its own span."""
        found = self.tools.get(call.name)
        name = self.known_name(call)
        turn = current_turn()
        about = {
            semconv.OPERATION_NAME: "execute_tool",
            semconv.TOOL_NAME: name,
            semconv.TOOL_CALL_ID: call.id,
            semconv.TOOL_TYPE: "function",
        }
        if found is not None and found.description:
            about[semconv.TOOL_DESCRIPTION] = found.description
        span = start_span(self.telemetry.tracer, f"execute_tool {name}", within(turn, about))
        if turn is not None:
            turn.tell("tool_started", name)
        started = time.perf_counter()
        stopped: BaseException | None = None
        outcome: Outcome | None = None
        try:
            with attached(beside(span)):
                outcome = await self._outcome(call, context)
            if outcome.unwritable:
                self._warn_of_unwritable(name, outcome.unwritable)
            return outcome
        except BaseException as error:
            stopped = error
            raise
        finally:
            seconds = time.perf_counter() - started
            failure = stopped if outcome is None else outcome.failure
            if self.telemetry.captures_on_spans and span.is_recording():
                span.set_attributes(as_attributes(tool_content(call, outcome.result if outcome is not None else None)))
            kind = end_span(span, failure)
            measure = self.telemetry.instruments.tool_duration.record
            outside_collector(measure, seconds, {semconv.TOOL_NAME: name}, error=kind)
            if turn is not None:
                turn.tell("tool_ended", name, error=error_type(failure), numbers={"seconds": seconds})

    async def _outcome(self, call: ToolCall, context: ToolContext) -> Outcome:
        found = self.tools.get(call.name)
        if found is None:
            # Only the model reads the name that it wrote: the error may end up in a log.
            known = ", ".join(self.tools) or "none"
            unknown = UnknownToolError(f"the model called a tool that is not there; known: {known}")
            return self._failed(call, unknown, f"no tool {call.name!r}; {nearest(call.name, self.tools)}")
        try:
            arguments = arguments_of(found, call)
        except Exception as error:  # noqa: BLE001 - the model may write any text, and a class may validate as it likes
            return self._failed(call, error, f"the arguments do not fit: {self._reason(error)}. {_CORRECT}")
        try:
            arguments.update(await self._limited(found, "waited for its services for", self._injected(found, context)))
        except ToolTimeoutError as error:
            return self._failed(call, error, f"not run: {_said(error)}")
        denied = await self._denied(call, context)
        if denied:
            return self._failed(call, ToolDeniedError(f"{found.name} was not allowed"), denied, was_run=False)
        try:
            return await self._limited(found, "took longer than", self._call(call, found, arguments))
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            return self._failed(call, error, f"{call.name} was cancelled.")  # the tool cancelled itself
        except Exception as error:  # noqa: BLE001 - every other failure becomes a result, and is kept as the cause
            passing = (*self.propagate, *graph_signals.get())
            stopping = next((each for each in (error, *_leaves(error)) if isinstance(each, passing)), None)
            if stopping is None:
                return self._raised(call, error)
        raise stopping  # outside of the except block: a group would become the context of what it holds

    def _raised(self, call: ToolCall, error: Exception) -> Outcome:
        """Return the outcome of a call that raised. The texts of ``ToolError`` are meant for the model."""
        leaves = _leaves(error)
        failure = leaves[0] if len(leaves) == 1 else error
        for each in leaves:
            if self.telemetry.log_warnings and not isinstance(each, ToolError):
                write_tool_failure(call.name, each)
        texts = [_said(each) for each in leaves if isinstance(each, ToolError)]
        return self._failed(call, failure, " ".join(texts) or f"{call.name} failed{self._details(*leaves)}")

    def _written(self, call: ToolCall, returned: object) -> Outcome:
        """Return the outcome of a call that has returned. Where its result cannot be written, the model is told that
        the tool ran: else it calls it again, and what the tool does is done twice."""
        try:
            return Outcome(ToolResult(call.id, call.name, output_of(returned)))
        except ToolError as error:
            failure, why, details = cast("Exception", error), _said(error), ""
        except Exception as error:  # noqa: BLE001 - a value may raise anything while it is read
            failure, details = error, self._details(error)
            kind = type(returned).__name__
            why = f"The result ({kind}) cannot be written as JSON ({type(error).__name__}); {_RETURN}"
        told = f"{_NOT_GIVEN} {why}{details}"
        return replace(self._failed(call, failure, f"{call.name} was run, but {told}"), unwritable=why)

    async def _denied(self, call: ToolCall, context: ToolContext) -> str:
        """Return the reason why the call must not be run, or "". No time limit applies: a person may be answering."""
        if self.approve is None:
            return ""
        with self._uncancelled("approve"):
            said = self.approve(call, context)
            if inspect.isawaitable(said):
                said = await said
        if said is True:
            return ""
        if said is not False and not isinstance(said, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"{self.owner}: approve gave a {type(said).__name__}, not True, False or a text",
                layer=self.owner,
                parameter="approve",
            )
        return said or f"{call.name} was not allowed. Go on without it."

    async def _call(self, call: ToolCall, found: Tool[..., Any], arguments: dict[str, Any]) -> Outcome:
        """Run the function, and write what it returns: in its thread if it is a plain one; else on the event loop if
        that is soon done."""
        thread = f"chatstack-tool-{found.name}"
        if found.is_async:
            returned = await found.function(**arguments)
        else:
            made = await in_own_thread(partial(self._call_here, call, found, arguments), thread)
            if isinstance(made, Outcome):
                return made
            returned = await made  # a plain function around a coroutine function, as many decorators make
        write = partial(self._written, call, returned)
        return await in_own_thread(write, thread, or_here=True) if is_large(returned) else write()

    def _call_here(
        self, call: ToolCall, found: Tool[..., Any], arguments: dict[str, Any]
    ) -> Outcome | Awaitable[object]:
        returned = found.function(**arguments)
        return returned if inspect.isawaitable(returned) else self._written(call, returned)

    @contextmanager
    def _uncancelled(self, what: str) -> Generator[None]:
        """Raise an error where the program's own code is cancelled by itself, as a dialog is: it would pass for a
        cancellation of the turn, which nobody has asked for."""
        try:
            yield
        except asyncio.CancelledError as error:
            if _is_being_cancelled():
                raise
            raise ToolLoopError(f"{self.owner}: {what} was cancelled, and gave nothing") from error

    async def _limited(self, found: Tool[..., Any], what: str, work: Awaitable[T]) -> T:
        """Await a part of a call within its time limit; ``what`` says what took too long."""
        seconds = found.timeout_seconds or self.timeout_seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                with told_as(ToolTimeoutError.__name__, limit):
                    return await work
        except TimeoutError as error:
            if limit.expired():
                raise ToolTimeoutError(f"{found.name} {what} {seconds:g} seconds.") from error
            raise

    async def _injected(self, found: Tool[..., Any], context: ToolContext) -> dict[str, object]:
        """Return the arguments that the container and the loop supply, those of asynchronous providers awaited. An
        error here is the program's own, so it propagates."""
        given: dict[str, object] = {}
        for name, service in found.services.items():
            with self._uncancelled(f"the provider of {service.__name__}"):
                instance = ask(self.resolve or _nothing, service)
                if asyncio.isfuture(instance) or inspect.iscoroutine(instance):
                    # A future may be that of all who ask for the service: what ends this call must not cancel it.
                    made = await (asyncio.shield(instance) if asyncio.isfuture(instance) else instance)
                    instance = instance_in(made, service)
            if is_bound(instance):
                given[name] = instance
            elif not has_default(found.function, name):
                raise WiringError(
                    f"tool {found.name!r}: {name} ({service.__name__}) is required; bind it in the container "
                    "that the stack was built with",
                    layer=self.owner,
                    parameter=name,
                )
        if found.context_parameter is not None:
            given[found.context_parameter] = context
        return given

    def _warn_of_unwritable(self, name: str, why: str) -> None:
        self.telemetry.warn(
            "tool_result_unwritable",
            f"{name} was run, but the model cannot be given its result. {why}",
            {semconv.TOOL_NAME: name},
            span_name="tool_loop",
        )

    def _details(self, *errors: Exception) -> str:
        if not self.include_error_details:
            return "."
        return f": {'; '.join(f'{type(each).__name__}: {_said(each)}' for each in errors)}"

    def _reason(self, error: Exception) -> str:
        if self.include_error_details or isinstance(error, msgspec.DecodeError):
            return _said(error)
        return type(error).__name__

    def _failed(self, call: ToolCall, failure: BaseException, text: str, *, was_run: bool = True) -> Outcome:
        said = without_lone_surrogates(f"Error: {text}")
        return Outcome(ToolResult(call.id, call.name, said, is_error=True), failure, was_run)


def _nothing(_kind: type) -> None:
    """Resolve no service, in a loop that has no container."""


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _leaves(error: Exception) -> list[Exception]:
    """Return what an exception group holds, as that of a ``TaskGroup``. Any other error, and one of ours, is its own
    leaf."""
    groups: list[Exception] = [error]
    found: list[Exception] = []
    for each in groups:
        if isinstance(each, ExceptionGroup) and not isinstance(each, ChatStackError):
            groups += cast("ExceptionGroup[Exception]", each).exceptions
        else:
            found.append(each)
    return found


def _said(error: Exception) -> str:
    """Return the text of an exception, or its class name if its own ``__str__`` fails."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a custom exception's __str__ may raise anything, too
        return type(error).__name__
