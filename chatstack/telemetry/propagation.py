"""Trace context in the headers to a provider's server: other spans may be suppressed, propagation is not."""

from __future__ import annotations

import logging

from opentelemetry import baggage, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_log = logging.getLogger(__name__)

try:  # at import, not in a call: it looks through all installed distributions
    from opentelemetry.propagate import get_global_textmap
except Exception:  # noqa: BLE001 - OTEL_PROPAGATORS names one that is not installed; that must not end model calls

    def get_global_textmap() -> TextMapPropagator:
        return TraceContextTextMapPropagator()


def trace_headers() -> dict[str, str]:
    """Return the headers that carry the current trace (``traceparent``, or those of ``OTEL_PROPAGATORS``); empty
    outside of any trace.

    An instrumentation of the HTTP client or the SDK replaces them by those of its own span. Baggage is left out: an
    application's notes are not for a provider's server. Never raises.
    """
    if not trace.get_current_span().get_span_context().is_valid:
        return {}
    headers: dict[str, str] = {}
    try:
        # The default of the setter does not fit its own hint.
        get_global_textmap().inject(headers, context=baggage.clear())  # pyright: ignore[reportArgumentType]
    except Exception:  # noqa: BLE001 - a custom propagator may raise anything; the call is worth more than its trace
        _log.debug("the trace context could not be written into headers", exc_info=True)
        return {}
    return headers
