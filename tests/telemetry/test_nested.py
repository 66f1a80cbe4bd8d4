"""A model call that others instrument as well: one span, and one set of metrics, by whoever is to make them."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

import httpx2
import pytest
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from opentelemetry import baggage, propagate
from opentelemetry import context as otel
from opentelemetry.instrumentation.genai.anthropic import AnthropicInstrumentor  # pyright: ignore[reportMissingTypeStubs]
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor  # pyright: ignore[reportMissingTypeStubs]
from opentelemetry.instrumentation.httpx import HTTPX2ClientInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.genai.handler import TelemetryHandler  # pyright: ignore[reportMissingTypeStubs]

from chatstack import (
    ChatStack,
    ContextOverflowError,
    ContextWindowGuard,
    FunctionInvoker,
    ModelTracer,
    ProgressEvent,
    ProgressReporter,
    RateLimitError,
    Telemetry,
    WiringError,
)
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.telemetry.nested import suppressing
from chatstack.telemetry.tracer import Nested
from chatstack.telemetry.turns import attached
from chatstack.testing import ScriptedClient
from chatstack.testing.leftovers import complaints
from tests.servers import MockServer, mock_server

Wire = Literal["chat", "responses", "anthropic"]
WIRES: tuple[Wire, ...] = ("chat", "responses", "anthropic")
OPENAI = "opentelemetry.instrumentation.genai.openai"
HTTP = "opentelemetry.instrumentation.httpx"
ANTHROPIC = "opentelemetry.instrumentation.genai.anthropic"
SDK = "com.anthropic.sdk.python"
OTHERS = {"chat": [OPENAI, HTTP], "responses": [OPENAI, HTTP], "anthropic": [ANTHROPIC, SDK, HTTP]}
"""Who records a call, beside ``chatstack``, from the outside in."""
DURATION, TOKENS = "gen_ai.client.operation.duration", "gen_ai.client.token.usage"
ANSWER = (
    b'{"id": "m-1", "type": "message", "role": "assistant", "model": "claude", "stop_reason": "end_turn",'
    b' "content": [{"type": "text", "text": "fine"}], "usage": {"input_tokens": 3, "output_tokens": 1}}'
)
CHAT = (
    b'{"id": "c", "object": "chat.completion", "created": 1, "model": "gpt", "choices": [{"index": 0, "finish_reason":'
    b' "stop", "message": {"role": "assistant", "content": "fine"}}]}'
)
RESPONSE = (
    b'{"id": "r", "object": "response", "created_at": 1, "model": "gpt", "status": "completed", "output": [{"type":'
    b' "message", "id": "i", "role": "assistant", "content": [{"type": "output_text", "text": "fine"}]}]}'
)
CLAUDE = "chat claude-sonnet-4-5"
OVERFLOWS = "word " * 5_000

streamed_or_not = pytest.mark.parametrize("streaming", [False, True])
on_every_wire = pytest.mark.parametrize("wire", WIRES)
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore:The model:DeprecationWarning")]


class Recording:
    """Spans and metrics of everybody, by who made them; and the server that is called."""

    def __init__(self, server: MockServer) -> None:
        self.server = server
        self.started: list[ReadableSpan] = []
        started = self.started

        class Starts(SpanProcessor):
            def on_start(self, span: Span, parent_context: otel.Context | None = None) -> None:
                started.append(span)

        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(Starts())
        self._reader = InMemoryMetricReader()
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.telemetry = Telemetry(tracer_provider=self.tracers, meter_provider=self.meters)

    def resolve(self, kind: type) -> object:
        if kind is Telemetry:
            return self.telemetry
        raise LookupError(kind)

    @property
    def makers(self) -> list[str]:
        """Who made the spans that have ended, in the order in which they began."""
        return [maker_of(span) for span in self.started if span.end_time is not None]

    def points(self, name: str) -> dict[str, int]:
        """How often a metric was recorded, by who did."""
        found: Counter[str] = Counter()
        data: Any = self._reader.get_metrics_data()
        scopes = [scope for each in data.resource_metrics for scope in each.scope_metrics] if data is not None else []
        for each in scopes:
            points = [point for metric in each.metrics if metric.name == name for point in metric.data.data_points]
            found[each.scope.name] += sum(point.count for point in points)
        return dict(+found)


def maker_of(span: ReadableSpan) -> str:
    return span.instrumentation_scope.name if span.instrumentation_scope is not None else ""


def attributes_of(span: ReadableSpan) -> Mapping[str, object]:
    return span.attributes or {}


@pytest.fixture(scope="module")
def server() -> Iterator[MockServer]:
    with mock_server(context_window=2_000) as running:
        yield running


@pytest.fixture
def recording(server: MockServer) -> Iterator[Recording]:
    """Everything that instruments our SDKs is active, as with ``opentelemetry-instrument``."""
    server.reset()
    made = Recording(server)
    instrumentors = (OpenAIInstrumentor(), AnthropicInstrumentor(), HTTPX2ClientInstrumentor())
    for each in instrumentors:
        each.instrument(tracer_provider=made.tracers, meter_provider=made.meters)
    yield made
    for each in instrumentors:
        each.uninstrument()


@asynccontextmanager
async def provider(recording: Recording, wire: Wire) -> AsyncGenerator[Any]:
    if wire == "anthropic":
        spans: Any = {"tracer_provider": recording.tracers}
        url = recording.server.anthropic_url
        async with AsyncAnthropic(api_key="any", base_url=url, max_retries=0, open_telemetry=spans) as claude:
            yield AnthropicChatClient("claude-sonnet-4-5", client=claude)
    else:
        made = OpenAIChatClient if wire == "chat" else OpenAIResponsesClient
        async with AsyncOpenAI(api_key="any", base_url=recording.server.openai_url, max_retries=0) as openai:
            yield made("gpt-5-mini", client=openai)


async def ask(client: Any, text: str = "hello", *, streaming: bool = False) -> None:
    await (client.get_streaming_response(text).response() if streaming else client.get_response(text))


async def ask_another(server: MockServer) -> None:
    """A call that is none of ours."""
    async with AsyncOpenAI(api_key="any", base_url=server.openai_url) as sdk:
        await sdk.chat.completions.create(model="small", messages=[{"role": "user", "content": "hello"}])


@on_every_wire
@pytest.mark.parametrize(
    ("streaming", "error"), [(False, None), (True, None), (True, RateLimitError), (False, ContextOverflowError)]
)
@pytest.mark.parametrize("nested", ["suppress", "keep", "defer"])
def test_a_call_is_recorded_once_by_each_that_is_to_record_it(
    recording: Recording, wire: Wire, streaming: bool, error: type[Exception] | None, nested: Nested
) -> None:
    if error is RateLimitError:
        recording.server.script({"type": "fail", "status": 429})

    async def run() -> None:
        async with provider(recording, wire) as innermost:
            client = ModelTracer(innermost, telemetry=recording.telemetry, nested=nested)
            await ask(client, OVERFLOWS if error is ContextOverflowError else "hello", streaming=streaming)

    with pytest.raises(error) if error is not None else nullcontext():
        asyncio.run(run())
    ours = ["chatstack"] if nested != "defer" else []
    others = OTHERS[wire] if nested != "suppress" else []
    assert recording.makers == [*ours, *others]
    assert [span.parent for span in recording.started] == [None, *(span.context for span in recording.started[:-1])]
    metered = [*ours, *others[:1]]
    assert recording.points(DURATION) == dict.fromkeys(metered, 1)
    assert recording.points(TOKENS) == (dict.fromkeys(metered, 2) if error is None else {})
    if ours and error is not None:
        assert attributes_of(recording.started[0])["error.type"] == error.__name__


@streamed_or_not
@on_every_wire
def test_without_a_model_tracer_the_others_record_as_usual(recording: Recording, wire: Wire, streaming: bool) -> None:
    async def run() -> None:
        async with provider(recording, wire) as innermost:
            stack = ChatStack(innermost, trace_model_calls=False).use(ProgressReporter)
            await ask(stack.build(recording.resolve), streaming=streaming)

    asyncio.run(run())
    assert recording.makers == ["chatstack", *OTHERS[wire]]  # the turn
    assert recording.points(DURATION) == {OTHERS[wire][0]: 1}
    assert recording.points("gen_ai.invoke_agent.duration") == {"chatstack": 1}


@on_every_wire
def test_with_defer_listeners_hear_of_calls_and_warnings_roll_up_to_the_turn(recording: Recording, wire: Wire) -> None:
    heard: list[ProgressEvent] = []

    async def run() -> None:
        async with provider(recording, wire) as innermost:
            stack = ChatStack(innermost).use(ProgressReporter, on_progress=heard.append)
            stack = stack.use(ContextWindowGuard, max_context_tokens=1).use(ModelTracer, nested="defer")
            async with stack.build(recording.resolve) as client:
                await ask(client)

    asyncio.run(run())
    assert recording.makers == ["chatstack", "chatstack", *OTHERS[wire]]
    assert [span.name for span in recording.started[:2]] == ["invoke_agent chat", "context_guard"]
    assert attributes_of(recording.started[0])["chatstack.warning.count"] == 1
    assert [event.kind for event in heard[3:5]] == ["model_call_started", "model_call_ended"]


# What is not of the call is recorded as ever


@streamed_or_not
def test_a_tool_that_calls_an_sdk_itself_has_the_spans_of_its_instrumentation(
    recording: Recording, streaming: bool
) -> None:
    async def translate() -> str:
        await ask_another(recording.server)
        return "done"

    async def run() -> None:
        async with provider(recording, "chat") as innermost:
            stack = ChatStack(innermost).use(FunctionInvoker, tools=[translate])
            await ask(stack.build(recording.resolve), streaming=streaming)

    call: Any = {"name": "translate", "arguments": {}}
    recording.server.script({"type": "reply", "tool_calls": [call]}, {"type": "reply", "text": "ok"})
    asyncio.run(run())
    assert [(maker_of(span), span.name) for span in recording.started if maker_of(span) != HTTP] == [
        ("chatstack", "chat gpt-5-mini"),
        ("chatstack", "execute_tool translate"),
        (OPENAI, "chat small"),
        ("chatstack", "chat gpt-5-mini"),
    ]
    assert recording.points(DURATION) == {"chatstack": 2, OPENAI: 1}


def test_what_is_called_between_two_updates_has_the_spans_of_its_instrumentation(recording: Recording) -> None:
    async def run() -> None:
        async with provider(recording, "chat") as innermost:
            client = ModelTracer(innermost, telemetry=recording.telemetry)
            async with client.get_streaming_response("hello") as stream:
                await stream.__anext__()
                await ask_another(recording.server)

    asyncio.run(run())
    assert recording.makers == ["chatstack", OPENAI, HTTP]
    assert recording.points(DURATION) == {"chatstack": 1, OPENAI: 1}


@pytest.mark.parametrize("how", ["closed", "dropped", "cancelled"])
@on_every_wire
def test_a_stream_that_ends_early_is_one_ended_span_and_no_complaint(
    recording: Recording, wire: Wire, how: str
) -> None:
    recording.server.script({"type": "stream_fault", "kind": "stall", "after_chunks": 8, "stall_seconds": 20})

    async def run() -> None:
        async with provider(recording, wire) as innermost:
            stream = ModelTracer(innermost, telemetry=recording.telemetry).get_streaming_response("tell me a story")
            await stream.__anext__()
            if how == "closed":
                await stream.aclose()
            elif how == "cancelled":
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(stream.response(), 0.2)
            del stream
            gc.collect()
            await asyncio.sleep(0.05)  # the loop closes the generators of what was dropped

    with complaints() as heard:
        asyncio.run(run())
    (span,) = recording.started
    assert (recording.makers, heard) == (["chatstack"], [])
    assert (attributes_of(span)["error.type"], span.status.is_unset) == ("cancelled", True)


def test_a_key_that_is_changed_between_two_calls_is_sent(recording: Recording) -> None:
    keys: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        keys.append(request.headers["authorization"])
        return httpx2.Response(200, content=ANSWER, headers={"content-type": "application/json"})

    async def run() -> None:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
            spans: Any = {"tracer_provider": recording.tracers}
            sdk = AsyncAnthropic(api_key="one", http_client=http, open_telemetry=spans)
            client = ModelTracer(AnthropicChatClient("claude", client=sdk), telemetry=recording.telemetry)
            await client.get_response("hello")
            sdk.api_key = "two"
            await client.get_response("hello")
            await sdk.messages.create(model="claude", max_tokens=5, messages=[{"role": "user", "content": "hello"}])

    asyncio.run(run())
    assert keys == ["Bearer one", "Bearer two", "Bearer two"]
    # Outside of our calls the client has its spans as ever.
    assert recording.makers == ["chatstack", "chatstack", ANTHROPIC, SDK]


def headers_of(wire: Wire, recording: Recording, **options: Any) -> tuple[Any, list[httpx2.Headers]]:
    """A provider of that wire over a transport that keeps the headers of what is sent."""
    seen: list[httpx2.Headers] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.headers)
        content = {"messages": ANSWER, "completions": CHAT, "responses": RESPONSE}[request.url.path.rpartition("/")[2]]
        return httpx2.Response(200, content=content, headers={"content-type": "application/json"})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    if wire == "anthropic":
        spans: Any = {"tracer_provider": recording.tracers, **options}
        sdk = AsyncAnthropic(api_key="any", http_client=http, open_telemetry=spans)
        return AnthropicChatClient("claude", client=sdk), seen
    made = OpenAIChatClient if wire == "chat" else OpenAIResponsesClient
    return made("gpt", client=AsyncOpenAI(api_key="any", http_client=http)), seen


@on_every_wire
@pytest.mark.parametrize("nested", ["suppress", "keep", "defer"])
@pytest.mark.parametrize("instrumented", [True, False], ids=["instrumented", "plain"])
def test_the_trace_goes_out_with_every_call_whoever_has_its_span(
    server: MockServer, wire: Wire, nested: Nested, instrumented: bool, request: pytest.FixtureRequest
) -> None:
    """The header names the innermost span: ours where others are suppressed, else that of whoever is nearest."""
    recording = request.getfixturevalue("recording") if instrumented else Recording(server)
    client, seen = headers_of(wire, recording)
    tracer = recording.tracers.get_tracer("web")
    with tracer.start_as_current_span("POST /chat"), attached(baggage.set_baggage("user", "u-42")):
        asyncio.run(ModelTracer(client, telemetry=recording.telemetry, nested=nested).get_response("hello"))
    (headers,) = seen
    (ours,) = [span for span in recording.started if maker_of(span) == "chatstack"] or [None]
    _, trace_id, span_id, _ = headers["traceparent"].split("-")
    sent = {format(span.context.span_id, "016x") for span in recording.started}
    assert trace_id == format(recording.started[0].context.trace_id, "032x")
    assert span_id in sent
    if nested == "suppress":
        assert ours is not None
        assert span_id == format(ours.context.span_id, "016x")
        assert "baggage" not in headers
    elif wire == "anthropic":
        assert span_id == format(recording.started[-1].context.span_id, "016x")


@on_every_wire
def test_outside_of_a_trace_no_header_of_one_goes_out(server: MockServer, wire: Wire) -> None:
    client, seen = headers_of(wire, Recording(server), traces=False)
    asyncio.run(client.get_response("hello"))
    assert "traceparent" not in seen[0]


def test_a_client_that_is_told_not_to_send_the_trace_does_not(server: MockServer) -> None:
    recording = Recording(server)
    client, seen = headers_of("anthropic", recording, propagation=False)
    asyncio.run(ModelTracer(client, telemetry=recording.telemetry).get_response("hello"))
    assert "traceparent" not in seen[0]


def test_a_propagator_that_fails_or_is_not_there_fails_no_call(server: MockServer) -> None:
    class Failing(TraceContextTextMapPropagator):
        def inject(self, *args: Any, **options: Any) -> None:
            raise OSError("no")

    recording, before = Recording(server), propagate.get_global_textmap()
    propagate.set_global_textmap(Failing())
    try:
        client, seen = headers_of("chat", recording)
        asyncio.run(ModelTracer(client, telemetry=recording.telemetry).get_response("hello"))
    finally:
        propagate.set_global_textmap(before)
    assert "traceparent" not in seen[0]
    command = [
        sys.executable,
        "-c",
        "from chatstack.telemetry.propagation import trace_headers; print(trace_headers())",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, env={"OTEL_PROPAGATORS": "nobody"})
    assert ran.stdout == "{}\n"


def test_with_global_providers_the_switch_is_found_whenever_an_instrumentation_comes(server: MockServer) -> None:
    command = [
        sys.executable,
        str(Path(__file__).with_name("at_exit.py")),
        "instrumented",
        server.openai_url,
        server.anthropic_url,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.stderr == ""
    assert json.loads(ran.stdout) == {
        "before": ["chatstack chat gpt-5-mini", f"chatstack {CLAUDE}"],
        "after": ["chatstack chat gpt-5-mini", f"chatstack {CLAUDE}"],
        "without": [f"{OPENAI} chat gpt-5-mini", f"{ANTHROPIC} {CLAUDE}", f"{SDK} anthropic.messages.create"],
    }


def test_an_unknown_way_fails_where_it_is_made() -> None:
    with pytest.raises(WiringError, match=r"^ModelTracer: nested='off' must be 'suppress', 'keep' or 'defer'$"):
        ModelTracer(ScriptedClient(), nested="off")  # type: ignore[arg-type]


def test_the_library_of_the_genai_instrumentations_steps_back_in_our_context(recording: Recording) -> None:
    handler = TelemetryHandler(tracer_provider=recording.tracers, meter_provider=recording.meters)

    def call() -> None:
        invocation = handler.inference("openai", request_model="m")
        invocation.input_tokens = invocation.output_tokens = 5
        invocation.stop()

    ours = suppressing(otel.get_current())
    assert otel.get_value("suppress_instrumentation", ours) is True  # what all others look for
    with attached(ours):
        call()
    assert (recording.started, recording.points(DURATION), recording.points(TOKENS)) == ([], {}, {})
    call()
    assert [span.name for span in recording.started] == ["chat m"]
    assert len(recording.points(TOKENS)) == len(recording.points(DURATION)) == 1
