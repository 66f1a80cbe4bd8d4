"""Running one tool call: whatever goes wrong becomes a result that the model can act on."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from opentelemetry.trace import set_span_in_context

from chatstack import semconv
from chatstack.client.wiring import Resolver, ask, is_bound, nearest
from chatstack.errors import ToolTimeoutError, UnknownToolError, WiringError
from chatstack.telemetry.emission import Telemetry, end_span, error_type, internal_span
from chatstack.telemetry.turns import attached, current_turn
from chatstack.tools.tool import Tool, ToolContext
from chatstack.values.parts import File, Image, ProviderItem, Text, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call came to: its result, and why it failed if it did."""

    result: ToolResult
    failure: BaseException | None = None


@dataclass(frozen=True, slots=True)
class ToolRunner:
    """Runs calls of the tools it holds. Cancellation passes through; it is never a tool's failure."""

    tools: Mapping[str, Tool[..., Any]]
    telemetry: Telemetry
    resolve: Resolver | None = None
    timeout_seconds: float | None = None
    include_error_details: bool = False

    async def run(self, call: ToolCall, context: ToolContext) -> Outcome:
        """Run one call inside its own span."""
        found = self.tools.get(call.name)
        span = internal_span(
            self.telemetry.tracer,
            f"execute_tool {call.name}",
            {
                semconv.OPERATION_NAME: "execute_tool",
                semconv.TOOL_NAME: call.name,
                semconv.TOOL_CALL_ID: call.id,
                semconv.TOOL_TYPE: "function",
                **({semconv.TOOL_DESCRIPTION: found.description} if found is not None and found.description else {}),
            },
        )
        turn = current_turn()
        if turn is not None:
            turn.tell("tool_started", call.name)
        started = time.perf_counter()
        stopped: BaseException | None = None
        outcome: Outcome | None = None
        try:
            with attached(set_span_in_context(span)):
                outcome = await self._outcome(call, context)
            return outcome
        except BaseException as error:
            stopped = error
            raise
        finally:
            seconds = time.perf_counter() - started
            failure = stopped if outcome is None else outcome.failure
            kind = end_span(span, failure)
            # A model can invent any number of names: those are one series of the metric.
            labels = {semconv.TOOL_NAME: call.name if found is not None else "_OTHER"} | (
                {semconv.ERROR_TYPE: kind} if kind else {}
            )
            self.telemetry.tool_duration.record(seconds, labels)
            if turn is not None:
                turn.round = context.round  # a tool that asks a model itself has counted rounds of its own
                turn.tell("tool_ended", call.name, error=error_type(failure), numbers={"seconds": seconds})

    async def _outcome(self, call: ToolCall, context: ToolContext) -> Outcome:
        found = self.tools.get(call.name)
        if found is None:
            unknown = UnknownToolError(f"no tool {call.name!r}; {nearest(call.name, self.tools)}")
            return self._failed(call, unknown, str(unknown))
        try:
            arguments = found.arguments_from(call.arguments)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            return self._failed(call, error, f"the arguments do not fit: {error}. Correct them and call again.")
        arguments.update(self._injected(found, context))
        try:
            output = _output(await self._call(found, arguments))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return self._failed(call, error, f"{call.name} was cancelled.")  # it cancelled itself
        except ToolTimeoutError as error:
            return self._failed(call, error, str(error))
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is the model's to read, and kept as the cause
            details = f": {type(error).__name__}: {error}" if self.include_error_details else "."
            return self._failed(call, error, f"{call.name} failed{details}")
        return Outcome(ToolResult(call.id, call.name, output))

    async def _call(self, found: Tool[..., Any], arguments: dict[str, Any]) -> object:
        seconds = found.timeout_seconds or self.timeout_seconds
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                if found.is_async:
                    return await found.function(**arguments)
                output = await asyncio.to_thread(found.function, **arguments)
                # A plain function around a coroutine function, as many decorators make.
                return await output if inspect.isawaitable(output) else output
        except TimeoutError as error:
            if limit.expired():
                raise ToolTimeoutError(f"{found.name} took longer than {seconds:g} seconds.") from error
            raise

    def _injected(self, found: Tool[..., Any], context: ToolContext) -> dict[str, object]:
        """What the container and the loop give to a tool. An error here is the program's own: it surfaces."""
        given: dict[str, object] = {}
        for name, service in found.services.items():
            given[name] = ask(cast("Resolver", self.resolve), service)
            if not is_bound(given[name]):
                raise WiringError(
                    f"tool {found.name!r}: nothing to give for {name} (a {service.__name__}); bind it in the container "
                    "that the stack was built with",
                    layer="FunctionInvoker",
                    parameter=name,
                )
        if found.context_parameter is not None:
            given[found.context_parameter] = context
        return given

    def _failed(self, call: ToolCall, failure: BaseException, text: str) -> Outcome:
        return Outcome(ToolResult(call.id, call.name, f"Error: {text}", is_error=True), failure)


def _output(value: object) -> str | tuple[Text | Image | File | ProviderItem, ...]:
    """What a tool returned, as the model gets it: text as it is, parts as they are, anything else as JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, Text | Image | File):
        return (value,)
    if isinstance(value, list | tuple):
        items = cast("Sequence[object]", value)
        parts = tuple(each for each in items if isinstance(each, Text | Image | File))
        if parts and len(parts) == len(items):
            return parts
    return msgspec.json.encode(value).decode()
