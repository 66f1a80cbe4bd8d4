"""The outermost layer: one root span per turn, and progress events for listeners."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from chatstack import semconv
from chatstack.client.checks import send_to, wraps_a_client
from chatstack.client.collecting import outside_collector, seconds_since
from chatstack.client.fronts import ChatFronts
from chatstack.client.options import check_options
from chatstack.client.protocol import ChatClient, LayerKind
from chatstack.client.stream import ChatStream
from chatstack.errors import WiringError
from chatstack.telemetry.content import as_attributes, content_of, shown_input, shown_output
from chatstack.telemetry.delivery import ProgressDelivery
from chatstack.telemetry.emission import Telemetry, say_dropped
from chatstack.telemetry.events import LISTENER, ProgressEvent, is_listener
from chatstack.telemetry.feed import ProgressFeed
from chatstack.telemetry.spans import SpanWatch, end_span, start_span
from chatstack.telemetry.turns import Turn, attached, inside, of_conversation
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, Usage


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class ProgressReporter(ChatFronts):
    """Opens the turn's ``invoke_agent`` span, onto which warnings and edits roll up, and reports progress.

    Goes outermost. ``on_progress`` is called with every ``ProgressEvent``, in order, from a thread of its own; ``feed``
    gives the same events to any number of async iterators. A slow or failing listener never hurts a call; the events
    that it misses are counted in the warning ``progress_dropped``. Closing the built client waits (5 seconds at most)
    until all events are delivered to ``on_progress``.
    """

    inner: ChatClient
    _: KW_ONLY
    on_progress: Callable[[ProgressEvent], object] | None = field(default=None, repr=False)
    agent_name: str = "chat"
    feed: ProgressFeed = field(default_factory=ProgressFeed, repr=False)
    telemetry: Telemetry = field(default_factory=Telemetry, repr=False)
    _delivery: ProgressDelivery | None = field(init=False, repr=False)

    kind: ClassVar[LayerKind] = "reporter"

    def __post_init__(self) -> None:
        check_options(self)
        listener = self.on_progress
        if listener is not None and not is_listener(listener):
            raise WiringError(
                f"ProgressReporter: on_progress={type(listener).__name__} must be {LISTENER}",
                layer="ProgressReporter",
                parameter="on_progress",
            )
        object.__setattr__(self, "_delivery", None if listener is None else ProgressDelivery(listener))

    async def send(self, request: ChatRequest, /) -> ChatStream:
        is_followed = self.feed.is_followed(request.conversation_id)
        if self._delivery is None and not is_followed and self.telemetry.is_silent:
            return await send_to(self.inner, request)
        run = _TurnRun(self, request, is_heard=is_followed or self._delivery is not None)
        turn = run.turn
        context = inside(turn)
        turn.tell("turn_started", self.agent_name, numbers={"messages": len(request.messages)})
        try:
            with attached(context):
                stream = await send_to(self.inner, request)
            return ChatStream.watched(stream, SpanWatch(context, run.ended))
        except BaseException as error:
            outside_collector(run.ended, None, error)
            raise

    def hears(self, event: ProgressEvent) -> None:
        """Pass an event on to the listeners, without waiting."""
        if self._delivery is not None:
            self._delivery.put(event)
        self.feed.put(event)

    def warn_of_drops(self, conversation_id: str | None) -> None:
        """Warn of the events dropped since the last call of this method."""
        dropped, failure = self.feed.take_dropped(conversation_id), ""
        if self._delivery is not None:
            dropped += self._delivery.take_dropped()
            failure = self._delivery.take_failure()
        if dropped:
            say_dropped(self.telemetry, dropped, failure)

    async def aclose(self) -> None:
        """Wait for pending events to be delivered, and warn of those that could not be."""
        if self._delivery is not None:
            if not await self._delivery.flush():
                self._delivery.give_up()
            self.warn_of_drops(None)


class _TurnRun:
    """The state of a turn until its span ends."""

    __slots__ = ("_reporter", "_request", "_started", "turn")

    def __init__(self, reporter: ProgressReporter, request: ChatRequest, *, is_heard: bool) -> None:
        self._reporter = reporter
        self._request = request
        self._started = time.perf_counter()
        about = {semconv.OPERATION_NAME: "invoke_agent", semconv.AGENT_NAME: reporter.agent_name}
        if "openinference" in reporter.telemetry.display_hints:
            about[semconv.OPENINFERENCE_INPUT] = self._shown_input()
        span = start_span(
            reporter.telemetry.tracer,
            f"invoke_agent {reporter.agent_name}",
            of_conversation(request.conversation_id, about),
        )
        listener = reporter.hears if is_heard else None
        self.turn = Turn(span, request.conversation_id, listener, asked=request.messages)

    def ended(self, answer: ChatResponse | None, error: BaseException | None) -> None:
        """Record the outcome of the turn, and end its span."""
        reporter, turn, span = self._reporter, self.turn, self.turn.root
        usage = answer.usage if answer is not None else Usage()
        # In the turn's own context: this may run in a finalizer, far from it.
        with attached(inside(turn)):
            reporter.warn_of_drops(turn.conversation_id)
        if span.is_recording():
            span.set_attributes(self._numbers_of(usage))
            if reporter.telemetry.captures_on_spans:
                span.set_attributes(as_attributes(content_of(self._request, answer)))
                if answer is not None and "openinference" in reporter.telemetry.display_hints:
                    span.set_attribute(semconv.OPENINFERENCE_OUTPUT, shown_output(turn.story, answer.text))
        kind = end_span(span, error)
        seconds = seconds_since(self._started)
        labels = {semconv.AGENT_NAME: reporter.agent_name}
        reporter.telemetry.instruments.agent_duration.record(seconds, labels, error=kind)
        numbers = {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "rounds": answer.rounds if answer is not None else 0,
            "warnings": turn.warning_count,
            "edits": turn.edit_count,
            "seconds": seconds,
        }
        turn.tell("turn_ended", reporter.agent_name, error=kind, numbers=numbers)

    def _shown_input(self) -> str:
        """Return the input that a list of traces shows: conversation id and length; its text, if text is captured."""
        messages = self._request.messages
        if self._reporter.telemetry.captures_on_spans:
            return shown_input(messages)
        length = f"{len(messages)} message{'' if len(messages) == 1 else 's'}"
        return f"{self._request.conversation_id}, {length}" if self._request.conversation_id else length

    def _numbers_of(self, usage: Usage) -> dict[str, int | float]:
        known: dict[str, int | float] = {}
        if usage.total_tokens:
            known |= {semconv.USAGE_INPUT: usage.input_tokens, semconv.USAGE_OUTPUT: usage.output_tokens}
        if self.turn.utilization:
            known[semconv.CONTEXT_UTILIZATION] = round(self.turn.utilization, 4)
        return known
