"""What the tests in Phoenix look at: the travel assistant in several conversations, one of which gets too long."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatstack import ChatOptions, Message, Telemetry
from chatstack.stack.recipe import BuiltClient
from chatstack.telemetry.content import ContentCapture
from chatstack.workbench.demo.stand_in import StandIn

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "travel_assistant.py"
LONG = "world-tour"
LIMIT_TOKENS = 1_000
"""Less than the eleven cities of ``LONG`` need, and more than the other conversations do."""
_CONVERSATIONS = {
    "lisbon-weekend": ("Lisbon",),
    "nordic-trip": ("Oslo", "Helsinki"),
    LONG: ("Dubai", "Nairobi", "Tokyo", "Lima", "Cairo", "Seoul", "Sydney", "Mumbai", "Athens", "Vienna", "Prague"),
    "tokyo-stopover": ("Tokyo",),
}
TURNS = sum(len(cities) for cities in _CONVERSATIONS.values())


def travel_assistant() -> ModuleType:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location("travel_assistant", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["travel_assistant"] = module  # where a dataclass looks for the types of its fields
    spec.loader.exec_module(module)
    return module


def run_conversations(url: str, project: str, *, capture: ContentCapture = "no_content") -> Sequence[ReadableSpan]:
    """Have them all, streaming, with a guard and nothing that folds; the spans that were exported there."""
    travel = travel_assistant()
    tracing, kept = travel.exporting(url, project), InMemorySpanExporter()
    tracing.add_span_processor(SimpleSpanProcessor(kept))
    services = {Telemetry: Telemetry(tracer_provider=tracing, capture_content=capture)}

    async def run() -> None:
        with StandIn() as stand_in:
            async with stand_in.client() as provider:
                unfolded = travel.assistant(provider, []).without("ContextWindow")
                stack = unfolded.override("ContextWindowGuard", max_context_tokens=LIMIT_TOKENS)
                async with stack.open(services.__getitem__) as client:
                    for conversation_id, cities in _CONVERSATIONS.items():
                        await _talk(client, conversation_id, cities, travel.OPTIONS)

    try:
        asyncio.run(run())
    finally:
        tracing.shutdown()
    return kept.get_finished_spans()


async def _talk(client: BuiltClient, conversation_id: str, cities: Sequence[str], options: ChatOptions) -> None:
    history: list[Message] = []
    for city in cities:
        history.append(Message.user(f"What is the weather in {city}, and what should I wear there?"))
        async with client.get_streaming_response(history, options=options, conversation_id=conversation_id) as stream:
            history += (await stream.response()).messages
