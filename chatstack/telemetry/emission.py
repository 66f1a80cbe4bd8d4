"""The one emission point: whoever has something to say about a call says it here, once."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Literal, TypeAlias

from opentelemetry import _logs, metrics, trace
from opentelemetry import context as otel
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from chatstack import semconv
from chatstack.semconv import WarningCode
from chatstack.telemetry.providers import global_meter_provider, global_tracer_provider
from chatstack.telemetry.turns import current_turn
from chatstack.values.responses import ChatResponse

Value: TypeAlias = str | bool | int | float
Attributes: TypeAlias = Mapping[str, Value]
DisplayHint: TypeAlias = Literal["openinference", "langfuse", "logfire"]
ALL_HINTS: frozenset[DisplayHint] = frozenset({"openinference", "langfuse", "logfire"})


class Telemetry:
    """Spans, log records and metrics of one stack; without an OpenTelemetry SDK they all do nothing.

    Providers that are not given are the process's global ones. ``span_events`` also puts each warning as an event on
    its span; ``display_hints`` adds the attributes by which dashboards colour it; ``warning_status="error"`` makes
    warned spans red, at the price of counting as errors.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        logger_provider: _logs.LoggerProvider | None = None,
        span_events: bool = True,
        display_hints: frozenset[DisplayHint] = ALL_HINTS,
        warning_status: Literal["unset", "error"] = "unset",
    ) -> None:
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self.tracer = trace.get_tracer(semconv.SCOPE, tracer_provider=tracer_provider)
        self._logger = _logs.get_logger(semconv.SCOPE, logger_provider=logger_provider)
        meter = metrics.get_meter(semconv.SCOPE, meter_provider=meter_provider)

        def histogram(name: str, unit: str, boundaries: tuple[float, ...]) -> metrics.Histogram:
            return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=boundaries)

        self.chat_duration = histogram(*semconv.CHAT_DURATION)
        self.chat_first_chunk = histogram(*semconv.CHAT_FIRST_CHUNK)
        self.chat_tokens = histogram(*semconv.CHAT_TOKENS)
        self.tool_duration = histogram(*semconv.TOOL_DURATION)
        self.agent_duration = histogram(*semconv.AGENT_DURATION)
        self.utilization = histogram(*semconv.UTILIZATION)
        self._warnings = meter.create_counter(*semconv.WARNING_METRIC)
        self._tokens_removed = meter.create_counter(*semconv.TOKENS_REMOVED_METRIC)
        self.span_events = span_events
        self.display_hints = display_hints
        self.warning_status = warning_status

    @property
    def is_silent(self) -> bool:
        """Whether spans and metrics go nowhere, because no SDK is configured: then nothing is spent on them."""
        return _does_nothing(self._tracer_provider or global_tracer_provider()) and _does_nothing(
            self._meter_provider or global_meter_provider()
        )

    def warn(
        self,
        code: WarningCode,
        message: str,
        attributes: Attributes,
        *,
        span_name: str = "context_guard",
        error: str = "",
        span: Span | None = None,
    ) -> None:
        """Say that something should be looked at. ``error`` names what was rejected or failed, if anything did.

        It has a span of its own, or is said on the one that ``working`` has opened for the attempt.
        """
        with self.warning(code, message, attributes, span_name=span_name, error=error, span=span):
            pass

    @contextmanager
    def warning(
        self,
        code: WarningCode,
        message: str,
        attributes: Attributes,
        *,
        span_name: str = "context_guard",
        error: str = "",
        span: Span | None = None,
    ) -> Generator[Span]:
        """The same, with a span that stays open, and current, for what is done about it. Not across an await."""
        kind = "GUARDRAIL" if span_name == "context_guard" else "CHAIN"
        said = {
            **attributes,
            semconv.SEVERITY: "WARN",
            semconv.WARNING_CODE: code,
            semconv.WARNING_MESSAGE: message,
            **self._hints(kind, message),
        }
        with self._warned_span(span, span_name, said) as span:
            if self.span_events:
                span.add_event(semconv.WARNING_EVENT, {semconv.WARNING_CODE: code, semconv.WARNING_MESSAGE: message})
            if error or self.warning_status == "error":
                span.set_attribute(semconv.ERROR_TYPE, error or code)
                span.set_status(Status(StatusCode.ERROR, error or code))
            self._logger.emit(
                LogRecord(
                    event_name=semconv.WARNING_EVENT,
                    severity_number=SeverityNumber.WARN,
                    severity_text="WARN",
                    body=message,
                    attributes={semconv.WARNING_CODE: code, **attributes},
                    context=otel.get_current(),
                )
            )
            self._warnings.add(1, {semconv.WARNING_CODE: code})
            turn = current_turn()
            if turn is not None:
                turn.warned(code)
                turn.tell("warning", code, message=message, error=error, numbers=_numbers(attributes))
            yield span

    def working(self, strategy: str) -> Span:
        """A span for an edit that takes time. Whoever opens it tells what came of it, and ends it."""
        return internal_span(self.tracer, f"compact_context {strategy}", {semconv.COMPACTION_STRATEGY: strategy})

    def edit(
        self,
        strategy: str,
        message: str,
        attributes: Attributes,
        *,
        tokens_before: int,
        tokens_after: int,
        span: Span | None = None,
    ) -> None:
        """Say that the request was edited: information, not a warning. ``span`` is ``working``'s, if it has one."""
        said = {
            **attributes,
            semconv.COMPACTION_STRATEGY: strategy,
            semconv.COMPACTION_TOKENS_BEFORE: tokens_before,
            semconv.COMPACTION_TOKENS_AFTER: tokens_after,
            semconv.SEVERITY: "INFO",
        }
        if "openinference" in self.display_hints:
            said[semconv.OPENINFERENCE_KIND] = "CHAIN"
            said[semconv.OPENINFERENCE_OUTPUT] = message
        if span is None:
            self.tracer.start_span(f"compact_context {strategy}", attributes=said).end()
        else:
            span.set_attributes(said)
        self._tokens_removed.add(max(0, tokens_before - tokens_after), {semconv.COMPACTION_STRATEGY: strategy})
        turn = current_turn()
        if turn is not None:
            turn.edited()
            numbers = {"tokens_before": tokens_before, "tokens_after": tokens_after, **_numbers(attributes)}
            turn.tell("edit", strategy, message=message, numbers=numbers)

    def _warned_span(self, span: Span | None, name: str, said: Attributes) -> AbstractContextManager[Span]:
        if span is None:
            return self.tracer.start_as_current_span(
                name, attributes=said, record_exception=False, set_status_on_exception=False
            )
        span.set_attributes(said)
        return trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def _hints(self, kind: str, message: str) -> dict[str, Value]:
        hints: dict[str, Value] = {}
        if "openinference" in self.display_hints:
            hints[semconv.OPENINFERENCE_KIND] = kind
            hints[semconv.OPENINFERENCE_OUTPUT] = f"WARN {message}"
        if "langfuse" in self.display_hints:
            hints[semconv.LANGFUSE_LEVEL] = "WARNING"
            hints[semconv.LANGFUSE_MESSAGE] = message
        if "logfire" in self.display_hints:
            hints[semconv.LOGFIRE_LEVEL] = 13
        return hints


class SpanWatch:
    """A stream's watch that keeps a span current while the stream is read, and ends it once."""

    __slots__ = ("_context", "_ended")

    def __init__(
        self, context: otel.Context, ended: Callable[[ChatResponse | None, BaseException | None], None]
    ) -> None:
        self._context = context
        self._ended = ended

    def enter(self) -> object:
        return otel.attach(self._context)

    def leave(self, token: object, /) -> None:
        otel.detach(token)  # type: ignore[arg-type]

    def ended(self, answer: ChatResponse | None, error: BaseException | None, /) -> None:
        self._ended(answer, error)


def _does_nothing(provider: object) -> bool:
    """Whether a provider is one of the API's own stand-ins."""
    return _is_of_the_api(type(provider).__module__)


@functools.lru_cache(maxsize=64)
def _is_of_the_api(module: str) -> bool:
    return module.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def error_type(error: BaseException | None) -> str:
    """The low-cardinality name of what ended a span: "" for a regular end, "cancelled" for a stop."""
    if error is None:
        return ""
    if isinstance(error, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)):
        return "cancelled"
    return type(error).__name__


def end_span(span: Span, error: BaseException | None) -> str:
    """End a span with what ended it; a cancelled one has no error status. Never the error's text: it may quote."""
    kind = error_type(error)
    if kind:
        span.set_attribute(semconv.ERROR_TYPE, kind)
        if kind != "cancelled":
            span.set_status(Status(StatusCode.ERROR, kind))
    span.end()
    return kind


def internal_span(tracer: trace.Tracer, name: str, attributes: Attributes) -> Span:
    """A span of something that runs in this process."""
    return tracer.start_span(name, kind=SpanKind.INTERNAL, attributes=attributes)


def _numbers(attributes: Attributes) -> dict[str, int | float]:
    """The numbers among the attributes, by the last word of their names."""
    return {
        name.rsplit(".", 1)[-1]: value
        for name, value in attributes.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }
