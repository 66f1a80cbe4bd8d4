"""Programs that tests run as processes of their own: with the process's providers, and with an end of it."""

from __future__ import annotations

import asyncio
import atexit
import gc
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatstack import (
    BuiltClient,
    ChatStack,
    ChatStream,
    FunctionInvoker,
    Message,
    ModelTracer,
    ProgressReporter,
    Telemetry,
    ToolCall,
)
from chatstack.testing import Answer, ScriptedClient

kept: list[ChatStream] = []
"""What nobody closes."""


# A process that ends


class Lines(SpanExporter, SpanProcessor):
    """Writes a line for every span that begins, and one for every span that is exported."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        write("began", span)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            write("exported", span)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


def write(what: str, span: ReadableSpan) -> None:
    error = (span.attributes or {}).get("error.type", "")
    said = [what, f"{span.context.span_id:x}" if span.context else "", span.name, error, span.status.status_code.name]
    os.write(1, (json.dumps([*said, span.end_time is not None]) + "\n").encode())  # also while the interpreter ends


def lines() -> TracerProvider:
    """A provider as applications have it: it shuts down with the process."""
    provider, written = TracerProvider(), Lines()
    provider.add_span_processor(written)
    provider.add_span_processor(BatchSpanProcessor(written))
    return provider


def client(tool: Callable[..., object] | None = None, *, provider: TracerProvider | None = None) -> BuiltClient:
    tools = [] if tool is None else [tool]
    first: list[Answer] = (
        ["a long story"] if tool is None else [Message.assistant(ToolCall("1", tool.__name__)), "done"]
    )
    stack = ChatStack(ScriptedClient(first, delay_seconds=0.001)).use(ProgressReporter)
    telemetry = Telemetry(tracer_provider=provider or lines())
    return stack.use(FunctionInvoker, tools=tools).build(lambda kind: given(kind, telemetry))


def given(kind: type, telemetry: Telemetry) -> object:
    if kind is Telemetry:
        return telemetry
    raise LookupError(kind)


def exits_while_it_reads() -> None:
    async def run() -> None:
        async for _ in client().get_streaming_response("hello"):
            sys.exit(3)

    asyncio.run(run())


def exits_in_a_tool() -> None:
    def leave() -> None:
        sys.exit(3)

    asyncio.run(client(leave).get_response("hello"))


def ends_with_an_open_stream() -> None:
    async def run() -> None:
        kept.append(client().get_streaming_response("hello"))
        await anext(kept[0])

    asyncio.run(run())


def ends_with_an_open_loop() -> None:
    kept.append(client().get_streaming_response("hello"))
    asyncio.new_event_loop().run_until_complete(anext(kept[0]))


def ends_with_streams_of_two_providers() -> None:
    async def run() -> None:
        for _ in range(2):
            kept.append(client(provider=lines()).get_streaming_response("hello"))
            await anext(kept[-1])

    asyncio.run(run())


def ends_while_another_thread_calls() -> None:
    began = threading.Event()

    async def wait() -> None:
        began.set()
        await asyncio.sleep(3_600)

    calling = client(wait).get_response("hello")
    threading.Thread(target=lambda: asyncio.run(calling), daemon=True).start()
    began.wait(300)


def leaves_a_task_behind() -> None:
    """Closes its loop while a call waits, and goes on."""

    async def wait() -> None:
        await asyncio.sleep(3_600)

    loop = asyncio.new_event_loop()
    task = loop.create_task(client(wait).get_response("hello"))
    loop.run_until_complete(asyncio.sleep(0.3))
    loop.close()
    del task
    gc.collect()


def collects_a_stream() -> None:
    """Where no event loop runs, and no call follows; writes how often the duration of a call was recorded."""
    reader = InMemoryMetricReader()
    meters = MeterProvider([reader], shutdown_on_exit=False)

    def show() -> None:
        found: Any = reader.get_metrics_data()
        metrics = found.resource_metrics[0].scope_metrics[0].metrics if found is not None else []
        print({metric.name: [point.count for point in metric.data.data_points] for metric in metrics})

    atexit.register(show)
    client = ModelTracer(ScriptedClient(["a long story"]), telemetry=Telemetry(meter_provider=meters))

    async def leave() -> None:
        cycle: list[object] = [client.get_streaming_response("hello")]
        cycle.append(cycle)
        await anext(cycle[0])  # type: ignore[call-overload]

    gc.disable()
    asyncio.run(leave())
    gc.collect()


def is_killed_in_a_tool(name: str) -> None:
    """By a signal: the parent process need not wait for us."""

    async def wait() -> None:
        os.kill(os.getpid(), signal.Signals[name])
        await asyncio.sleep(3_600)

    def stop(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(3)

    if name == "SIGTERM":
        signal.signal(signal.SIGTERM, stop)
    asyncio.run(client(wait).get_response("hello"))


def forks(how: str) -> None:
    """A child that is made and ends in the middle of a call of its parent, which has an open stream besides."""

    async def fork() -> None:
        child = os.fork()
        if child:
            os.waitpid(child, 0)  # noqa: ASYNC222 - nothing else is to happen meanwhile
        elif how == "calls":
            calling = threading.Thread(target=lambda: asyncio.run(client().get_response("hello")))
            calling.start()
            calling.join()
            sys.exit(0)
        elif how == "drops":
            kept.clear()
            sys.exit(0)
        else:
            raise {"exits": SystemExit(0), "interrupts": KeyboardInterrupt()}[how]

    ends_with_an_open_stream()
    asyncio.run(client(fork).get_response("hello"))


# A process that is instrumented


def instrumented(openai_url: str, anthropic_url: str) -> None:
    """Calls before the instrumentations are there, after they came, and without a tracer of ours."""
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI

    from chatstack.providers.anthropic import AnthropicChatClient
    from chatstack.providers.openai import OpenAIChatClient

    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(tracers)

    def made() -> list[str]:
        spans = sorted(exporter.get_finished_spans(), key=lambda span: span.start_time or 0)
        exporter.clear()
        return [f"{scope(span)} {span.name}" for span in spans]

    async def run() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        async with (
            AsyncOpenAI(api_key="any", base_url=openai_url) as openai,
            AsyncAnthropic(api_key="any", base_url=anthropic_url) as anthropic,
        ):
            providers: list[Any] = [
                OpenAIChatClient("gpt-5-mini", client=openai),
                AnthropicChatClient("claude-sonnet-4-5", client=anthropic),
            ]
            for each in providers:
                await ModelTracer(each).get_response("hello")
            found["before"] = made()
            instrument()
            for each in providers:
                await ModelTracer(each).get_response("hello")
            found["after"] = made()
            for each in providers:
                await each.get_response("hello")
            found["without"] = made()
        return found

    print(json.dumps(asyncio.run(run())))


def instrument() -> None:
    from opentelemetry.instrumentation.genai.anthropic import AnthropicInstrumentor  # pyright: ignore[reportMissingTypeStubs]
    from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor  # pyright: ignore[reportMissingTypeStubs]

    OpenAIInstrumentor().instrument()
    AnthropicInstrumentor().instrument()


def scope(span: ReadableSpan) -> str:
    return span.instrumentation_scope.name if span.instrumentation_scope is not None else ""


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job would ignore it
    globals()[sys.argv[1]](*sys.argv[2:])
