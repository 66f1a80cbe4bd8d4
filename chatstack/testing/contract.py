"""The contract that every layer keeps, as a suite to subclass."""

from __future__ import annotations

from chatstack.testing.contract_messages import MessageContract
from chatstack.testing.contract_streams import StreamContract
from chatstack.testing.contract_telemetry import TelemetryContract


class LayerContract(MessageContract, StreamContract, TelemetryContract):
    """Promises of every layer. Subclass it as ``Test...``, write ``make(inner, telemetry)``, and run pytest.

    The checks: the layer declares its ``kind``; an answer is the same streamed and not, spans included; the caller's
    messages, system, pinned and latest user messages are not edited, and no orphan call or result is made; options,
    conversation id and ``stream`` reach ``inner``; calls and usage of its answers are handed on, and by a ``plain``
    layer the whole answer; errors surface where they happen; a call closed, dropped or cancelled at any step leaves no
    stream, task, span or context variable behind; conversations do not mix; telemetry never quotes a message, and never
    affects a call.

    ``edits = True`` declares that the layer may change which messages are sent; without it, the layer must pass them
    on, the same objects, in front of any that it adds. ``recovers = True`` declares that it may answer where ``inner``
    refuses. ``own_options`` names the options that the layer sets, or changes. ``streaming_attributes`` are span
    attributes that may differ between a streamed call and another. ``histories`` and ``answers`` are the requests and
    answers of the checks, by name: those of ``chatstack.testing.conversations``, whose ``TOOLS`` a layer with tools
    needs. Every check is a plain method that raises ``AssertionError``. Needs the OpenTelemetry SDK.
    """
