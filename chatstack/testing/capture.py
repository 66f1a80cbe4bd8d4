"""A capture of telemetry: spans, log records and metrics of a call, kept in memory as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from opentelemetry.util.types import AnyValue, AttributeValue

from chatstack import semconv
from chatstack.client.collecting import call_postponed
from chatstack.errors import WiringError
from chatstack.telemetry.emission import Telemetry

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import ReadableSpan, Span

SpanTree: TypeAlias = "tuple[str, list[SpanTree]]"
"""A tree of spans: the name of one, and the trees of its children."""

_Attributes: TypeAlias = Mapping[str, AnyValue]
_Labels: TypeAlias = tuple[tuple[str, AttributeValue], ...]


@dataclass(frozen=True, slots=True)
class CapturedSpan:
    """A span that has ended. ``status`` is ``unset``, ``ok`` or ``error``; ``kind`` a name such as ``CLIENT``.

    ``events`` are the names of its events, each with its attributes. ``trace_id`` is the same for all spans of one
    trace; ``parent_id`` is None for a root.
    """

    name: str
    kind: str
    attributes: _Attributes
    status: str
    status_text: str
    events: tuple[tuple[str, _Attributes], ...]
    span_id: int
    parent_id: int | None
    trace_id: int


@dataclass(frozen=True, slots=True)
class CapturedLog:
    """A log record. ``trace_id`` and ``span_id`` are those of the span it was emitted in, 0 for none."""

    event_name: str
    severity: str
    body: AnyValue
    attributes: _Attributes
    span_id: int
    trace_id: int


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """The state of a metric for one set of labels: the number of measurements, and their sum.

    ``count`` is 0 for a counter, which does not know it.
    """

    labels: Mapping[str, AttributeValue]
    count: int
    total: float


class TelemetryCapture:
    """Keeps everything that ``telemetry`` emits: give that to a layer, or ``resolve`` to ``ChatStack.build``.

    No global state is touched, so captures do not see one another. Raises ``WiringError`` if the OpenTelemetry SDK is
    not installed.
    """

    def __init__(self) -> None:
        try:
            from opentelemetry.sdk._logs import LoggerProvider
            from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
            from opentelemetry.sdk.metrics import MeterProvider
            from opentelemetry.sdk.metrics.export import InMemoryMetricReader
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
            from opentelemetry.sdk.trace.sampling import ALWAYS_ON
        except ImportError as error:
            raise WiringError(
                "TelemetryCapture: needs the OpenTelemetry SDK; pip install 'chatstack-core[otel]'"
            ) from error

        started: list[ReadableSpan] = []

        class Starts(SpanProcessor):
            """Keeps spans from their start on, so that unfinished ones show as well."""

            def on_start(self, span: Span, parent_context: Context | None = None) -> None:
                started.append(span)

        nowhere = Resource({})
        tracers = TracerProvider(sampler=ALWAYS_ON, resource=nowhere, shutdown_on_exit=False)
        tracers.add_span_processor(Starts())
        self._started = started
        self._reader: InMemoryMetricReader = InMemoryMetricReader()
        meters = MeterProvider([self._reader], resource=nowhere, shutdown_on_exit=False)
        self._log_exporter: InMemoryLogRecordExporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
        loggers = LoggerProvider(resource=nowhere, shutdown_on_exit=False)
        loggers.add_log_record_processor(SimpleLogRecordProcessor(self._log_exporter))
        self._before: dict[tuple[str, _Labels], tuple[int, float]] = {}
        self.telemetry = Telemetry(tracer_provider=tracers, meter_provider=meters, logger_provider=loggers)

    def resolve(self, kind: type) -> object:
        """Resolve the telemetry, and nothing else: ``stack.build(capture.resolve)``."""
        if kind is Telemetry:
            return self.telemetry
        raise LookupError(kind)

    @property
    def spans(self) -> tuple[CapturedSpan, ...]:
        """The spans that have ended, in the order in which they began."""
        call_postponed()
        return tuple(_captured(span) for span in tuple(self._started) if span.end_time is not None)

    @property
    def open_spans(self) -> tuple[str, ...]:
        """The names of the spans that began and have not ended."""
        call_postponed()
        return tuple(span.name for span in tuple(self._started) if span.end_time is None)

    def span(self, name: str) -> CapturedSpan:
        """Return the one span of that name. Raises ``AssertionError`` if there is none, or more than one."""
        found = self.spans_named(name)
        if len(found) != 1:
            raise AssertionError(f"{len(found)} spans are called {name!r}; all: {[span.name for span in self.spans]}")
        return found[0]

    def spans_named(self, name: str) -> tuple[CapturedSpan, ...]:
        """Return all spans of that name, in the order in which they began."""
        return tuple(span for span in self.spans if span.name == name)

    def tree(self) -> list[SpanTree]:
        """Return the names of all spans, each with those inside it: ``[("invoke_agent chat", [("chat gpt", [])])]``."""
        spans = self.spans
        nodes: dict[int, SpanTree] = {span.span_id: (span.name, []) for span in spans}
        roots: list[SpanTree] = []
        for span in spans:
            parent = nodes.get(span.parent_id) if span.parent_id is not None else None
            (roots if parent is None else parent[1]).append(nodes[span.span_id])
        return roots

    @property
    def logs(self) -> tuple[CapturedLog, ...]:
        """The log records, in the order in which they were emitted."""
        call_postponed()
        return tuple(
            CapturedLog(
                record.event_name or "",
                record.severity_text or "",
                record.body,
                MappingProxyType(dict(record.attributes or {})),
                record.span_id or 0,
                record.trace_id or 0,
            )
            for record in (each.log_record for each in self._log_exporter.get_finished_logs())
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """The codes of the warnings, in the order in which they were given."""
        return tuple(
            str(log.attributes[semconv.WARNING_CODE]) for log in self.logs if log.event_name == semconv.WARNING_EVENT
        )

    def metric(self, name: str) -> tuple[MetricPoint, ...]:
        """Return the state of a metric for each set of labels; empty if it was never recorded."""
        points: list[MetricPoint] = []
        for (metric, labels), (count, total) in self._totals().items():
            count_before, total_before = self._before.get((metric, labels), (0, 0))
            if metric == name and (count, total) != (count_before, total_before):
                points.append(MetricPoint(MappingProxyType(dict(labels)), count - count_before, total - total_before))
        return tuple(points)

    def said(self) -> str:
        """Return everything captured as one text, to search it for secrets."""
        metrics = [(name, labels) for name, labels in self._totals()]
        return "\n".join(map(repr, (*self.spans, *self.logs, *metrics)))

    def clear(self) -> None:
        """Forget everything up to now; spans that are still open are forgotten too."""
        call_postponed()
        self._started.clear()
        self._log_exporter.clear()
        self._before = self._totals()

    def _totals(self) -> dict[tuple[str, _Labels], tuple[int, float]]:
        """Return count and sum of all metrics, by name and labels."""
        call_postponed()
        from opentelemetry.sdk.metrics.export import HistogramDataPoint, NumberDataPoint

        totals: dict[tuple[str, _Labels], tuple[int, float]] = {}
        data = self._reader.get_metrics_data()
        scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data is not None else []
        for metric in (metric for scope in scopes for metric in scope.metrics):
            for point in metric.data.data_points:
                labels = tuple(sorted((point.attributes or {}).items()))
                if isinstance(point, HistogramDataPoint):
                    totals[metric.name, labels] = (point.count, point.sum)
                elif isinstance(point, NumberDataPoint):
                    totals[metric.name, labels] = (0, point.value)
        return totals

    def __repr__(self) -> str:
        return f"TelemetryCapture({len(self.spans)} spans, {len(self.open_spans)} open, {len(self.logs)} log records)"


def _captured(span: ReadableSpan) -> CapturedSpan:
    context = span.get_span_context()
    return CapturedSpan(
        name=span.name,
        kind=span.kind.name,
        attributes=MappingProxyType(dict(span.attributes or {})),
        status=span.status.status_code.name.lower(),
        status_text=span.status.description or "",
        events=tuple((event.name, MappingProxyType(dict(event.attributes or {}))) for event in span.events),
        span_id=context.span_id if context is not None else 0,
        parent_id=span.parent.span_id if span.parent is not None else None,
        trace_id=context.trace_id if context is not None else 0,
    )
