"""Telemetry that is down: no SDK, exporters that fail, exporters that hang."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry import _logs, metrics, trace

from chatstack.telemetry.emission import Telemetry


def silent_telemetry() -> Telemetry:
    """Return telemetry as it is when no OpenTelemetry SDK is configured."""
    return Telemetry(
        tracer_provider=trace.NoOpTracerProvider(),
        meter_provider=metrics.NoOpMeterProvider(),
        logger_provider=_logs.NoOpLoggerProvider(),
    )


@contextmanager
def failing_telemetry(*, hangs: bool = False) -> Generator[Telemetry]:
    """Yield telemetry of a real SDK whose exporters raise, or, with ``hangs``, do not return until the end."""
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import (
        BatchLogRecordProcessor,
        InMemoryLogRecordExporter,
        SimpleLogRecordProcessor,
    )
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    over = threading.Event()

    def export(batch: object) -> object:
        if hangs and over.wait(timeout=60):
            return None
        raise ConnectionError("the collector is down")

    spans, logs = InMemorySpanExporter(), InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    for exporter in (spans, logs):
        setattr(exporter, "export", export)  # noqa: B010 - a method, replaced on purpose
    tracers = TracerProvider(shutdown_on_exit=False)
    loggers = LoggerProvider(shutdown_on_exit=False)
    if hangs:
        tracers.add_span_processor(BatchSpanProcessor(spans, schedule_delay_millis=1))
        loggers.add_log_record_processor(BatchLogRecordProcessor(logs, schedule_delay_millis=1))
    else:
        tracers.add_span_processor(SimpleSpanProcessor(spans))
        loggers.add_log_record_processor(SimpleLogRecordProcessor(logs))
    try:
        yield Telemetry(tracer_provider=tracers, meter_provider=metrics.NoOpMeterProvider(), logger_provider=loggers)
    finally:
        over.set()
        tracers.shutdown()
        loggers.shutdown()
