"""For tests of your own: a client that plays a script, the contract every layer keeps, and a capture of telemetry."""

from chatstack.testing.capture import CapturedLog, CapturedSpan, MetricPoint, TelemetryCapture
from chatstack.testing.contract import LayerContract
from chatstack.testing.scripted import Answer, ScriptedClient

__all__ = [
    "Answer",
    "CapturedLog",
    "CapturedSpan",
    "LayerContract",
    "MetricPoint",
    "ScriptedClient",
    "TelemetryCapture",
]
