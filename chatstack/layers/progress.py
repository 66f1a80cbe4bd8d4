"""The outermost layer: one root span per turn, and news of it for whoever listens."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from opentelemetry.trace import set_span_in_context

from chatstack import semconv
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.errors import WiringError
from chatstack.telemetry.delivery import ProgressDelivery
from chatstack.telemetry.emission import SpanWatch, Telemetry, end_span, error_type, internal_span
from chatstack.telemetry.events import ProgressEvent
from chatstack.telemetry.turns import Turn, attached, with_turn
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, Usage


@dataclass(frozen=True, slots=True, eq=False)
class ProgressReporter(ChatFronts):
    """Opens the turn's ``invoke_agent`` span, onto which warnings and edits roll up, and reports progress.

    Goes outermost. ``on_progress`` is called with every ``ProgressEvent``, in order, from a thread of its own: a slow
    or failing listener never hurts a call; what it misses is counted, and warned of as ``progress_dropped``. Closing
    the built client waits (5 seconds at most) until everything has been delivered.
    """

    inner: ChatClient
    _: KW_ONLY
    on_progress: Callable[[ProgressEvent], object] | None = field(default=None, repr=False)
    agent_name: str = "chat"
    telemetry: Telemetry = field(default_factory=Telemetry, repr=False)
    _delivery: ProgressDelivery | None = field(init=False, repr=False)

    kind: ClassVar[str] = "reporter"

    def __post_init__(self) -> None:
        listener = self.on_progress
        if listener is not None and (not callable(listener) or _is_async(listener)):
            raise WiringError(
                f"ProgressReporter: on_progress={type(listener).__name__} must be a plain function of one event",
                layer="ProgressReporter",
                parameter="on_progress",
            )
        object.__setattr__(self, "_delivery", None if listener is None else ProgressDelivery(listener))

    async def send(self, request: ChatRequest, /) -> ChatStream:
        delivery = self._delivery
        if delivery is None and self.telemetry.is_silent:
            return await self.inner.send(request)
        span = internal_span(
            self.telemetry.tracer,
            f"invoke_agent {self.agent_name}",
            {
                semconv.OPERATION_NAME: "invoke_agent",
                semconv.AGENT_NAME: self.agent_name,
                **({semconv.CONVERSATION_ID: request.conversation_id} if request.conversation_id else {}),
            },
        )
        turn = Turn(span, request.conversation_id, None if delivery is None else delivery.put)
        context = with_turn(turn, set_span_in_context(span))
        run = _TurnRun(self.telemetry, turn, self.agent_name, delivery)
        turn.tell("turn_started", self.agent_name, numbers={"messages": len(request.messages)})
        try:
            with attached(context):
                stream = await self.inner.send(request)
        except BaseException as error:
            run.ended(None, error)
            raise
        return ChatStream.watched(stream, SpanWatch(context, run.ended))

    async def aclose(self) -> None:
        """Wait for what is still to be delivered, and say what could not be."""
        if self._delivery is not None:
            if not await self._delivery.flush():
                self._delivery.give_up()
            _warn_of_drops(self.telemetry, self._delivery.take_dropped())


class _TurnRun:
    """What is known of a turn until its span ends."""

    __slots__ = ("_agent_name", "_delivery", "_started", "_telemetry", "_turn")

    def __init__(self, telemetry: Telemetry, turn: Turn, agent_name: str, delivery: ProgressDelivery | None) -> None:
        self._telemetry = telemetry
        self._turn = turn
        self._agent_name = agent_name
        self._delivery = delivery
        self._started = time.perf_counter()

    def ended(self, answer: ChatResponse | None, error: BaseException | None) -> None:
        usage = answer.usage if answer is not None else Usage()
        turn, span = self._turn, self._turn.root
        if self._delivery is not None:
            # In the turn's own context: this may run in a finalizer, far from it.
            with attached(with_turn(turn, set_span_in_context(span))):
                _warn_of_drops(self._telemetry, self._delivery.take_dropped())
        if usage.total_tokens and span.is_recording():
            span.set_attribute(semconv.USAGE_INPUT, usage.input_tokens)
            span.set_attribute(semconv.USAGE_OUTPUT, usage.output_tokens)
        kind = end_span(span, error)
        seconds = time.perf_counter() - self._started
        labels = {semconv.AGENT_NAME: self._agent_name} | ({semconv.ERROR_TYPE: kind} if kind else {})
        self._telemetry.agent_duration.record(seconds, labels)
        numbers = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "rounds": answer.rounds if answer is not None else 0,
            "warnings": len(turn.warnings),
            "edits": turn.edits,
            "seconds": seconds,
        }
        turn.tell("turn_ended", self._agent_name, error=error_type(error), numbers=numbers)


def _is_async(listener: object) -> bool:
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__)


def _warn_of_drops(telemetry: Telemetry, dropped: int) -> None:
    if dropped:
        telemetry.warn(
            "progress_dropped",
            f"{dropped} progress events were not delivered: the listener is too slow, or raised",
            {semconv.PROGRESS_DROPPED: dropped},
            span_name="progress",
        )
