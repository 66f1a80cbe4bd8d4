"""One ``chat`` span per model call, with the names of the conventions."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from opentelemetry import context as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult

from chatstack import (
    ChatClient,
    ChatFronts,
    ChatOptions,
    ChatRequest,
    ChatStream,
    ChatUpdate,
    ContextWindowGuard,
    Fallback,
    LayerOrderWarning,
    Message,
    ModelTracer,
    OutputSchema,
    ProgressEvent,
    ProgressReporter,
    ProviderInfo,
    RateLimitError,
    ServerError,
    Summarizer,
    Telemetry,
    Usage,
)
from chatstack.stack.recipe import ChatStack
from chatstack.telemetry.tracer import Nested
from chatstack.testing import Answer, ScriptedClient, TelemetryCapture

INFO = ProviderInfo(name="openai", model="gpt-5-mini", server_address="127.0.0.1", server_port=8080)


class Reports(ChatFronts):
    """A provider that reports everything that there is to report."""

    info = INFO

    async def send(self, request: ChatRequest, /) -> ChatStream:
        async def play() -> Any:
            yield ChatUpdate(text="hello")
            yield ChatUpdate(
                message_done=Message.assistant("hello"),
                usage=Usage(100, 20, cache_read_tokens=60, cache_write_tokens=30, reasoning_tokens=15),
                finish_reason="length",
                response_id="r-1",
                model="gpt-5-mini-2026",
            )

        return await ChatStream.primed(play())


class Traced:
    """A tracer around a provider, and what it said."""

    def __init__(self, provider: ChatFronts | None = None) -> None:
        self.provider = provider or ScriptedClient(["one two three"], info=INFO)
        self.capture = TelemetryCapture()
        self.client = ModelTracer(self.provider, telemetry=self.capture.telemetry)

    def ask(self, **options: Any) -> None:
        asyncio.run(self.client.get_response([Message.user("secret question")], **options))


def test_a_call_is_a_client_span_named_after_the_model() -> None:
    traced = Traced(Reports())
    traced.ask()
    span = traced.capture.span("chat gpt-5-mini")
    assert (span.kind, span.status) == ("CLIENT", "unset")
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5-mini",
        "server.address": "127.0.0.1",
        "server.port": 8080,
        "gen_ai.response.id": "r-1",
        "gen_ai.response.model": "gpt-5-mini-2026",
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.cache_write.input_tokens": 30,
        "gen_ai.usage.cache_creation.input_tokens": 30,
        "gen_ai.usage.reasoning.output_tokens": 15,
    }


def test_what_was_asked_for_is_on_the_span() -> None:
    traced = Traced()
    options = ChatOptions(
        model="gpt-5",
        max_tokens=50,
        temperature=0.5,
        top_p=0.9,
        seed=7,
        stop=("END",),
        reasoning_effort="low",
        output_schema=OutputSchema("answer", "{}"),
        instructions="secret instructions",
    )
    traced.ask(options=options, conversation_id="c-42")
    attributes = traced.capture.span("chat gpt-5").attributes
    wanted = {
        "gen_ai.request.model": "gpt-5",
        "gen_ai.request.max_tokens": 50,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.9,
        "gen_ai.request.seed": 7,
        "gen_ai.request.stop_sequences": ("END",),
        "gen_ai.request.reasoning.level": "low",
        "gen_ai.output.type": "json",
        "gen_ai.conversation.id": "c-42",
    }
    assert {name: attributes[name] for name in wanted} == wanted
    assert "gen_ai.request.stream" not in attributes


def test_what_samplers_need_is_there_at_the_start() -> None:
    seen: list[Mapping[str, Any]] = []

    class Keeps(Sampler):
        def should_sample(
            self,
            parent_context: Any,
            trace_id: int,
            name: str,
            kind: Any = None,
            attributes: Any = None,
            links: Sequence[Any] | None = None,
            trace_state: Any = None,
        ) -> SamplingResult:
            seen.append(dict(attributes or {}))
            return SamplingResult(Decision.DROP)

        def get_description(self) -> str:
            return "keeps"

    telemetry = Telemetry(tracer_provider=TracerProvider(sampler=Keeps(), shutdown_on_exit=False))
    client = ModelTracer(ScriptedClient(info=INFO), telemetry=telemetry)
    assert asyncio.run(client.get_response("hello", conversation_id="c")).text == "fine"
    assert seen == [
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "gpt-5-mini",
            "server.address": "127.0.0.1",
            "server.port": 8080,
            "gen_ai.conversation.id": "c",
        }
    ]


def test_a_provider_that_says_nothing_about_itself_is_unknown() -> None:
    class Silent(ChatFronts):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            return await ScriptedClient(["fine"]).send(request)

    traced = Traced(Silent())
    traced.ask()
    attributes = traced.capture.span("chat").attributes
    assert attributes["gen_ai.provider.name"] == "unknown"
    assert "gen_ai.request.model" not in attributes


def test_duration_and_tokens_are_measured() -> None:
    traced = Traced(Reports())
    traced.ask()
    labels = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5-mini",
        "gen_ai.response.model": "gpt-5-mini-2026",
        "server.address": "127.0.0.1",
        "server.port": 8080,
    }
    (duration,) = traced.capture.metric("gen_ai.client.operation.duration")
    assert (dict(duration.labels), duration.count) == (labels, 1)
    tokens = {
        point.labels["gen_ai.token.type"]: point.total for point in traced.capture.metric("gen_ai.client.token.usage")
    }
    assert tokens == {"input": 100, "output": 20}
    assert traced.capture.metric("gen_ai.client.operation.time_to_first_chunk") == ()


def test_a_streamed_call_says_so_and_how_long_the_first_chunk_took() -> None:
    traced = Traced(Reports())
    asyncio.run(traced.client.get_streaming_response("hello").response())
    attributes = traced.capture.span("chat gpt-5-mini").attributes
    assert attributes["gen_ai.request.stream"] is True
    seconds = attributes["gen_ai.response.time_to_first_chunk"]
    assert isinstance(seconds, float)
    assert 0 < seconds < 5
    (point,) = traced.capture.metric("gen_ai.client.operation.time_to_first_chunk")
    assert point.count == 1


def test_a_refused_call_has_a_span_too_and_never_the_text_of_the_error() -> None:
    traced = Traced(ScriptedClient([RateLimitError("your prompt was: secret question")], info=INFO))
    with pytest.raises(RateLimitError):
        traced.ask()
    span = traced.capture.span("chat gpt-5-mini")
    assert (span.status, span.status_text, span.attributes["error.type"]) == (
        "error",
        "RateLimitError",
        "RateLimitError",
    )
    assert span.events == ()
    (duration,) = traced.capture.metric("gen_ai.client.operation.duration")
    assert duration.labels["error.type"] == "RateLimitError"


def test_an_answer_that_breaks_off_is_an_error() -> None:
    traced = Traced(ScriptedClient([["half an ", ServerError("secret")]], info=INFO))
    with pytest.raises(ServerError):
        traced.ask()
    span = traced.capture.span("chat gpt-5-mini")
    assert (span.status, span.attributes["error.type"]) == ("error", "ServerError")


def test_a_cancelled_call_is_no_error() -> None:
    async def run(traced: Traced) -> None:
        asking = asyncio.ensure_future(traced.client.get_response("hello"))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    traced = Traced(ScriptedClient(["one two"], info=INFO, delay_seconds=1))
    asyncio.run(run(traced))
    span = traced.capture.span("chat gpt-5-mini")
    assert (span.status, span.attributes["error.type"]) == ("unset", "cancelled")


def test_a_stream_that_is_closed_early_ends_its_span_once() -> None:
    async def run(traced: Traced) -> None:
        async with traced.client.get_streaming_response("hello") as stream:
            await stream.__anext__()
        await stream.aclose()

    traced = Traced()
    asyncio.run(run(traced))
    span = traced.capture.span("chat gpt-5-mini")
    assert (span.status, span.attributes["error.type"]) == ("unset", "cancelled")
    (duration,) = traced.capture.metric("gen_ai.client.operation.duration")
    assert duration.count == 1


def test_a_stream_that_is_dropped_ends_its_span() -> None:
    async def run(traced: Traced) -> None:
        stream = traced.client.get_streaming_response("hello")
        await stream.__anext__()
        del stream
        gc.collect()
        assert traced.capture.open_spans == ()
        await asyncio.sleep(0)  # the loop closes the generator below

    traced = Traced()
    asyncio.run(run(traced))
    span = traced.capture.span("chat gpt-5-mini")
    assert (span.status, span.attributes["error.type"]) == ("unset", "cancelled")


def test_no_text_of_question_answer_or_instructions_is_anywhere() -> None:
    traced = Traced(ScriptedClient(["secret answer"], info=INFO))
    traced.ask(options=ChatOptions(instructions="secret instructions", stop=("END",)))
    assert "secret" not in repr([dict(span.attributes) for span in traced.capture.spans])


def test_without_a_reporter_the_call_is_the_root_that_warnings_roll_up_to() -> None:
    capture = TelemetryCapture()
    stack = ChatStack(ScriptedClient(info=INFO)).use(ModelTracer).use(ContextWindowGuard, max_context_tokens=5)
    with pytest.warns(LayerOrderWarning, match="'ModelTracer' is outside 'ContextWindowGuard'"):
        client = stack.build(capture.resolve)
    capture.clear()
    with capture.telemetry.tracer.start_as_current_span("a web request"):
        asyncio.run(client.get_response("hello there, you"))
    assert capture.tree() == [("a web request", [("chat gpt-5-mini", [("context_guard", [])])])]
    assert capture.span("chat gpt-5-mini").attributes["chatstack.warnings"] == ("context_window_exceeded",)
    assert dict(capture.span("a web request").attributes) == {}


def test_spans_that_the_provider_opens_are_inside_the_call() -> None:
    capture = TelemetryCapture()

    class Posts(ChatFronts):
        async def send(self, request: ChatRequest, /) -> ChatStream:
            with capture.telemetry.tracer.start_as_current_span("POST"):
                return await ScriptedClient(["fine"]).send(request)

    client = ModelTracer(Posts(), telemetry=capture.telemetry)
    asyncio.run(client.get_response("hello"))
    assert capture.tree() == [("chat", [("POST", [])])]


# Clients that are asked in the place of the provider, or beside it


class Instrumented(ScriptedClient):
    """A provider whose SDK opens a span of its own, unless somebody keeps it from that."""

    def __init__(self, capture: TelemetryCapture, *answers: Answer, model: str) -> None:
        super().__init__(answers, info=ProviderInfo(name="openai", model=model, window_tokens=100_000))
        self.capture = capture

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if otel.get_value("suppress_instrumentation"):
            return await super().send(request)
        with self.capture.telemetry.tracer.start_as_current_span(f"theirs {self.info.model}"):
            return await super().send(request)


BY_WHOM: Mapping[Nested, Any] = {
    "suppress": lambda model: (f"chat {model}", []),
    "keep": lambda model: (f"chat {model}", [(f"theirs {model}", [])]),
    "defer": lambda model: (f"theirs {model}", []),
}
as_nested = pytest.mark.parametrize("nested", BY_WHOM)


@as_nested
def test_the_other_clients_of_a_fallback_leave_spans_to_others_as_the_first_one_does(nested: Nested) -> None:
    capture = TelemetryCapture()
    first, second, third = (
        Instrumented(capture, answer, model=model)
        for answer, model in ((RateLimitError("no"), "a"), (RateLimitError("no"), "b"), ("fine", "c"))
    )
    stack = ChatStack(first).use(Fallback, clients=[second, Fallback(third, clients=[first])])
    asyncio.run(stack.use(ModelTracer, nested=nested).build(capture.resolve).get_response("hello"))
    assert capture.tree() == [BY_WHOM[nested](model) for model in "abc"]


@as_nested
def test_the_client_that_writes_summaries_leaves_spans_to_others_as_the_provider_does(nested: Nested) -> None:
    capture = TelemetryCapture()
    writer, provider = Instrumented(capture, "short", model="w"), Instrumented(capture, "fine", model="a")
    stack = ChatStack(provider).use(Summarizer, max_tokens=200, keep_recent_turns=1, summary_client=writer)
    history = [each("some words " * 20) for _ in range(6) for each in (Message.user, Message.assistant)]
    client = stack.use(ModelTracer, nested=nested).build(capture.resolve)
    asyncio.run(client.get_response([*history, Message.user("and now?")]))
    summary, chat = capture.tree()
    assert (summary, chat) == (("compact_context summarize", [BY_WHOM[nested]("w")]), BY_WHOM[nested]("a"))


# A client that asks other stacks


class Router:
    """Hands each request on to one of several stacks."""

    def __init__(self, *clients: ChatClient) -> None:
        self.clients = clients

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.clients[len(request.messages) % len(self.clients)].send(request)


def test_a_call_that_a_client_of_ones_own_hands_to_a_stack_is_counted_once_if_no_tracer_is_around_that_client() -> None:
    capture, events = TelemetryCapture(), list[ProgressEvent]()
    models = [ChatStack(ScriptedClient(info=ProviderInfo(name="openai", model=each))) for each in ("small", "large")]
    router = Router(*(each.build(capture.resolve) for each in models))
    stack = ChatStack(router, trace_model_calls=False).use(ProgressReporter, on_progress=events.append)

    async def run() -> None:
        async with stack.open(capture.resolve) as client:
            await client.get_response("hello")

    asyncio.run(run())
    assert capture.tree() == [("invoke_agent chat", [("chat large", [])])]
    counted = {each: capture.metric(f"gen_ai.client.{each}") for each in ("operation.duration", "token.usage")}
    assert [(len(points), {point.count for point in points}) for points in counted.values()] == [(1, {1}), (2, {1})]
    calls = [(event.kind, event.name) for event in events if event.kind.startswith("model_call")]
    assert calls == [("model_call_started", "large"), ("model_call_ended", "large")]
