"""What telemetry costs, counted: calls of functions, spans, measurements. Times are in tests/benchmarks."""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import opentelemetry.trace
import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace import TracerProvider

import chatstack.telemetry
from chatstack import BuiltClient, ChatStack, ContextWindowGuard, FunctionInvoker, ProgressReporter, Telemetry
from chatstack.testing import ScriptedClient, TelemetryCapture

OURS = os.path.dirname(chatstack.telemetry.__file__)
SPANS = os.path.dirname(opentelemetry.trace.__file__)
API = os.path.dirname(SPANS)


def stack_of(telemetry: Telemetry, *, words: int = 1) -> BuiltClient:
    """Four layers; the model streams a chunk a word."""
    services: dict[type, object] = {Telemetry: telemetry}
    return (
        ChatStack(ScriptedClient([" ".join(["word"] * words)]))
        .use(ProgressReporter)
        .use(FunctionInvoker)
        .use(ContextWindowGuard, max_context_tokens=1_000_000)
        .build(services.__getitem__)
    )


async def streamed(client: BuiltClient) -> None:
    async for _ in client.get_streaming_response("hello"):
        pass


async def answered(client: BuiltClient) -> None:
    await client.get_response("hello")


def calls_of(client: BuiltClient, *, streaming: bool) -> Counter[str]:
    """The Python functions that one turn calls, by the files that they are in, and how often."""
    counted: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            counted[frame.f_code.co_filename] += 1

    async def run() -> None:
        turn = streamed if streaming else answered
        await turn(client)  # what is done only once
        sys.setprofile(note)
        try:
            await turn(client)
        finally:
            sys.setprofile(None)

    asyncio.run(run())
    return counted


def calls_in(folder: str, counted: Counter[str], *, but: str = "\0") -> int:
    return sum(count for file, count in counted.items() if file.startswith(folder) and not file.startswith(but))


@pytest.mark.parametrize("streaming", [False, True])
def test_with_nothing_configured_a_turn_asks_whether_it_is_silent_and_does_nothing_else(streaming: bool) -> None:
    telemetry = Telemetry()
    assert telemetry.is_silent
    counted = calls_of(stack_of(telemetry), streaming=streaming)
    assert calls_in(SPANS, counted) == 0  # no span is started, none is looked for
    assert calls_in(os.path.join(OURS, "spans.py"), counted) == 0
    assert 0 < calls_in(OURS, counted) <= 20
    assert 0 < calls_in(API, counted) <= 10


def test_with_nothing_configured_a_chunk_costs_nothing() -> None:
    few, many = (calls_of(stack_of(Telemetry(), words=words), streaming=True) for words in (10, 1_000))
    assert calls_in(OURS, few) == calls_in(OURS, many)
    assert calls_in(API, few) == calls_in(API, many)


def test_with_spans_alone_a_chunk_only_makes_them_current() -> None:
    def counted(words: int) -> Counter[str]:
        telemetry = Telemetry(
            tracer_provider=TracerProvider(shutdown_on_exit=False), meter_provider=NoOpMeterProvider()
        )
        return calls_of(stack_of(telemetry, words=words), streaming=True)

    few, many = counted(10), counted(1_010)
    watch = os.path.join(OURS, "spans.py")
    assert calls_in(OURS, few, but=watch) == calls_in(OURS, many, but=watch)
    assert calls_in(watch, many) - calls_in(watch, few) == 2 * 2 * 1_000  # two spans: entered, left


def test_a_turn_is_two_spans_and_five_measurements() -> None:
    capture = TelemetryCapture()
    asyncio.run(answered(stack_of(capture.telemetry)))
    assert len(capture.spans) == 2
    assert measured(capture) == {
        "gen_ai.invoke_agent.duration": 1,
        "gen_ai.client.operation.duration": 1,
        "gen_ai.client.token.usage": 2,
        "chatstack.context.utilization": 1,
    }


def test_a_streamed_turn_measures_its_chunks_besides() -> None:
    once, streaming = TelemetryCapture(), TelemetryCapture()
    asyncio.run(answered(stack_of(once.telemetry, words=10)))
    asyncio.run(streamed(stack_of(streaming.telemetry, words=10)))
    assert len(streaming.spans) == 2
    assert measured(streaming) == {
        **measured(once),
        "gen_ai.client.operation.time_to_first_chunk": 1,
        "gen_ai.client.operation.time_per_output_chunk": 9,
    }


def measured(capture: TelemetryCapture) -> dict[str, int]:
    """How often each histogram was recorded."""
    names = (
        "gen_ai.invoke_agent.duration",
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.operation.time_per_output_chunk",
        "gen_ai.client.token.usage",
        "chatstack.context.utilization",
    )
    counts = {name: sum(point.count for point in capture.metric(name)) for name in names}
    return {name: count for name, count in counts.items() if count}


def test_turns_leave_nothing_behind_for_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unregistered keeps its place in Python's list: done every turn, that would grow for ever."""
    registered: list[Callable[[], object]] = []
    register = atexit.register

    def counting(function: Callable[[], object]) -> object:
        registered.append(function)
        return register(function)

    client = stack_of(TelemetryCapture().telemetry)
    asyncio.run(answered(client))
    monkeypatch.setattr(atexit, "register", counting)
    for _ in range(20):
        asyncio.run(answered(client))
        asyncio.run(streamed(client))
    assert registered == []
