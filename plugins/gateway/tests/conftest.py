"""One tracer for all tests, as there is one for a process; and metrics as the command sets them up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatstack_gateway.measuring import set_up

# Plain HTTP needs no certificates, and loading them is nearly all of the time that a client is made in.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

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
