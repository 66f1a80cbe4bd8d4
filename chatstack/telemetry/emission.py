"""The one place that emits telemetry: every fact about a call is reported here, once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Hashable, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar, Literal, TypeAlias

from opentelemetry import _logs, metrics, trace
from opentelemetry import context as otel
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context
from opentelemetry.util.types import AnyValue

from chatstack import semconv
from chatstack.client.checks import OwnCopy
from chatstack.client.options import check_arguments
from chatstack.errors import WiringError
from chatstack.lru import Lru
from chatstack.semconv import WarningCode
from chatstack.telemetry.caches import PromptCaches
from chatstack.telemetry.content import Content, ContentCapture, capture_of
from chatstack.telemetry.instruments import instruments_of
from chatstack.telemetry.outcomes import what_was_done
from chatstack.telemetry.providers import does_nothing, global_meter_provider, global_tracer_provider, own_provider
from chatstack.telemetry.shortening import LeftOut
from chatstack.telemetry.spans import Attributes, Value, end_span, numbers_of, start_span
from chatstack.telemetry.standard_logging import reaches_opentelemetry, write_warning
from chatstack.telemetry.turns import Turn, current_turn, within

DisplayHint: TypeAlias = Literal["openinference", "langfuse", "logfire"]
ALL_HINTS: frozenset[DisplayHint] = frozenset({"openinference", "langfuse", "logfire"})

_logger = logging.getLogger(__name__)
_MOST_WARNED = 10_000


class Telemetry(OwnCopy):
    """Spans, log records and metrics of one stack; without an OpenTelemetry SDK they all do nothing.

    Providers that are not given are the process's global ones. ``span_events`` also puts each warning as an event on
    its span; ``log_warnings`` writes it to the standard ``logging`` as well (logger ``chatstack``, level WARNING, its
    attributes in ``extra``); ``display_hints`` adds the attributes by which dashboards colour it;
    ``warning_status="error"`` makes warned spans red, at the price of counting as errors. ``capture_content`` says
    where the text of messages is recorded; its default is the variable
    ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT``, and without that, nowhere.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        logger_provider: _logs.LoggerProvider | None = None,
        span_events: bool = True,
        log_warnings: bool = True,
        display_hints: frozenset[DisplayHint] = ALL_HINTS,
        warning_status: Literal["unset", "error"] = "unset",
        capture_content: ContentCapture | None = None,
    ) -> None:
        flags = {"span_events": span_events, "log_warnings": log_warnings}
        check_arguments(Telemetry, **flags, warning_status=warning_status)
        self._tracer_provider = own_provider("tracer_provider", tracer_provider, "get_tracer")
        self._meter_provider = own_provider("meter_provider", meter_provider, "get_meter")
        self._logger_provider = own_provider("logger_provider", logger_provider, "get_logger")
        self.tracer = trace.get_tracer(semconv.SCOPE, tracer_provider=tracer_provider)
        self._logger = _logs.get_logger(semconv.SCOPE, logger_provider=logger_provider)
        self.instruments = instruments_of(self._meter_provider)
        self.span_events = span_events
        self.log_warnings = log_warnings
        self.display_hints = display_hints
        self.warning_status = warning_status
        if not isinstance(display_hints, frozenset | set) or not display_hints <= ALL_HINTS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"Telemetry: display_hints={display_hints!r} must be some of {', '.join(sorted(ALL_HINTS))}",
                parameter="display_hints",
            )
        capture = capture_of(capture_content)
        self.captures_on_spans = capture in ("span_only", "span_and_event")
        self.captures_in_events = capture in ("event_only", "span_and_event")
        self._last_seen: tuple[object, object, bool] = (None, None, False)
        """The last providers looked up, and True if they do nothing."""
        self.caches = PromptCaches()
        """The latest calls, and their traces in prompt caches; its ``clock`` can be replaced in tests."""
        self._warned: Lru[tuple[WarningCode, Hashable], bool] = Lru(_MOST_WARNED)
        self._lock = threading.Lock()

    @property
    def is_silent(self) -> bool:
        """True if spans and metrics go nowhere, because no SDK is configured: then no work is done for them."""
        tracers = self._tracer_provider or global_tracer_provider()
        meters = self._meter_provider or global_meter_provider()
        if (tracers, meters) != self._last_seen[:2]:  # an application may configure them late
            is_silent = does_nothing(tracers) and does_nothing(meters) and not self.captures_in_events
            self._last_seen = (tracers, meters, is_silent)
        return self._last_seen[2]

    @property
    def is_unheard(self) -> bool:
        """True if spans, metrics, logs and progress events all go nowhere."""
        loggers = self._logger_provider or _logs.get_logger_provider()
        return self.is_silent and does_nothing(loggers) and current_turn() is None

    @property
    def measures(self) -> bool:
        """True if metrics go anywhere."""
        return not does_nothing(self._meter_provider or global_meter_provider())

    def is_first(self, code: WarningCode, conversation: Hashable) -> bool:
        """Return True for the first such warning of that conversation, among the latest 10,000."""
        with self._lock:
            if self._warned.get((code, conversation)):
                return False
            self._warned.put((code, conversation), True)
        return True

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
        """Emit a warning. ``error`` names the type of a rejection or failure, if there was one.

        It gets a span of its own, or uses the one that ``working`` has opened for the attempt.
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
        """Emit a warning whose span stays open, and current, for the work in response to it. Not across an await."""
        turn = current_turn()
        attributes = within(turn, attributes)
        said = {
            **attributes,
            semconv.SEVERITY: "WARN",
            semconv.WARNING_CODE: code,
            semconv.WARNING_MESSAGE: message,
            **self._levels(message),
        }
        if "openinference" in self.display_hints:
            said[semconv.OPENINFERENCE_KIND] = "GUARDRAIL" if span_name == "context_guard" else "CHAIN"
            said[semconv.OPENINFERENCE_OUTPUT] = f"WARN {message} ({code})"
        with self._warned_span(span, span_name, said) as span:
            if self.span_events:
                span.add_event(semconv.WARNING_EVENT, {semconv.WARNING_CODE: code, semconv.WARNING_MESSAGE: message})
            if error or self.warning_status == "error":
                span.set_attribute(semconv.ERROR_TYPE, error or code)
                span.set_status(Status(StatusCode.ERROR, error or code))
            self._log_warning(code, message, attributes)
            self.instruments.warnings.add(1, {semconv.WARNING_CODE: code})
            if turn is not None:
                turn.warned(code, message)
                self._roll_up(turn)
                turn.tell("warning", code, message=message, error=error, numbers=numbers_of(attributes))
            yield span

    @contextmanager
    def working(self, strategy: str) -> Generator[Span]:
        """Open a span for an edit that takes time, with progress events around it. The caller reports the result.

        It is not current, so it may be held across an await.
        """
        turn, failure, started = current_turn(), None, time.perf_counter()
        span = start_span(
            self.tracer, f"compact_context {strategy}", within(turn, {semconv.COMPACTION_STRATEGY: strategy})
        )
        if turn is not None:
            turn.tell("edit_started", strategy)
        try:
            yield span
        except BaseException as error:
            failure = error
            raise
        finally:
            kind = end_span(span, failure)
            if turn is not None:
                turn.tell("edit_ended", strategy, error=kind, numbers={"seconds": time.perf_counter() - started})

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
        """Report an edit of the request: information, not a warning. ``span`` is ``working``'s, if any."""
        turn, done = current_turn(), what_was_done(strategy, attributes)
        said = {
            **within(turn, attributes),
            semconv.COMPACTION_STRATEGY: strategy,
            semconv.COMPACTION_TOKENS_BEFORE: tokens_before,
            semconv.COMPACTION_TOKENS_AFTER: tokens_after,
            semconv.SEVERITY: "INFO",
        }
        shown = said
        if "openinference" in self.display_hints:
            shown = {**said, semconv.OPENINFERENCE_KIND: "CHAIN", semconv.OPENINFERENCE_OUTPUT: f"{done}: {message}"}
        if span is None:
            span = start_span(self.tracer, f"compact_context {strategy}", shown)
            end_span(span, None)
        else:
            span.set_attributes(shown)
        self._log(semconv.EDIT_EVENT, SeverityNumber.INFO, message, said, set_span_in_context(span))
        self.instruments.edits.add(1, {semconv.COMPACTION_STRATEGY: strategy})
        self.instruments.tokens_removed.add(
            max(0, tokens_before - tokens_after), {semconv.COMPACTION_STRATEGY: strategy}
        )
        if turn is not None:
            turn.edited(strategy, f"{done}: {tokens_before:,} -> {tokens_after:,} tokens")
            self._roll_up(turn)
            numbers = {"tokens_before": tokens_before, "tokens_after": tokens_after, **numbers_of(attributes)}
            turn.tell("edit", strategy, message=message, numbers=numbers)

    def weighed(self, tokens: int, limit: int) -> None:
        """Record the utilization of the context before any edit."""
        utilization = tokens / limit
        self.instruments.utilization.record(utilization)
        turn = current_turn()
        if turn is not None:
            turn.utilization = max(turn.utilization, utilization)
            if turn.is_heard:
                numbers = {"input_tokens": tokens, "window_tokens": limit, "utilization": round(utilization, 4)}
                turn.tell("context_weighed", "", numbers=numbers)

    def evicted(self, conversations: int) -> None:
        """Count conversations that the context memory evicted for lack of room."""
        self.instruments.evicted.add(conversations)

    def prepared(self, outcome: Literal["written", "used", "failed", "cancelled", "dropped"]) -> None:
        """Count what became of a summary that is prepared beside calls; more are written than used where conversations
        end, or go another way, before one is due."""
        self.instruments.prepared.add(1, {semconv.COMPACTION_OUTCOME: outcome})

    def shortened(self, turn: Turn, left_out: LeftOut | None) -> None:
        """Record on a turn's root what was left out of the request, whenever the edit was made."""
        if left_out is not None and left_out.is_of_turn:
            turn.shortened(left_out)
            self._roll_up(turn)

    def details(self, attributes: Attributes, content: Content, span: Span) -> None:
        """Emit the log event of a model call, with its content."""
        self._log(semconv.DETAILS_EVENT, None, None, {**attributes, **content}, set_span_in_context(span))

    def _log_warning(self, code: WarningCode, message: str, attributes: Attributes) -> None:
        """Write to the standard logging, and to OpenTelemetry, unless the standard logging already forwards to it."""
        if self.log_warnings:
            write_warning(code, message, attributes)
            if reaches_opentelemetry(self._logger_provider):
                return
        self._log(semconv.WARNING_EVENT, SeverityNumber.WARN, message, {semconv.WARNING_CODE: code, **attributes})

    def _log(
        self,
        event: str,
        severity: SeverityNumber | None,
        body: str | None,
        attributes: Mapping[str, AnyValue],
        context: otel.Context | None = None,
    ) -> None:
        record = LogRecord(
            event_name=event,
            severity_number=severity,
            severity_text=severity.name if severity is not None else None,
            body=body,
            attributes=attributes,
            context=context or otel.get_current(),
        )
        try:
            self._logger.emit(record)
        except Exception:  # the user's log processor may raise anything; the call must not fail because of it
            _logger.exception("a log record may be lost: a log record processor raised")

    def _roll_up(self, turn: Turn) -> None:
        """Copy the turn's warnings and edits to its root span, and to that of the turn around it: lists of traces show
        nothing else."""
        if turn.outer is not None:
            self._roll_up(turn.outer)
        if not turn.root.is_recording():
            return
        if "openinference" in self.display_hints and not self.captures_on_spans:  # else the answer is shown there
            turn.root.set_attribute(semconv.OPENINFERENCE_OUTPUT, turn.story)
        if turn.warnings:
            turn.root.set_attributes(self._levels("; ".join(message for _, message in turn.warnings_by_weight)))

    def _warned_span(self, span: Span | None, name: str, said: Attributes) -> AbstractContextManager[Span]:
        if span is None:
            return _opened(start_span(self.tracer, name, said))
        span.set_attributes(said)
        return trace.use_span(span, record_exception=False, set_status_on_exception=False)

    def _levels(self, message: str) -> dict[str, Value]:
        """Return the attributes that colour a span in dashboards with levels."""
        levels: dict[str, Value] = {}
        if "langfuse" in self.display_hints:
            levels[semconv.LANGFUSE_LEVEL] = "WARNING"
            levels[semconv.LANGFUSE_MESSAGE] = message
        if "logfire" in self.display_hints:
            levels[semconv.LOGFIRE_LEVEL] = 13
        return levels


def say_dropped(telemetry: Telemetry, dropped: int, failure: str = "") -> None:
    """Warn of progress events that did not reach their listener; ``failure`` is what it did instead."""
    why = failure or "is too slow, or raised"
    telemetry.warn(
        "progress_dropped",
        f"{dropped} progress events were not delivered: the listener {why}",
        {semconv.PROGRESS_DROPPED: dropped},
        span_name="progress",
    )


@contextmanager
def _opened(span: Span) -> Generator[Span]:
    """Make a span current, and end it with the block."""
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield span
    finally:
        end_span(span, None)
