"""A stack that was silent speaks as soon as an SDK is configured, whatever the API keeps to itself."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import subprocess
import sys

import pytest
from opentelemetry import metrics, trace

from chatstack import ChatStack, ProgressReporter, Telemetry
from chatstack.testing import ScriptedClient, TelemetryCapture

CODE = """
import asyncio, json, os
from opentelemetry import _logs, metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from chatstack import ChatStack, ProgressReporter, Telemetry
from chatstack.testing import ScriptedClient

def told(signal, is_given):
    given = dict(
        tracer_provider=trace.get_tracer_provider(),
        meter_provider=metrics.get_meter_provider(),
        logger_provider=_logs.get_logger_provider(),
    )
    telemetry = Telemetry(**given if is_given else {})
    client = ChatStack(ScriptedClient()).use(ProgressReporter).build({Telemetry: telemetry}.__getitem__)
    yield telemetry.is_silent
    asyncio.run(client.get_response("hello"))
    if signal == "traces":
        spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(spans))
        trace.set_tracer_provider(provider)
    else:
        reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([reader]))
    yield telemetry.is_silent
    asyncio.run(client.get_response("hello"))
    if signal == "traces":
        yield sorted(span.name for span in spans.get_finished_spans())
    else:
        data = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        yield sorted(metric.name for metric in data)

for case in [(signal, is_given) for signal in ("traces", "metrics") for is_given in (False, True)]:
    child = os.fork()  # an SDK is configured once in a process
    if not child:
        print(json.dumps([case, list(told(*case))]))
        break
    assert os.waitpid(child, 0)[1] == 0
"""

SEEN = {
    "traces": ["chat script", "invoke_agent chat"],
    "metrics": ["gen_ai.client.operation.duration", "gen_ai.client.token.usage", "gen_ai.invoke_agent.duration"],
}


@functools.cache
def told_by_case() -> dict[tuple[str, bool], list[object]]:
    """What a process of its own has told, for each case."""
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return {tuple(case): told for case, told in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("is_given", [False, True], ids=["nothing given", "the API's proxies given"])
@pytest.mark.parametrize("signal", list(SEEN))
def test_an_sdk_that_is_configured_after_the_first_call_is_used_from_the_next(signal: str, is_given: bool) -> None:
    assert told_by_case()[signal, is_given] == [True, False, SEEN[signal]]


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


def test_the_instruments_of_the_process_are_made_once() -> None:
    """OpenTelemetry's proxy never drops a meter: a stack for each request would leak them without an SDK."""
    assert Telemetry().instruments is Telemetry().instruments


def test_a_provider_that_was_given_has_instruments_of_its_own() -> None:
    """Even where the process has some."""
    assert TelemetryCapture().telemetry.instruments is not Telemetry().instruments
