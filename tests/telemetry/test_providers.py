"""A stack that was silent speaks as soon as an SDK is configured, whatever the API keeps to itself."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest
from opentelemetry import metrics, trace

from chatstack import ChatStack, ProgressReporter, Telemetry
from chatstack.testing import ScriptedClient, TelemetryCapture

CODE = """
import asyncio
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from chatstack import ChatStack, ProgressReporter, Telemetry
from chatstack.testing import ScriptedClient

GIVEN = dict(
    tracer_provider=trace.get_tracer_provider(),
    meter_provider=metrics.get_meter_provider(),
    logger_provider=_logs.get_logger_provider(),
)
telemetry = Telemetry(**GIVEN if IS_GIVEN else {})
client = ChatStack(ScriptedClient()).use(ProgressReporter).build({Telemetry: telemetry}.__getitem__)
print(telemetry.is_silent)
asyncio.run(client.get_response("hello"))
if SIGNAL == "traces":
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    trace.set_tracer_provider(provider)
else:
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
print(telemetry.is_silent)
asyncio.run(client.get_response("hello"))
if SIGNAL == "traces":
    print(sorted(span.name for span in spans.get_finished_spans()))
else:
    data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
    print(sorted(metric.name for metric in data))
"""

SEEN = {
    "traces": "['chat script', 'invoke_agent chat']",
    "metrics": "['gen_ai.client.operation.duration', 'gen_ai.client.token.usage', 'gen_ai.invoke_agent.duration']",
}


@pytest.mark.parametrize("is_given", [False, True], ids=["nothing given", "the API's proxies given"])
@pytest.mark.parametrize("signal", list(SEEN))
def test_an_sdk_that_is_configured_after_the_first_call_is_used_from_the_next(signal: str, is_given: bool) -> None:
    code = f"SIGNAL, IS_GIVEN = {signal!r}, {is_given}\n{CODE}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True", "False", SEEN[signal]]


def test_a_provider_that_the_environment_names_is_used() -> None:
    code = "from chatstack import Telemetry; print(Telemetry().is_silent)"
    environment = {**os.environ, "OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_provider_that_is_to_do_nothing_does_nothing_whatever_the_process_has() -> None:
    capture = TelemetryCapture()
    silent = Telemetry(tracer_provider=trace.NoOpTracerProvider(), meter_provider=metrics.NoOpMeterProvider())
    client = ChatStack(ScriptedClient()).use(ProgressReporter).build({Telemetry: silent}.__getitem__)
    asyncio.run(client.get_response("hello"))
    assert (silent.is_silent, silent.measures, capture.spans) == (True, False, ())
