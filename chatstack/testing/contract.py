"""The contract that every layer keeps, as a suite to subclass."""

from __future__ import annotations

from chatstack.testing.contract_messages import MessageContract
from chatstack.testing.contract_streams import StreamContract
from chatstack.testing.contract_telemetry import TelemetryContract


class LayerContract(MessageContract, StreamContract, TelemetryContract):
    """What is promised of every layer. Subclass it as ``Test...``, write ``make(inner, telemetry)``, and run pytest.

    It asks that the layer tells its ``kind``; that an answer is the same streamed and not, spans included; that the
    caller's messages, system, pinned and latest user messages are left alone, and no orphan call or result is made;
    that errors surface where they happen; that a call closed, dropped or cancelled at any step leaves no stream, task,
    span or context variable behind; that conversations do not mix; that telemetry never quotes a message, and never
    hurts a call.

    ``edits = True`` says that the layer may change which messages are sent; one that does not must pass them on, the
    same objects, in front of whatever it adds; ``recovers = True``, that it may answer where ``inner`` refuses.
    ``streaming_attributes`` are those of a span that may tell a streamed
    call from another. ``histories`` and ``answers`` are what is sent and heard, by name: those of
    ``chatstack.testing.conversations``, whose ``TOOLS`` a layer that runs tools needs. Every check is a plain method
    that raises ``AssertionError``. Needs the OpenTelemetry SDK.
    """
