"""Telling other instrumentations that a model call has its span already, so that it is not counted twice."""

from __future__ import annotations

import sys

from opentelemetry import context as otel

_PLAIN = "suppress_instrumentation"
_KEYS = tuple(dict.fromkeys((_PLAIN, getattr(otel, "_SUPPRESS_INSTRUMENTATION_KEY", _PLAIN))))
"""What OpenInference, OpenLLMetry, the instrumentations of HTTP clients, and our own providers look for."""
_GENAI = "opentelemetry.util.genai.invocation"


def suppressing(context: otel.Context) -> otel.Context:
    """A context in which what others record of a model call goes nowhere: neither spans nor metrics.

    OpenTelemetry's own GenAI instrumentations do not look for the general switch. They step back inside an inference
    that is under way, and say what they found out to that one: here, to one that nobody reads.
    """
    for key in _KEYS:
        context = otel.set_value(key, True, context)
    genai = sys.modules.get(_GENAI)  # there, if one of these instrumentations is active
    inference, key = getattr(genai, "InferenceData", None), getattr(genai, "CLIENT_INFERENCE_CONTEXT_KEY", None)
    return otel.set_value(key, inference(), context) if inference is not None and key else context


def is_suppressed() -> bool:
    """Whether what runs here should record nothing of its own."""
    return otel.get_value(_PLAIN) is True
