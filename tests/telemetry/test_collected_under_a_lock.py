"""What the collector finds while its thread holds a lock: it is told, but not before that lock is free."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import AlignedHistogramBucketExemplarReservoir, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    IterativeContext,
    IterativeLoop,
    MemoryWorkspace,
    Message,
    ModelTracer,
    ProgressReporter,
    Telemetry,
    ToolCall,
    Usage,
)
from chatstack.client import collecting
from chatstack.client.collecting import call_postponed, outside_collector, seconds_late
from chatstack.layers.overhead import ToldFirst
from chatstack.telemetry.agent_turns import agent_turn
from chatstack.testing import ScriptedClient


@pytest.fixture(autouse=True)
def _collector_runs_when_it_is_told_to() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Watched(SpanProcessor):
    """Ends of spans, each with whether a lock was held."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ends: list[tuple[str, bool]] = []
        self.spans: list[Any] = []
        tracers = TracerProvider(shutdown_on_exit=False)
        tracers.add_span_processor(self)
        self.telemetry = Telemetry(tracer_provider=tracers)

    def on_end(self, span: ReadableSpan) -> None:
        self.ends.append((span.name, self.lock.locked()))
        self.spans.append(span)

    def collect(self) -> None:
        with self.lock:
            assert gc.collect()

    def stack(self, *answers: Any) -> ChatStack:
        return ChatStack(ScriptedClient(answers or ("one two three",), delay_seconds=0))

    def resolve(self, kind: type) -> object:
        if kind is Telemetry:
            return self.telemetry
        raise LookupError(kind)


def leave(left: object) -> None:
    """Leave it to the collector, in a reference cycle."""
    cycle: list[object] = [left]
    cycle.append(cycle)


async def a_stream(watched: Watched) -> object:
    stream = watched.stack().use(ProgressReporter).build(watched.resolve).get_streaming_response("hello")
    await anext(stream)
    return stream


async def a_run(watched: Watched) -> object:
    def look() -> str:
        return "sunny"

    loop = IterativeLoop(
        ScriptedClient([Message.assistant(ToolCall("1", "look")), "done"]),
        "look around",
        lambda _: "go on",
        [look],
        mode="single_call",
        telemetry=watched.telemetry,
    )
    iterations = loop.iterations(IterativeContext(workspace=MemoryWorkspace()))
    await anext(iterations)
    await asyncio.get_running_loop().shutdown_default_executor()  # its thread holds on to what it ran last
    watched.ends.clear()
    return iterations


async def a_call_that_waits(watched: Watched) -> object:
    calling = watched.stack().use(ProgressReporter).build(watched.resolve).send(ChatRequest((Message.user("hello"),)))
    return suspended(calling)


async def a_reader_that_waits(watched: Watched) -> object:
    return suspended(watched.stack().use(ProgressReporter).build(watched.resolve).get_response("hello"))


def suspended(calling: Any) -> object:
    calling.send(None)
    return calling


async def a_turn_of_an_agent_that_waits(watched: Watched) -> object:
    async def work() -> None:
        with agent_turn("planner", telemetry=watched.telemetry):
            await asyncio.sleep(0)

    return suspended(work())


LEFT: list[Callable[[Watched], Awaitable[object]]] = [
    a_stream,
    a_run,
    a_call_that_waits,
    a_reader_that_waits,
    a_turn_of_an_agent_that_waits,
]


@pytest.mark.parametrize("left", LEFT, ids=lambda each: each.__name__)
@pytest.mark.parametrize("told_by", ["loop", "next request"])
def test_what_is_collected_under_a_lock_ends_its_spans_without_it(
    left: Callable[[Watched], Awaitable[object]], told_by: str
) -> None:
    watched = Watched()

    async def run() -> None:
        leave(await left(watched))
        assert watched.ends == []
        if told_by == "loop":
            watched.collect()
            assert watched.ends == []
            await asyncio.sleep(0)

    asyncio.run(run())
    if told_by == "next request":
        watched.collect()
        assert watched.ends == []
        asyncio.run(ChatStack(ScriptedClient(["fine"])).build().get_response("hello"))
    assert watched.ends
    assert not any(is_locked for _, is_locked in watched.ends)


def test_a_stream_that_is_collected_while_the_sdk_records_a_metric_does_not_block_the_thread() -> None:
    """The SDK makes a histogram for new labels under a lock, which the end of that stream takes, too."""
    collected: list[int] = []
    is_time = False

    def make(**options: Any) -> Any:
        if is_time:
            collected.append(gc.collect())
        return AlignedHistogramBucketExemplarReservoir(**options)

    factory: Any = lambda _: make  # noqa: E731 - its type is the SDK's own
    view = View(instrument_name="gen_ai.client.operation.duration", exemplar_reservoir_factory=factory)
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], views=[view], shutdown_on_exit=False)
    client = ModelTracer(ScriptedClient(["one two three"] * 3), telemetry=Telemetry(meter_provider=meters))

    async def run() -> None:
        nonlocal is_time
        await client.get_response("hello")
        stream = client.get_streaming_response("hello")
        await anext(stream)
        leave(stream)
        del stream
        is_time = True
        await client.get_response("hello", options=ChatOptions(model="another"))

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert len(collected) >= 1
    data: Any = reader.get_metrics_data()
    (metric,) = [
        each
        for each in data.resource_metrics[0].scope_metrics[0].metrics
        if each.name == "gen_ai.client.operation.duration"
    ]
    assert sum(point.count for point in metric.data.data_points) == 3


def test_the_usage_of_a_summary_that_nobody_has_read_is_owed_again_without_the_lock() -> None:
    owed: list[Usage] = []

    async def run() -> None:
        stream = ScriptedClient(["one"]).get_streaming_response("hello")
        leave(ToldFirst(stream, Usage(5), "writer", lambda: owed.append(Usage(5))))
        gc.collect()
        assert owed == []
        await asyncio.sleep(0)

    asyncio.run(run())
    assert owed == [Usage(5)]


def test_an_end_that_raises_is_logged_and_the_next_one_is_told(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[str] = []

    class Watch:
        def __init__(self, name: str) -> None:
            self.name = name

        def enter(self) -> None: ...

        def leave(self, token: object, /) -> None: ...

        def ended(self, answer: object, error: BaseException | None, /) -> None:
            ended.append(self.name)
            raise ValueError(self.name)

    async def run() -> None:
        for name in ("first", "second"):
            stream = ChatStream.watched(ScriptedClient(["one two"]).get_streaming_response("hello"), Watch(name))
            await anext(stream)
            leave(stream)
        del stream
        gc.collect()

    asyncio.run(run())
    call_postponed()
    assert sorted(ended) == ["first", "second"]
    assert [record.getMessage() for record in caplog.records if record.name == "chatstack.client.collecting"] == [
        "the end of something that the garbage collector has found raised"
    ] * 2


def test_an_end_that_is_told_an_hour_late_was_an_hour_ago() -> None:
    class Left:
        def __del__(self) -> None:
            outside_collector(lambda: told.append(seconds_late()))

    told: list[float] = []
    leave(Left())
    gc.collect()
    assert told == []
    since, call = collecting._postponed[0]  # pyright: ignore[reportPrivateUsage]
    collecting._postponed[0] = (since - 3_600, call)  # pyright: ignore[reportPrivateUsage]
    call_postponed()
    assert [each >= 3_600 for each in told] == [True]
    assert seconds_late() == 0


def test_the_span_of_a_stream_that_is_told_late_ends_when_it_was_collected() -> None:
    watched = Watched()
    asyncio.run(_left(watched))
    gc.collect()
    kept = [*collecting._postponed]  # pyright: ignore[reportPrivateUsage]
    collecting._postponed.clear()  # pyright: ignore[reportPrivateUsage]
    collecting._postponed.extend((since - 3_600, call) for since, call in kept)  # pyright: ignore[reportPrivateUsage]
    call_postponed()
    assert [span.start_time - span.end_time > 3_000 * 10**9 for span in watched.spans] == [True, True]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_tells_nothing_that_its_parent_will_tell() -> None:
    watched = Watched()
    asyncio.run(_left(watched))
    gc.collect()
    child = os.fork()
    if child == 0:
        call_postponed()
        os._exit(len(watched.ends))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    call_postponed()
    assert sorted(name for name, _ in watched.ends) == ["chat script", "invoke_agent chat"]


async def _left(watched: Watched) -> None:
    leave(await a_stream(watched))


def test_what_is_collected_last_is_told_at_the_exit_of_the_process() -> None:
    command = [sys.executable, str(Path(__file__).with_name("at_exit.py")), "collects_a_stream"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert "'gen_ai.client.operation.duration': [1]" in ran.stdout
