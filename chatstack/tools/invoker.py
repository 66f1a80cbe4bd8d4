"""The tool loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from chatstack import semconv
from chatstack.client.checks import wraps_a_client
from chatstack.client.fronts import ChatFronts
from chatstack.client.options import PositiveFloat, PositiveInt, check_options
from chatstack.client.protocol import ChatClient, LayerKind, provider_info
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import Resolver
from chatstack.errors import InputError, ToolLoopError
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.turns import current_turn
from chatstack.tools.execution import Approval, Outcome, ToolRunner
from chatstack.tools.options import checked_tools
from chatstack.tools.recording import answered, begun_before, carried_out
from chatstack.tools.together import run_together
from chatstack.tools.tool import Tool
from chatstack.tools.turn import OVER_LIMIT, REPEATS, LimitsToolCalls, ToolTurn, limits_in, refused
from chatstack.values.parts import ToolCall
from chatstack.values.requests import (
    NO_OPTIONS,
    ChatOptions,
    ChatRequest,
    DeclaredTool,
    ToolDeclaration,
    declared_names,
)
from chatstack.values.responses import ChatResponse, ChatUpdate


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class FunctionInvoker(ChatFronts):
    """Runs the tools that the model calls, and asks again, until it answers.

    Goes outside the layers that keep the context small, so that they see every round. Parallel calls run together;
    their results come in call order.

    After ``max_tool_calls_per_turn`` calls the model is asked once more, with its tools still declared but not allowed.
    If it calls a tool again, the turn ends with ``ToolLoopError``, which has the messages and the usage up to then. A
    ``ContextWindow`` inside may have a smaller limit. For a request with ``tool_choice="none"``, no call is run.

    A call that fails becomes an error result; ``include_error_details`` shows the model the text of the exception.
    After ``max_consecutive_failures`` rounds in a row in which every call failed, the turn ends with ``ToolLoopError``,
    too, its cause the last failure. Where a tool ran, and its result cannot be written as JSON, the model reads just
    that, and the warning is ``tool_result_unwritable``.

    ``tools`` are functions or ``Tool`` values; each call of a plain function has a thread of its own.
    ``tool_timeout_seconds`` bounds each call, and the wait for its services before that; a function that overruns it
    goes on in its thread, but nothing waits for it.

    ``approve`` is called before each call: True runs it; False or a text refuses it, and the model reads the text. It
    may be async; a plain function runs on the event loop. An exception from ``approve`` ends the turn; if it was
    cancelled by itself, that is a ``ToolLoopError``. So does an exception of a class in ``propagate`` from a tool, e.g.
    a graph's interrupt, instead of becoming a result.

    The third call in a turn with the same arguments causes the warning ``repeated_tool_call``.
    """

    inner: ChatClient
    _: KW_ONLY
    tools: Sequence[Tool[..., Any] | Callable[..., object]] = ()
    max_tool_calls_per_turn: PositiveInt = 10
    max_concurrency: PositiveInt | None = None
    max_consecutive_failures: PositiveInt = 3
    tool_timeout_seconds: PositiveFloat | None = None
    include_error_details: bool = False
    approve: Approval | None = field(default=None, repr=False)
    propagate: tuple[type[Exception], ...] = ()
    resolve: Resolver | None = field(default=None, repr=False)
    telemetry: Telemetry = field(default_factory=Telemetry, repr=False)
    _runner: ToolRunner = field(init=False, repr=False)
    _declared: tuple[ToolDeclaration, ...] = field(init=False, repr=False)
    _options: ChatOptions = field(init=False, repr=False)
    _limits: tuple[LimitsToolCalls, ...] = field(init=False, repr=False)
    _returns_unfinished: bool = field(init=False, repr=False)

    kind: ClassVar[LayerKind] = "tool_loop"

    def __post_init__(self) -> None:
        check_options(self)
        tools = checked_tools(self)
        runner = ToolRunner(
            {each.name: each for each in tools},
            self.telemetry,
            self.resolve,
            self.tool_timeout_seconds,
            self.include_error_details,
            self.approve,
            self.propagate,
        )
        object.__setattr__(self, "tools", tools)
        object.__setattr__(self, "_runner", runner)
        object.__setattr__(self, "_declared", tuple(each.declaration() for each in tools))
        object.__setattr__(self, "_options", NO_OPTIONS.but(tools=self._declared))
        object.__setattr__(self, "_limits", limits_in(self.inner))
        info = provider_info(self.inner)
        object.__setattr__(self, "_returns_unfinished", info is not None and info.returns_unfinished)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        options = request.options
        options = self._options if options is NO_OPTIONS else options.but(tools=self._tools_of(options))
        request = request.but(options=options)
        turn = ToolTurn(
            request, self.max_tool_calls_per_turn, self._limits, returns_unfinished=self._returns_unfinished
        )
        _count(turn, request)
        stream = await answered(self.inner, request)
        return ChatStream(self._rounds(turn, stream), owns=stream, whole=_WholeTurn(self, turn, stream))

    def _tools_of(self, options: ChatOptions) -> tuple[DeclaredTool, ...]:
        """Return the caller's declarations and ours; for a name that both declare, the caller's."""
        given = options.tools
        if not given:
            return self._declared
        names = declared_names(given)
        for own in self._declared:
            if own.name in names and any(_is_another(each, own) for each in given):
                raise InputError(
                    f"FunctionInvoker: the tool {own.name!r} of the options has other parameters than this stack's own "
                    "tool of that name, which would get its calls; rename one of them"
                )
        return given + tuple(each for each in self._declared if each.name not in names)

    async def _rounds(self, turn: ToolTurn, stream: ChatStream) -> AsyncGenerator[ChatUpdate, None]:
        while True:
            try:
                async for update in stream:
                    yield update if turn.round == 0 else replace(update, round=turn.round)
            finally:
                await stream.aclose()
            for update in await self.results(turn, stream.so_far):
                yield update
            request = self.following(turn)
            if request is None:
                return
            stream = await answered(self.inner, request)

    async def results(self, turn: ToolTurn, answer: ChatResponse) -> list[ChatUpdate]:
        """Record the model's answer, and return the results of the calls in it."""
        turn.heard(answer, begun_before(turn.round))
        if not turn.open_calls:
            return []
        turn.refused_for = turn.refusal(answer)
        if turn.refused_for:
            return turn.add(turn.refuse(turn.refused_for, self._runner.tools))
        return turn.add(await self._run(turn))

    def following(self, turn: ToolTurn) -> ChatRequest | None:
        """Return the next round's request, or None if the turn is over."""
        if turn.open_calls:
            if turn.refused_for:
                self._stop_if_insisting(turn)
                return None
            self._stop_if_failing(turn)
        if turn.is_over(self._runner.tools):
            return None
        if turn.limit_reached and turn.open_calls:
            self._warn_of_limit(turn)
        request = turn.next_request()
        _count(turn, request)
        return request

    async def _run(self, turn: ToolTurn) -> list[Outcome]:
        """Run the calls of this round concurrently; calls over the limit get an error result instead."""
        allowed = turn.calls_left
        ours = [call for call in turn.open_calls if not turn.is_callers(call, self._runner.tools)]
        for call in turn.repeated(ours[:allowed]):
            self._warn_of_repetition(call)
        outcomes = await run_together(
            lambda at: carried_out(self._runner, at[0], at[1], turn.context_of(at[1])),
            list(enumerate(ours[:allowed])),
            self.max_concurrency,
        )
        turn.calls_run += len(outcomes)
        return outcomes + [refused(call, OVER_LIMIT) for call in ours[allowed:]]

    def _stop_if_failing(self, turn: ToolTurn) -> None:
        if turn.failed_rounds >= self.max_consecutive_failures and turn.last_failure is not None:
            raise ToolLoopError(
                f"every tool call failed, {turn.failed_rounds} rounds in a row, the last one with "
                f"{type(turn.last_failure).__name__}; the turn was stopped (max_consecutive_failures="
                f"{self.max_consecutive_failures})",
                messages=tuple(turn.added),
                usage=turn.usage,
                overhead_usage=turn.overhead_usage,
            ) from turn.last_failure

    def _stop_if_insisting(self, turn: ToolTurn) -> None:
        """Raise if the model calls tools beyond the limit. A call of the caller's tool is handed back instead."""
        if turn.refused_for != OVER_LIMIT or turn.is_handed_back(self._runner.tools):
            return
        raise ToolLoopError(
            f"{turn.calls_run} tool call{'s' * (turn.calls_run != 1)} ran in this turn, all that "
            "max_tool_calls_per_turn allows, and the model still calls tools instead of answering; raise the limit, or "
            "continue from error.messages",
            messages=tuple(turn.added),
            usage=turn.usage,
            overhead_usage=turn.overhead_usage,
        )

    def _warn_of_limit(self, turn: ToolTurn) -> None:
        self.telemetry.warn(
            "tool_loop_limit_reached",
            f"{turn.calls_run} tool calls in this turn, the limit is {self.max_tool_calls_per_turn}: "
            "the model is asked to answer without more",
            {semconv.TOOLS_CALLS: turn.calls_run, semconv.TOOLS_LIMIT: self.max_tool_calls_per_turn},
            span_name="tool_loop",
        )

    def _warn_of_repetition(self, call: ToolCall) -> None:
        name = self._runner.known_name(call)
        self.telemetry.warn(
            "repeated_tool_call",
            f"{name} is called for the third time in this turn with the same arguments",
            {semconv.TOOL_NAME: name, semconv.TOOLS_CALLS: REPEATS},
            span_name="tool_loop",
        )


class _WholeTurn:
    """Reads a turn at once: each round is awaited as a whole response, and no updates are made."""

    __slots__ = ("_loop", "_stream", "_turn")

    def __init__(self, loop: FunctionInvoker, turn: ToolTurn, stream: ChatStream) -> None:
        self._loop = loop
        self._turn = turn
        self._stream = stream

    @property
    def so_far(self) -> ChatResponse:
        return self._turn.answer(self._stream.so_far)

    async def whole(self) -> ChatResponse:
        while True:
            try:
                answer = await self._stream.response()
            finally:
                await self._stream.aclose()
            await self._loop.results(self._turn, answer)
            request = self._loop.following(self._turn)
            if request is None:
                return self._turn.answer()
            self._stream = await answered(self._loop.inner, request)


def _is_another(given: DeclaredTool, own: ToolDeclaration) -> bool:
    """Return True for a declaration of that name whose parameters are others; how it describes them is its own."""
    if not isinstance(given, ToolDeclaration) or given.name != own.name:
        return False
    return _parameters(given.parameters) != _parameters(own.parameters)


def _parameters(schema: str) -> tuple[set[str], set[str]]:
    """Return the names of the parameters in a JSON schema, and of those that are required."""
    try:
        found = msgspec.json.decode(schema or "{}", type=_Schema)
    except (ValueError, RecursionError):  # no such schema: the provider's to refuse, where ours has no parameters
        return set(), set()
    return set(found.properties), set(found.required)


class _Schema(msgspec.Struct):
    properties: dict[str, msgspec.Raw] = {}
    required: list[str] = []


def _count(loop: ToolTurn, request: ChatRequest) -> None:
    turn = current_turn()
    if turn is not None:
        turn.count(loop.round, loop, request.messages)
