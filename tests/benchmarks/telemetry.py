# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[openai]", "agent-framework-core>=1.23", "opentelemetry-sdk>=1.37"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What telemetry costs, as ratios in one run: ``uv run tests/benchmarks/telemetry.py``.

Subjects are timed in turn, over and over, so that a machine that changes its speed changes it for all; the ratio
printed is the median of the ratios of the rounds, with the lowest and the highest beside it. Times are CPU times of
this process, the thread that exports included.

The SDK has a batch processor whose exporter drops what it is given, and a metric reader that nobody asks; it is the
same one for all. "By hand" is the same stack, its telemetry silent, and around and inside of it code that records the
same with the SDK: that it is the same is checked before anything is timed. "Nothing configured" is the stack as it
comes, without an SDK; "no telemetry" is the stack without reporter and tracer, with a ``Telemetry`` whose one method
on the way, ``weighed``, does nothing. (The tool loop's look for the turn that runs is in both.)
"""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import agent_framework
import msgspec
from agent_framework.observability import enable_instrumentation
from layers import TEXT, FakeModel, TheirStack, add_one, look_on  # this and results are beside this file
from opentelemetry import metrics, trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NoOpTracerProvider, SpanKind
from results import Run

import chatstack
from chatstack import semconv

ROUNDS = 21
CALLS = 200
CHUNKS = 2_000
LIMIT = 100_000
ID = "c-1"

NOT_OURS = {"Agent Framework's client stack of four (one span)", "Agent Framework's agent over it (two spans)"}

Call = Callable[[], Awaitable[object]]


def main() -> None:
    run = Run.from_command_line("telemetry", __doc__, rounds=ROUNDS)
    names = ("opentelemetry-sdk", "agent-framework-core")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    print(f"Python {platform.python_version()}, {versions}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    gc.collect()
    gc.freeze()  # what the imports have made is nobody's cost
    asyncio.run(check())
    asyncio.run(without_sdk(run))
    exporter, tracers, meters = Nowhere(), TracerProvider(), MeterProvider([InMemoryMetricReader()])
    tracers.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    enable_instrumentation()
    asyncio.run(with_sdk(run, tracers, meters))
    per_call = 2 + 2 + 0 + 1 + 2  # none was lost on the way
    assert exporter.count == run.rounds * (CALLS + 1) * per_call, exporter.count
    asyncio.run(streaming(run, tracers, meters))
    run.write()


async def without_sdk(run: Run) -> None:
    """First, for an SDK that is configured stays."""
    await compare(
        run,
        [
            ("a call through four layers, nothing configured", ours(chatstack.Telemetry())),
            ("the same, no telemetry", ours(NoTelemetry(), is_reported=False)),
        ],
    )


async def with_sdk(run: Run, tracers: TracerProvider, meters: MeterProvider) -> None:
    subjects = [
        ("a call through four layers, recorded", ours(chatstack.Telemetry())),
        ("the same, recorded by hand with the SDK", by_hand(tracers, meters)),
        ("the same, silent", ours(silent())),
        ("Agent Framework's client stack of four (one span)", theirs()),
        ("Agent Framework's agent over it (two spans)", theirs(in_agent=True)),
    ]
    await compare(run, subjects, after=tracers.force_flush)


async def streaming(run: Run, tracers: TracerProvider, meters: MeterProvider) -> None:
    unmeasured = chatstack.Telemetry(meter_provider=NoOpMeterProvider())
    subjects = [
        ("a chunk through four layers, recorded", streamed(stack_of(Model(CHUNKS), chatstack.Telemetry()))),
        ("the same, spans without metrics", streamed(stack_of(Model(CHUNKS), unmeasured))),
        ("the same, silent", streamed(stack_of(Model(CHUNKS), silent()))),
        ("the same, silent, and each chunk measured by hand", chunks_by_hand(meters, CHUNKS)),
        ("a chunk of the model alone", streamed(Model(CHUNKS))),
    ]
    await compare(run, subjects, calls=1, units=CHUNKS, after=tracers.force_flush)


async def compare(
    run: Run,
    subjects: Sequence[tuple[str, Call]],
    *,
    calls: int = CALLS,
    units: int = 1,
    after: Callable[[], object] = lambda: None,
) -> None:
    """Print what each takes, and the ratio of the first to each of the others, round by round."""
    taken: list[list[float]] = [[] for _ in subjects]
    for number in range(run.rounds):
        for turn in range(len(subjects)):
            place = (turn + number) % len(subjects)  # nobody always comes first
            taken[place].append(await seconds_of(subjects[place][1], calls, after) / units * 1e6)
    print(f"{subjects[0][0]}: {statistics.median(taken[0]):,.2f} us ({run.rounds} rounds)")
    for (title, _), times in zip(subjects, taken, strict=True):
        name = title if title == subjects[0][0] else f"{title} (beside {subjects[0][0]})"
        run.seconds(name, [each / 1e6 for each in times], is_ours=title not in NOT_OURS)
    for (title, _), times in zip(subjects[1:], taken[1:], strict=True):
        ratios = sorted(mine / other for mine, other in zip(taken[0], times, strict=True))
        middle = statistics.median(ratios)
        print(f"  / {title}: {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}); {statistics.median(times):,.2f} us")


async def seconds_of(call: Call, calls: int, after: Callable[[], object]) -> float:
    """CPU time of one call; what is left to be exported is part of it."""
    await call()
    after()
    gc.collect()
    started = time.process_time()
    for _ in range(calls):
        await call()
    after()
    return (time.process_time() - started) / calls


class Nowhere(SpanExporter):
    """Drops what it is given, and knows how much that was."""

    count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += len(spans)
        return SpanExportResult.SUCCESS


# ours


class Model(FakeModel):
    """Answers at once, and reports what a provider reports."""

    info = chatstack.ProviderInfo(name="fake", model="none", server_address="127.0.0.1", server_port=80)

    def __init__(self, chunks: int = 1) -> None:
        super().__init__(chunks)
        usage = chatstack.Usage(100, 1)
        self.updates[-1] = msgspec.structs.replace(self.updates[-1], usage=usage, response_id="r-1", model="none-1")


class NoTelemetry(chatstack.Telemetry):
    def weighed(self, tokens: int, limit: int) -> None:
        pass


def silent() -> chatstack.Telemetry:
    """What records nothing although an SDK is configured."""
    return chatstack.Telemetry(tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())


def stack_of(
    model: chatstack.ChatFronts, telemetry: chatstack.Telemetry, *, is_reported: bool = True
) -> chatstack.ChatFronts:
    stack = chatstack.ChatStack(model, trace_model_calls=is_reported)
    if is_reported:
        stack = stack.use(chatstack.ProgressReporter)
    stack = stack.use(chatstack.FunctionInvoker, tools=[add_one])
    stack = stack.use(chatstack.ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
    return stack.build({chatstack.Telemetry: telemetry}.__getitem__)


def conversation() -> list[chatstack.Message]:
    make = (chatstack.Message.user, chatstack.Message.assistant)
    return [make[number % 2](TEXT) for number in range(3)]


def ours(telemetry: chatstack.Telemetry, *, is_reported: bool = True) -> Call:
    client, messages = stack_of(Model(), telemetry, is_reported=is_reported), conversation()
    return lambda: client.get_response(messages, conversation_id=ID)


def streamed(client: chatstack.ChatFronts) -> Call:
    async def call() -> None:
        async for _ in client.get_streaming_response("hello", conversation_id=ID):
            pass

    return call


# by hand

ABOUT: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "fake",
    "gen_ai.request.model": "none",
    "server.address": "127.0.0.1",
    "server.port": 80,
}


class RecordedByHand(Model):
    """A model whose calls are recorded as the tracer records them."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter) -> None:
        super().__init__()
        self.tracer = tracer
        self.duration = histogram(meter, semconv.CHAT_DURATION)
        self.tokens = histogram(meter, semconv.CHAT_TOKENS)

    async def send(self, request: chatstack.ChatRequest, /) -> chatstack.ChatStream:
        about = {**ABOUT, "gen_ai.conversation.id": request.conversation_id, "chatstack.iteration": 0}
        started = time.perf_counter()
        span = self.tracer.start_span("chat none", kind=SpanKind.CLIENT, attributes=about)
        with trace.use_span(span):
            stream = await super().send(request)
        stream.when_answered(lambda answer: self.ended(span, started, answer))
        return stream

    def ended(self, span: trace.Span, started: float, answer: chatstack.ChatResponse) -> None:
        span.set_attributes(
            {
                "gen_ai.response.id": answer.id,
                "gen_ai.response.model": answer.model,
                "gen_ai.response.finish_reasons": [answer.finish_reason or ""],
                "gen_ai.usage.input_tokens": answer.usage.input_tokens,
                "gen_ai.usage.output_tokens": answer.usage.output_tokens,
            }
        )
        span.end()
        labels = {**ABOUT, "gen_ai.response.model": answer.model}
        self.tokens.record(answer.usage.input_tokens, {**labels, "gen_ai.token.type": "input"})
        self.tokens.record(answer.usage.output_tokens, {**labels, "gen_ai.token.type": "output"})
        self.duration.record(time.perf_counter() - started, labels)


class WeighedByHand(NoTelemetry):
    """Whoever records by hand is told, for nothing, how full the guard finds the window."""

    def __init__(self, meter: metrics.Meter) -> None:
        super().__init__(tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
        self.share = 0.0
        self.shares = histogram(meter, semconv.UTILIZATION)

    def weighed(self, tokens: int, limit: int) -> None:
        self.share = tokens / limit
        self.shares.record(self.share)


def by_hand(tracers: trace.TracerProvider, meters: metrics.MeterProvider) -> Call:
    """The turn is recorded around the stack, the model call inside."""
    tracer, meter = tracers.get_tracer("by hand"), meters.get_meter("by hand")
    duration = histogram(meter, semconv.AGENT_DURATION)
    weighed, messages = WeighedByHand(meter), conversation()
    client = stack_of(RecordedByHand(tracer, meter), weighed)

    async def call() -> None:
        about = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "chat",
            "gen_ai.conversation.id": ID,
            "input.value": f"{ID}, {len(messages)} messages",
        }
        started = time.perf_counter()
        with tracer.start_as_current_span("invoke_agent chat", attributes=about) as span:
            answer = await client.get_response(messages, conversation_id=ID)
            span.set_attributes(
                {
                    "gen_ai.usage.input_tokens": answer.usage.input_tokens,
                    "gen_ai.usage.output_tokens": answer.usage.output_tokens,
                    "chatstack.context.utilization": round(weighed.share, 4),
                }
            )
        duration.record(time.perf_counter() - started, {"gen_ai.agent.name": "chat"})

    return call


def chunks_by_hand(meters: metrics.MeterProvider, chunks: int) -> Call:
    client, meter = stack_of(Model(chunks), silent()), meters.get_meter("by hand")
    between = histogram(meter, semconv.CHAT_NEXT_CHUNK)

    async def call() -> None:
        last = 0.0
        async for update in client.get_streaming_response("hello", conversation_id=ID):
            if update.text:
                now = time.perf_counter()
                if last:
                    between.record(now - last, ABOUT)
                last = now

    return call


def histogram(meter: metrics.Meter, known: tuple[str, str, tuple[float, ...]]) -> metrics.Histogram:
    name, unit, boundaries = known
    return meter.create_histogram(name, unit, explicit_bucket_boundaries_advisory=boundaries)


# what is recorded


async def check() -> None:
    """What is recorded by hand is what ours record, but for how long it took."""
    mine, other = Recorded(), Recorded()
    await ours(mine.telemetry)()
    await by_hand(other.tracers, other.meters)()
    same(mine.seen(), other.seen())
    mine, other = Recorded(), Recorded()
    await streamed(stack_of(Model(5), mine.telemetry))()
    await chunks_by_hand(other.meters, 5)()
    same([each for each in mine.seen() if str(each[0]).endswith("time_per_output_chunk")], other.seen())


def same(mine: list[Any], other: list[Any]) -> None:
    if not mine or mine != other:
        raise SystemExit(f"what is recorded by hand is not what ours record:\n{mine}\n{other}")


class Recorded:
    """An SDK that keeps what it is told."""

    def __init__(self) -> None:
        self.spans, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers, self.meters = TracerProvider(), MeterProvider([self.reader])
        self.tracers.add_span_processor(SimpleSpanProcessor(self.spans))
        self.telemetry = chatstack.Telemetry(tracer_provider=self.tracers, meter_provider=self.meters)

    def seen(self) -> list[Any]:
        """The spans, each with its parent, and the points of all histograms, without durations."""
        spans = self.spans.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans}
        found: list[Any] = [
            (span.name, span.kind, span.parent and names[span.parent.span_id], dict(span.attributes or {}))
            for span in spans
        ]
        data = self.reader.get_metrics_data()
        scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data else []
        for metric in sorted((each for scope in scopes for each in scope.metrics), key=lambda each: each.name):
            for point in metric.data.data_points:
                assert isinstance(point, HistogramDataPoint)
                total = 0.0 if metric.unit == "s" else point.sum
                found.append((metric.name, dict(point.attributes or {}), point.count, total))
        return found


# the others


class TheirModel(TheirStack):
    """A middleware that looks on, the function loop, compaction under a limit, telemetry; and the same reports."""

    async def answer(self) -> agent_framework.ChatResponse:
        return agent_framework.ChatResponse(
            messages=[agent_framework.Message("assistant", ["fine"])],
            response_id="r-1",
            model="none-1",
            finish_reason="stop",
            usage_details={"input_token_count": 100, "output_token_count": 1},
        )


def theirs(*, in_agent: bool = False) -> Call:
    tokenizer = agent_framework.CharacterEstimatorTokenizer()
    strategy = agent_framework.TruncationStrategy(max_n=LIMIT, compact_to=70_000, tokenizer=tokenizer)
    client = TheirModel(middleware=[look_on], compaction_strategy=strategy, tokenizer=tokenizer)
    messages = [agent_framework.Message(("user", "assistant")[number % 2], [TEXT]) for number in range(3)]
    tools = [agent_framework.tool(add_one)]
    if in_agent:
        agent = agent_framework.Agent(client, name="chat", tools=tools)
        return lambda: agent.run(messages, options={"model": "none"})
    return lambda: client.get_response(messages, options={"tools": tools, "model": "none"})


if __name__ == "__main__":
    main()
