"""One tracer for all tests, as there is one for a process; and metrics as the command sets them up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatstack_gateway.measuring import set_up

_EXPORTER = InMemorySpanExporter()


@pytest.fixture(scope="session", autouse=True)
def _telemetry() -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
    trace.set_tracer_provider(provider)
    set_up()


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """The spans that end from now on."""
    _EXPORTER.clear()
    yield _EXPORTER
    _EXPORTER.clear()
