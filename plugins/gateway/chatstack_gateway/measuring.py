"""Metrics: OpenTelemetry set up for a process of its own, the gateway's instruments, and what /metrics serves."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from opentelemetry import metrics, trace

from chatstack import ChatResponse
from chatstack.telemetry.instruments import Instrument
from chatstack_gateway.exchange import Exchange
from chatstack_gateway.spans import SCOPE

_ENDPOINTS = tuple(f"OTEL_EXPORTER_OTLP_{name}ENDPOINT" for name in ("", "TRACES_", "METRICS_"))
_FLUSH_SECONDS = 10.0


def set_up() -> None:
    """Set up OpenTelemetry for this process: metrics for ``/metrics``, and, where the environment names a collector
    (``OTEL_EXPORTER_OTLP_ENDPOINT``), spans and metrics for that. What is set up already stays."""
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "chatstack-gateway")})
    readers: list[MetricReader] = [PrometheusMetricReader()]
    if any(os.environ.get(name) for name in _ENDPOINTS):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        if os.environ.get(_ENDPOINTS[0]) or os.environ.get(_ENDPOINTS[2]):
            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
        if os.environ.get(_ENDPOINTS[0]) or os.environ.get(_ENDPOINTS[1]):
            provider = TracerProvider(resource=resource)
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider(readers, resource=resource))


def flush(seconds: float = _FLUSH_SECONDS) -> None:
    """Send what spans and metrics wait, for so many seconds at most. A process that ends by a signal, as uvicorn's do,
    comes to no other end."""
    if not any(os.environ.get(name) for name in _ENDPOINTS):
        return

    def send() -> None:
        for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
            force_flush = getattr(provider, "force_flush", None)
            if force_flush is not None:
                force_flush(round(seconds * 1_000))

    sending = threading.Thread(target=send, daemon=True, name="chatstack-gateway-flush")
    sending.start()
    sending.join(seconds)


METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Media type of what ``exposition`` returns."""


def exposition() -> str:
    """Return the metrics of this process as Prometheus reads them."""
    from prometheus_client import generate_latest

    return generate_latest().decode()


class Meters:
    """The gateway's own instruments; those of the layers and of model calls are theirs."""

    def __init__(self, open_requests: Callable[[], int]) -> None:
        meter = metrics.get_meter(SCOPE)
        requests = meter.create_counter("chatstack.gateway.requests", "{request}", "Requests, by outcome")
        sizes = meter.create_counter("chatstack.gateway.request.bytes", "By", "Bytes of requests, by side")
        self._requests, self._bytes = Instrument(requests.add), Instrument(sizes.add)
        meter.create_observable_gauge(
            "chatstack.gateway.open_requests",
            [lambda _: [metrics.Observation(open_requests())]],
            "{request}",
            "Requests that are being answered",
        )

    def __call__(self, exchange: Exchange, response: ChatResponse | None, status: int) -> None:
        """Count an exchange that is over."""
        labels = {"form": exchange.form, "outcome": exchange.outcome, "status": status}
        self._requests.add(1, labels)
        self._bytes.add(len(exchange.raw), {"side": "came"})
        self._bytes.add(exchange.sent_bytes, {"side": "sent"})
