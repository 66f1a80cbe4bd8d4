"""Suppression of other instrumentations around a model call that already has its span, so that it is not counted
twice."""

from __future__ import annotations

import sys

from opentelemetry import context as otel

_PLAIN = "suppress_instrumentation"
_KEYS = tuple(dict.fromkeys((_PLAIN, getattr(otel, "_SUPPRESS_INSTRUMENTATION_KEY", _PLAIN))))
"""Context keys of the general switch, as OpenInference, OpenLLMetry, instrumentations of HTTP clients, and our own
providers check it."""
_GENAI = "opentelemetry.util.genai.invocation"


def suppressing(context: otel.Context) -> otel.Context:
    """Return a context that suppresses spans and metrics of other instrumentations.

    OpenTelemetry's own GenAI instrumentations do not check the general switch. Inside an inference that is under way
    they emit nothing, and hand their findings to that one: here, to a dummy that is never read.
    """
    for key in _KEYS:
        context = otel.set_value(key, True, context)
    genai = sys.modules.get(_GENAI)  # imported if one of these instrumentations is active
    inference, key = getattr(genai, "InferenceData", None), getattr(genai, "CLIENT_INFERENCE_CONTEXT_KEY", None)
    return otel.set_value(key, inference(), context) if inference is not None and key else context


def is_suppressed() -> bool:
    """Return True if code running here should record no telemetry of its own."""
    return otel.get_value(_PLAIN) is True
