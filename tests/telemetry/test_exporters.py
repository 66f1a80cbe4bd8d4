"""Whatever becomes of spans, metrics and logs on their way out, no call fails or waits, and nothing is leaked."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import context as otel
from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult

from chatstack import (
    BuiltClient,
    ChatStack,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    ProgressReporter,
    ServerError,
    Telemetry,
    ToolCall,
    WiringError,
)
from chatstack.testing import ScriptedClient
from tests.servers import free_port, silent_server

CALLS = 50
SPANS = 5 * CALLS
"""Turn, warning, call, tool, call."""


def look() -> str:
    """Looks."""
    return "sunny"


class Everything:
    """Keeps all spans from their start on."""

    def __init__(self) -> None:
        self.started: list[ReadableSpan] = []
        started = self.started

        class Starts(SpanProcessor):
            def on_start(self, span: Span, parent_context: otel.Context | None = None) -> None:
                started.append(span)

        self.processor: SpanProcessor = Starts()

    @property
    def open_spans(self) -> list[str]:
        return [span.name for span in self.started if span.end_time is None]


def client(telemetry: Telemetry, *answers: Any, limit: int = 1) -> BuiltClient:
    def resolve(kind: type) -> object:
        if kind is Telemetry:
            return telemetry
        raise LookupError(kind)

    script: Sequence[Any] = answers or (Message.assistant(ToolCall("1", "look")), "it is sunny")
    return (
        ChatStack(ScriptedClient(script))
        .use(ProgressReporter)
        .use(FunctionInvoker, tools=[look])
        .use(ContextWindowGuard, max_context_tokens=limit)
        .build(resolve)
    )


def ask(telemetry: Telemetry, *answers: Any, streaming: bool = False, limit: int = 1) -> str:
    """One whole turn; nothing is left in the context after it."""

    async def run() -> str:
        before = otel.get_current()
        asked = client(telemetry, *answers, limit=limit)
        if streaming:
            answer = await asked.get_streaming_response("hello").response()
        else:
            answer = await asked.get_response("hello")
        assert otel.get_current() == before
        return answer.text

    return asyncio.run(run())


@pytest.fixture(params=["closed", "silent"])
def endpoint(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a collector should be: a port that nobody listens on, or a server that accepts and never answers."""
    if request.param == "closed":
        yield f"http://127.0.0.1:{free_port()}"
    else:
        with silent_server() as url:
            yield url


@contextmanager
def exporting_to(endpoint: str) -> Generator[tuple[Telemetry, Everything]]:
    """All three signals to one place over OTLP/HTTP, as soon as there is anything."""
    everything = Everything()
    traces = OTLPSpanExporter(f"{endpoint}/v1/traces", timeout=1)
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(everything.processor)
    tracers.add_span_processor(BatchSpanProcessor(traces, schedule_delay_millis=1))
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{endpoint}/v1/metrics", timeout=1), 50)
    meters = MeterProvider([reader], shutdown_on_exit=False)
    loggers = LoggerProvider(shutdown_on_exit=False)
    logs = OTLPLogExporter(f"{endpoint}/v1/logs", timeout=1)
    loggers.add_log_record_processor(BatchLogRecordProcessor(logs, schedule_delay_millis=1))
    try:
        yield Telemetry(tracer_provider=tracers, meter_provider=meters, logger_provider=loggers), everything
    finally:
        for provider in (tracers, meters, loggers):
            provider.shutdown()


@pytest.mark.server
@pytest.mark.parametrize("streaming", [False, True])
def test_a_collector_that_is_down_or_hangs_is_not_felt(endpoint: str, streaming: bool) -> None:
    started = time.perf_counter()
    for _ in range(CALLS):
        ask(Telemetry(), streaming=streaming)
    silent_seconds = time.perf_counter() - started
    with exporting_to(endpoint) as (telemetry, everything):
        started = time.perf_counter()
        for _ in range(CALLS):
            assert ask(telemetry, streaming=streaming) == "it is sunny"
        seconds = time.perf_counter() - started
        assert (len(everything.started), everything.open_spans) == (SPANS, [])
    assert seconds < 10 * silent_seconds + 1, "one export that was waited for would be a second for each call"


@pytest.mark.server
def test_a_refused_call_is_refused_as_ever_while_the_collector_hangs(endpoint: str) -> None:
    with exporting_to(endpoint) as (telemetry, everything):
        with pytest.raises(ServerError):
            ask(telemetry, ServerError("no"))
        assert everything.open_spans == []


@pytest.mark.server
def test_a_closed_client_does_not_wait_for_the_collector(endpoint: str) -> None:
    async def run(telemetry: Telemetry) -> float:
        async with client(telemetry) as asked:
            await asked.get_response("hello")
            started = time.perf_counter()
        return time.perf_counter() - started

    with exporting_to(endpoint) as (telemetry, _):
        assert asyncio.run(run(telemetry)) < 0.5


# What raises in this process


class Fails(SpanExporter, SpanProcessor, Sampler):
    """Raises wherever it is told to."""

    def __init__(self, where: str) -> None:
        self.where = where

    def _reach(self, where: str) -> None:
        if where == self.where:
            raise RuntimeError("hunter2")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._reach("export")
        return SpanExportResult.FAILURE

    def on_start(self, span: Span, parent_context: otel.Context | None = None) -> None:
        self._reach("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        self._reach("on_end")

    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        raise RuntimeError("hunter2")

    def get_description(self) -> str:
        return "fails"

    def shutdown(self) -> None: ...

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


def failing(where: str) -> tuple[Telemetry, Everything]:
    everything, fails = Everything(), Fails(where)
    tracers = TracerProvider(sampler=fails if where == "sampler" else None, shutdown_on_exit=False)
    tracers.add_span_processor(everything.processor)
    tracers.add_span_processor(SimpleSpanProcessor(fails) if where in ("export", "failure") else fails)
    return Telemetry(tracer_provider=tracers), everything


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("limit", [1_000, 1])
@pytest.mark.parametrize("where", ["sampler", "on_start", "on_end"])
def test_a_sampler_or_a_processor_that_raises_costs_the_span_alone(
    where: str, limit: int, streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry, everything = failing(where)
    assert ask(telemetry, streaming=streaming, limit=limit) == "it is sunny"
    with pytest.raises(ServerError):
        ask(telemetry, ServerError("no"), streaming=streaming, limit=limit)
    assert where == "on_start" or everything.open_spans == []
    told = {(record.name, record.levelno) for record in caplog.records if record.levelno > logging.WARNING}
    assert told == {("chatstack.telemetry.spans", logging.ERROR)}


class Spoilt(metrics.NoOpMeterProvider):
    """Whose instruments raise, and who has none for what is collected late."""

    def get_meter(self, *args: Any, **kwargs: Any) -> Any:
        def refuse(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError("hunter2")

        made = SimpleNamespace(record=refuse, add=refuse)
        makes = {"create_histogram": lambda *args, **kwargs: made, "create_counter": lambda *args, **kwargs: made}
        return SimpleNamespace(create_observable_counter=refuse, **makes)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("limit", [1_000, 1])
def test_a_meter_provider_that_raises_costs_the_measurement_alone(
    limit: int, streaming: bool, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = Telemetry(meter_provider=Spoilt())
    assert ask(telemetry, streaming=streaming, limit=limit) == "it is sunny"
    with pytest.raises(ServerError):
        ask(telemetry, ServerError("no"), streaming=streaming, limit=limit)
    told = {record.name for record in caplog.records if record.levelno > logging.WARNING}
    assert told >= {"chatstack.telemetry.instruments", "chatstack.telemetry.costs"}


@pytest.mark.parametrize("parameter", ["tracer_provider", "meter_provider", "logger_provider"])
@pytest.mark.parametrize("given", [True, "console", MeterProvider, object()])
def test_what_is_no_provider_is_named(parameter: str, given: object) -> None:
    with pytest.raises(WiringError, match=f"Telemetry: {parameter}=.* must be a provider of OpenTelemetry's") as caught:
        Telemetry(**{parameter: given})  # type: ignore[arg-type]
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("lost", ["invoke_agent", "chat", "execute_tool", "context_guard"])
def test_what_is_inside_of_a_span_that_is_lost_stands_under_the_one_around_it(lost: str) -> None:
    class Refuses(SpanProcessor):
        def on_start(self, span: Span, parent_context: otel.Context | None = None) -> None:
            if span.name.startswith(lost):
                raise RuntimeError("hunter2")

    everything, tracers = Everything(), TracerProvider(shutdown_on_exit=False)
    for processor in (Refuses(), everything.processor):
        tracers.add_span_processor(processor)
    with tracers.get_tracer("theirs").start_as_current_span("a web request"):
        assert ask(Telemetry(tracer_provider=tracers), limit=1) == "it is sunny"
    names = {span.context.span_id: span.name for span in everything.started if span.context is not None}
    roots = [span.name for span in everything.started if span.parent is None or span.parent.span_id not in names]
    assert roots == ["a web request"]
    assert len({span.context.trace_id for span in everything.started if span.context is not None}) == 1


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("where", ["export", "failure"])
def test_an_exporter_that_raises_or_fails_in_the_very_call_is_not_felt(where: str, streaming: bool) -> None:
    telemetry, everything = failing(where)
    assert ask(telemetry, streaming=streaming) == "it is sunny"
    assert (len(everything.started), everything.open_spans) == (5, [])


def test_an_exporter_that_hangs_holds_up_no_call_and_no_span_is_lost_while_the_queue_lasts() -> None:
    go, exported = threading.Event(), list[str]()

    class Hangs(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            go.wait(300)
            exported.extend(span.name for span in spans)
            return SpanExportResult.SUCCESS

        def shutdown(self) -> None: ...

    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(Hangs(), schedule_delay_millis=1))
    telemetry = Telemetry(tracer_provider=tracers)
    for _ in range(CALLS):
        ask(telemetry)
    assert exported == []
    go.set()
    tracers.shutdown()
    assert len(exported) == SPANS
