"""What the Anthropic client makes of rare answers, sent to it without a server."""

from __future__ import annotations

import asyncio
import json
import sys
import typing
from collections.abc import AsyncIterator
from typing import TypeAlias

import anthropic
import httpx2
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chatstack import (
    AuthenticationError,
    BrokenStreamError,
    Budget,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ContextOverflowError,
    InputError,
    Message,
    ModelTracer,
    ProviderItem,
    RateLimitError,
    Reasoning,
    ServerError,
    Spending,
    Telemetry,
    Text,
    ToolCall,
    Usage,
    WiringError,
)
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.anthropic.wire import request_to_wire
from chatstack.providers.wires import AnswerReader
from chatstack.testing import TelemetryCapture

Event: TypeAlias = dict[str, object]

START: Event = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 1},
    },
}
STOP: Event = {"type": "message_stop"}


def begin(index: int, **block: object) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, kind: str, **fields: object) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def end(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


def because(reason: str, **usage: object) -> Event:
    return {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": 9, **usage},
    }


def hello(index: int = 0) -> list[Event]:
    return [begin(index, type="text", text=""), delta(index, "text_delta", text="hello"), end(index)]


def sse(events: list[Event]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


class Wire:
    """Answers every request with the same thing, and keeps the requests."""

    def __init__(self, answer: httpx2.Response) -> None:
        self.answer = answer
        self.requests: list[httpx2.Request] = []

    @classmethod
    def streaming(cls, *events: Event) -> Wire:
        return cls(httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=sse(list(events))))

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return self.answer

    def ask(self, *, stream: bool = True, stall_seconds: float = 5, **options: object) -> ChatResponse:
        async def asked() -> ChatResponse:
            async with httpx2.AsyncClient(transport=httpx2.MockTransport(self)) as http_client:
                provider = AnthropicChatClient(
                    "claude", api_key="k", http_client=http_client, max_retries=0, stall_seconds=stall_seconds
                )
                request = ChatRequest((Message.user("hi"),), ChatOptions().but(**options), stream=stream)
                async with await provider.send(request) as answer:
                    return await answer.response()

        return asyncio.run(asked())


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("tool_use", "tool_calls"),
        ("pause_turn", "paused"),
        ("compaction", "paused"),
        ("refusal", "refused"),
        ("of_another_day", "other"),
    ],
)
def test_every_stop_reason_has_its_finish_reason(reason: str, finish: str) -> None:
    found = Wire.streaming(START, *hello(), because(reason), STOP).ask()
    assert (found.text, found.finish_reason) == ("hello", finish)
    assert found.usage == Usage(7, 9, 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_window_that_is_full_before_the_first_word_is_an_overflow(stream: bool) -> None:
    full = "model_context_window_exceeded"
    whole = {**typing.cast("Event", START["message"]), "stop_reason": full}
    wire = Wire.streaming(START, because(full), STOP) if stream else Wire(httpx2.Response(200, json=whole))
    with pytest.raises(ContextOverflowError) as caught:
        wire.ask(stream=stream)
    assert (caught.value.actual, caught.value.limit, caught.value.code) == (7, None, full)


def test_counts_that_the_end_does_not_name_stay_those_of_the_start() -> None:
    ending = because("end_turn", input_tokens=None, cache_read_input_tokens=None)
    assert Wire.streaming(START, *hello(), ending, STOP).ask().usage == Usage(7, 9, 2)


@pytest.mark.parametrize("events", [[], [START], [START, *hello()], [START, *hello(), because("end_turn")]])
def test_a_stream_without_its_last_event_is_broken_wherever_it_ends(events: list[Event]) -> None:
    with pytest.raises(BrokenStreamError, match="message_stop"):
        Wire.streaming(*events).ask()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_an_answer_that_does_not_end_has_cost_its_input(is_stopped: bool) -> None:
    """The provider charges for it, whoever breaks off the stream."""
    capture, spending = TelemetryCapture(), Spending()

    async def asked() -> None:
        wire = Wire.streaming(START, begin(0, type="text", text=""), delta(0, "text_delta", text="hel"))
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(wire)) as http_client:
            provider = AnthropicChatClient("claude", api_key="k", http_client=http_client, max_retries=0)
            stack = ChatStack(provider).use(Budget, max_tokens=100, per="conversation", spending=spending)
            client = stack.build({Telemetry: capture.telemetry}.get)
            async with client.get_streaming_response("hi", conversation_id="c") as stream:
                first = await anext(stream)
                assert (first.text, first.model) == ("hel", "claude")
                if not is_stopped:
                    with pytest.raises(BrokenStreamError):
                        await anext(stream)

    asyncio.run(asked())
    assert spending.of("c").usage == Usage(7, cache_read_tokens=2)
    (span,) = capture.spans
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.input_tokens"] == 7
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 2


@pytest.mark.parametrize(
    ("at_the_end", "usage"),
    [
        pytest.param({}, Usage(7, 9, 2), id="output alone"),
        pytest.param({"input_tokens": 5, "cache_read_input_tokens": 2}, Usage(7, 9, 2), id="the same input"),
        pytest.param({"input_tokens": 20}, Usage(22, 9, 2), id="more input, by tools of the server"),
        pytest.param({"input_tokens": -1, "cache_read_input_tokens": 0}, Usage(7, 9, 2), id="what cannot be"),
    ],
)
def test_the_usage_of_the_beginning_and_of_the_end_add_up(at_the_end: Event, usage: Usage) -> None:
    reader = AnswerReader("messages", streaming=True)
    events = [START, *hello(), because("end_turn", **at_the_end), STOP]
    updates = [*(update for event in events for update in reader.add(event)), *reader.finish()]
    told = [update.usage for update in updates if update.usage is not None]
    assert [each.output_tokens for each in told] == [0, 9]
    assert sum(told, Usage()) == usage
    nothing = {**START, "message": {**typing.cast("Event", START["message"]), "usage": {"output_tokens": 1}}}
    assert Wire.streaming(nothing, *hello(), because("end_turn", input_tokens=5), STOP).ask().usage == Usage(5, 9)


def test_the_input_of_a_compaction_is_not_told_as_the_answers() -> None:
    compaction = [begin(0, type="compaction", content=None), delta(0, "compaction_delta", content="so far"), end(0)]
    at_the_end = because("end_turn", input_tokens=1, cache_read_input_tokens=0)
    found = Wire.streaming(START, *compaction, *hello(1), at_the_end, STOP).ask()
    assert found.usage == Usage(1, 9)


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    found = Wire.streaming(START, begin(0, type="text", text=""), end(0), because("end_turn"), STOP).ask()
    assert found.messages == (Message("assistant", ()),)


def test_thinking_is_put_together_with_its_signature() -> None:
    found = Wire.streaming(
        START,
        begin(0, type="thinking", thinking="", signature=""),
        delta(0, "thinking_delta", thinking="so ", estimated_tokens=50),
        delta(0, "thinking_delta", thinking="it is"),
        delta(0, "signature_delta", signature="s1"),
        end(0),
        begin(1, type="redacted_thinking", data="xyz"),
        end(1),
        *hello(2),
        because("end_turn", output_tokens_details={"thinking_tokens": 3}),
        STOP,
    ).ask()
    (message,) = found.messages
    first, second = message.parts[:2]
    assert isinstance(first, Reasoning)
    assert isinstance(second, Reasoning)
    assert (first.text, second.text) == ("so it is", "")
    assert json.loads(first.item_json) == {"type": "thinking", "thinking": "so it is", "signature": "s1"}
    assert json.loads(second.item_json) == {"type": "redacted_thinking", "data": "xyz"}
    assert found.usage.reasoning_tokens == 3


def test_what_a_server_side_tool_was_given_is_put_together() -> None:
    found = Wire.streaming(
        START,
        begin(0, type="server_tool_use", id="s", name="web_search", input={}),
        delta(0, "input_json_delta", partial_json=""),
        delta(0, "input_json_delta", partial_json='{"query": '),
        delta(0, "input_json_delta", partial_json='"x"}'),
        end(0),
        *hello(1),
        because("end_turn"),
        STOP,
    ).ask()
    item = found.messages[0].parts[0]
    assert isinstance(item, ProviderItem)
    assert json.loads(item.json)["input"] == {"query": "x"}


def test_a_call_that_was_cut_off_keeps_the_text_that_came() -> None:
    found = Wire.streaming(
        START,
        begin(0, type="tool_use", id="a", name="f", input={}),
        delta(0, "input_json_delta", partial_json='{"city": "Du'),
        end(0),
        because("max_tokens"),
        STOP,
    ).ask()
    assert found.messages == (Message.assistant(ToolCall("a", "f", '{"city": "Du')),)
    assert found.finish_reason == "length"


def test_citations_stay_with_their_text() -> None:
    citation = {"type": "char_location", "cited_text": "c", "document_index": 0, "start_char_index": 0}
    found = Wire.streaming(
        START, begin(0, type="text", text=""), delta(0, "citations_delta", citation=citation), *hello()[1:],
        because("end_turn"), STOP,
    ).ask()  # fmt: skip
    (part,) = found.messages[0].parts
    assert isinstance(part, Text)
    assert json.loads(part.extra_json) == {"anthropic": {"citations": [citation]}}


def test_blocks_that_end_late_stay_in_the_order_in_which_they_began() -> None:
    call = begin(1, type="tool_use", id="a", name="f", input={})
    found = Wire.streaming(START, *hello()[:2], call, end(1), end(0), because("tool_use"), STOP).ask()
    assert found.messages == (Message.assistant("hello", ToolCall("a", "f")),)


@pytest.mark.parametrize("ends", [[end(0)], []], ids=["ended", "left open"])
def test_blocks_of_one_number_are_all_kept(ends: list[Event]) -> None:
    """Anthropic itself numbered a search's result and the text behind it alike, Ollama thinking and a call."""
    thought = [begin(0, type="thinking", thinking=""), delta(0, "thinking_delta", thinking="Hm."), *ends]
    call = [begin(0, type="tool_use", id="c", name="look", input={}), delta(0, "input_json_delta", partial_json="{}")]
    response = Wire.streaming(START, *thought, *call, end(0), *hello(1), because("tool_use"), STOP).ask()
    assert [type(part) for part in response.messages[0].parts] == [Reasoning, ToolCall, Text]
    assert response.messages[0].calls == (ToolCall("c", "look"),)


@pytest.mark.parametrize(("reason", "finish"), [("end_turn", "tool_calls"), ("max_tokens", "length")])
def test_calls_win_over_the_end_of_a_turn(reason: str, finish: str) -> None:
    """Models on Bedrock, and vLLM for a tool that was forced, end so."""
    call = [begin(0, type="tool_use", id="c", name="look", input={}), end(0)]
    assert Wire.streaming(START, *call, because(reason), STOP).ask().finish_reason == finish


def test_events_and_blocks_of_a_later_day_do_no_harm() -> None:
    found = Wire.streaming(
        START,
        {"type": "weather_report", "sky": "blue"},
        begin(0, type="hologram", size=3),
        end(0),
        *hello(1),
        because("end_turn"),
        STOP,
    ).ask()
    assert found.text == "hello"
    item = found.messages[0].parts[0]
    assert isinstance(item, ProviderItem)
    assert json.loads(item.json) == {"type": "hologram", "size": 3}


@pytest.mark.parametrize(
    "events",
    [
        [delta(0, "text_delta", text="x")],
        [START, delta(3, "text_delta", text="x")],
        [START, end(0)],
        [START, {"type": "content_block_start"}],
        [START, {"type": "content_block_start", "index": "a", "content_block": {"type": "text"}}],
        [START, begin(0, type="tool_use"), end(0)],
    ],
)
def test_events_that_do_not_fit_are_a_broken_stream(events: list[Event]) -> None:
    with pytest.raises(BrokenStreamError):
        Wire.streaming(*events, because("end_turn"), STOP).ask()


@pytest.mark.parametrize(
    ("kind", "error"),
    [("overloaded_error", ServerError), ("rate_limit_error", RateLimitError), ("who_knows", BrokenStreamError)],
)
def test_an_error_event_is_the_error_that_it_names(kind: str, error: type[Exception]) -> None:
    said: Event = {"type": "error", "error": {"type": kind, "message": "secret prompt"}}
    with pytest.raises(error) as caught:
        Wire.streaming(START, *hello(), said).ask()
    assert isinstance(caught.value.__cause__, anthropic.APIStatusError)
    assert "secret" not in str(caught.value)


def without_names(*events: Event) -> Wire:
    wire = Wire.streaming()
    text = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    wire.answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=text + "data: [DONE]\n\n")
    return wire


@pytest.mark.parametrize("event", [{"type": "error"}, {}], ids=["Anthropic", "LiteLLM"])
def test_an_error_without_an_event_line_is_one_too(event: Event) -> None:
    """The SDK passes over such events; LiteLLM tells failures within a stream so."""
    said = {**event, "error": {"type": "rate_limit_error", "message": "secret prompt"}}
    for before in [], [START, *hello()]:
        with pytest.raises(RateLimitError):
            without_names(*before, said).ask()


def test_a_stream_without_event_lines_is_an_answer() -> None:
    response = without_names(START, {"type": "ping"}, *hello(), because("end_turn"), STOP).ask()
    assert (response.text, response.finish_reason) == ("hello", "stop")


def test_an_overflow_may_come_as_an_error_event() -> None:
    text = "prompt is too long: 208656 tokens > 200000 maximum"
    said: Event = {"type": "error", "error": {"type": "invalid_request_error", "message": text}}
    with pytest.raises(ContextOverflowError) as caught:
        Wire.streaming(said).ask()
    assert (caught.value.actual, caught.value.limit) == (208_656, 200_000)


@pytest.mark.parametrize(
    "answer",
    [
        httpx2.Response(200, text="<html>hello</html>", headers={"content-type": "text/html"}),
        httpx2.Response(200, json={"hello": "world"}),
        httpx2.Response(200, json={"type": "message", "content": ["text"]}),
        httpx2.Response(200, json={"type": "error", "error": {"type": "api_error", "message": "no"}}),
    ],
)
def test_an_answer_that_is_no_message_is_a_server_error(answer: httpx2.Response) -> None:
    with pytest.raises(ServerError):
        Wire(answer).ask(stream=False)


class Drip(httpx2.AsyncByteStream):
    """A body that comes piece by piece, with pauses; says when it was closed."""

    def __init__(self, *pieces: str | float) -> None:
        self.pieces = pieces
        self.is_closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, str):
                yield piece.encode()
            else:
                await asyncio.sleep(piece)

    async def aclose(self) -> None:
        self.is_closed = True


def dripping(*pieces: str | float) -> tuple[Wire, Drip]:
    body = Drip(*pieces)
    return Wire(httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body)), body


PING_WITHIN: tuple[float | str, str] = (0.2, 'event: ping\ndata: {"type": "ping"}\n\n')


@pytest.mark.slow
def test_keep_alives_are_no_silence() -> None:
    ending = sse([*hello(), because("end_turn"), STOP])
    wire, _ = dripping(sse([START]), *PING_WITHIN * 8, ending)
    assert wire.ask(stall_seconds=1.0).text == "hello"


@pytest.mark.slow
def test_silence_after_keep_alives_is_a_stall() -> None:
    wire, body = dripping(sse([START]), *PING_WITHIN * 3, 30.0)
    with pytest.raises(BrokenStreamError, match="stalled"):
        wire.ask(stall_seconds=0.3)
    assert body.is_closed


def test_nothing_is_awaited_after_the_end_of_the_answer() -> None:
    wire, body = dripping(sse([START, *hello(), because("end_turn"), STOP]), 30.0)
    assert wire.ask().text == "hello"
    assert body.is_closed


def test_closing_a_stream_early_closes_the_connection() -> None:
    wire, body = dripping(sse([START, *hello()]), 30.0)

    async def closed() -> None:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(wire)) as http_client:
            provider = AnthropicChatClient("claude", api_key="k", http_client=http_client)
            stream = await provider.send(ChatRequest((Message.user("hi"),), stream=True))
            assert not body.is_closed
            await stream.aclose()
            await stream.aclose()

    asyncio.run(closed())
    assert body.is_closed


def test_betas_go_into_the_header_and_other_extras_into_the_body() -> None:
    wire = Wire.streaming(START, *hello(), because("end_turn"), STOP)
    edits = {"edits": [{"type": "clear_tool_uses_20250919"}]}
    wire.ask(temperature=0.2, extra={"betas": ["one-2025", "two-2026"], "context_management": edits, "model": "other"})
    (request,) = wire.requests
    assert request.headers["anthropic-beta"] == "one-2025,two-2026"
    assert json.loads(request.content) == {
        "model": "other",
        "max_tokens": 8192,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "temperature": 0.2,
        "context_management": edits,
        "stream": True,
    }


def test_half_a_surrogate_pair_is_refused_before_it_is_sent() -> None:
    wire = Wire.streaming()
    with pytest.raises(InputError, match="surrogate"):
        wire.ask(instructions="\ud83d")
    assert wire.requests == []


def test_the_sdk_makes_no_span_of_its_own() -> None:
    spans = InMemorySpanExporter()
    tracing = TracerProvider()
    tracing.add_span_processor(SimpleSpanProcessor(spans))
    wire = Wire.streaming(START, *hello(), because("end_turn"), STOP)

    async def traced() -> None:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(wire)) as http_client:
            provider = AnthropicChatClient("claude", api_key="k", http_client=http_client)
            await (
                ModelTracer(provider, telemetry=Telemetry(tracer_provider=tracing))
                .get_streaming_response("hi")
                .response()
            )

    asyncio.run(traced())
    (span,) = spans.get_finished_spans()
    assert span.name == "chat claude"
    assert span.attributes is not None
    assert span.attributes["gen_ai.provider.name"] == "anthropic"
    assert span.attributes["server.address"] == "api.anthropic.com"
    assert span.attributes["gen_ai.usage.input_tokens"] == 7
    assert wire.requests[0].headers["traceparent"].split("-")[2] == format(span.context.span_id, "016x")


def test_a_missing_key_is_told_when_the_client_is_made(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_CONFIG_DIR", str(tmp_path))
    with pytest.raises(WiringError, match="set ANTHROPIC_API_KEY or pass api_key") as caught:
        AnthropicChatClient("claude")
    assert caught.value.parameter == "api_key"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert AnthropicChatClient("claude").info.server_address == "api.anthropic.com"


def test_a_missing_sdk_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(WiringError, match=r"pip install 'chatstack-core\[anthropic\]'"):
        AnthropicChatClient("claude", api_key="k")


def test_a_client_and_settings_for_one_are_not_taken_together() -> None:
    sdk = anthropic.AsyncAnthropic(api_key="k")
    with pytest.raises(WiringError, match="not both"):
        AnthropicChatClient("claude", client=sdk, api_key="k")
    with pytest.raises(WiringError, match="synchronous"):
        AnthropicChatClient("claude", client=anthropic.Anthropic(api_key="k"))


def test_the_hints_of_the_constructor_can_be_resolved_by_a_container() -> None:
    hints = typing.get_type_hints(AnthropicChatClient.__init__)
    assert hints["model"] is str
    assert hints["stall_seconds"] == float | None


def test_a_wrong_key_is_an_authentication_error() -> None:
    said = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
    with pytest.raises(AuthenticationError) as caught:
        Wire(httpx2.Response(401, json=said)).ask()
    assert caught.value.status == 401


def test_the_room_that_the_wire_reserves_for_an_answer_is_known_to_the_layers() -> None:
    client = AnthropicChatClient("claude", api_key="none")
    assert client.info.default_max_tokens == request_to_wire(ChatRequest((Message.user("hi"),)))["max_tokens"]
