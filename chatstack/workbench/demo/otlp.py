"""Sending the demo's spans to a tracing dashboard, by OTLP over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult

_SECONDS = 5.0
"""Time limit of the whole delivery, the exporter's own retries included."""
_PATH = "/v1/traces"


def target_of(url: str) -> str:
    """Return the address for spans: the one given, or the usual path of a server without one."""
    return url if urlsplit(url).path.strip("/") else f"{url.rstrip('/')}{_PATH}"


def send(spans: Sequence[ReadableSpan], url: str) -> bool:
    """Send spans in one request; return False where nobody took them. What the exporter logs is left out."""
    exporter = OTLPSpanExporter(target_of(url), timeout=_SECONDS)
    logger = logging.getLogger("opentelemetry.exporter")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        return exporter.export(spans) is SpanExportResult.SUCCESS
    finally:
        logger.setLevel(level)
        exporter.shutdown()  # type: ignore[no-untyped-call]
