"""Where a stream was asked for: a whole answer that came instead, and what comes behind the last event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from chatstack import BrokenStreamError, ChatResponse, ContextOverflowError, ServerError
from chatstack.providers import sdk_streams
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from tests.servers import answering_with

OVERFLOW = {"message": "maximum context length is 100 tokens, you requested 200", "code": "context_length_exceeded"}
SAID = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [
    {"type": "output_text", "text": "hello", "annotations": []}]}  # fmt: skip
RESPONSE = {"id": "r", "object": "response", "model": "m", "status": "completed", "output": [SAID], "usage": None}
MESSAGE = {"id": "r", "type": "message", "role": "assistant", "model": "m", "stop_reason": "end_turn",
           "content": [{"type": "text", "text": "hello"}], "usage": {"input_tokens": 1}}  # fmt: skip
COMPLETION = {"id": "r", "object": "chat.completion", "model": "m", "choices": [
    {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}  # fmt: skip
EVENTS: dict[Any, list[dict[str, Any]]] = {
    OpenAIResponsesClient: [{"type": "response.completed", "response": RESPONSE}],
    AnthropicChatClient: [
        {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ],
}
Kind = Callable[..., Any]
EACH = pytest.mark.parametrize("kind", EVENTS)


def streamed(kind: Kind, body: bytes | AsyncIterator[bytes], content_type: str) -> ChatResponse:
    async def asked() -> ChatResponse:
        async with answering_with(body, content_type, of_openai=kind is not AnthropicChatClient) as http_client:
            client = kind("m", api_key="k", http_client=http_client, max_retries=0)
            async with client.get_streaming_response("hi") as stream:
                answer: ChatResponse = await stream.response()
                return answer

    return asyncio.run(asked())


@pytest.mark.parametrize(
    ("kind", "body", "error"),
    [
        (OpenAIChatClient, {"error": OVERFLOW}, ContextOverflowError),
        (OpenAIChatClient, {"error": {"type": "server_error", "message": "x"}}, ServerError),
        (OpenAIResponsesClient, {"error": OVERFLOW}, ContextOverflowError),
        (OpenAIResponsesClient, {**RESPONSE, "status": "failed", "error": OVERFLOW}, ContextOverflowError),
        (AnthropicChatClient, {"type": "error", "error": {"type": "overloaded_error", "message": "x"}}, ServerError),
    ],
)
def test_an_error_that_comes_in_the_place_of_a_stream_is_that_error(
    kind: Kind, body: object, error: type[Exception]
) -> None:
    with pytest.raises(error) as caught:
        streamed(kind, json.dumps(body).encode(), "application/json; charset=utf-8")
    assert type(caught.value) is error


@pytest.mark.parametrize(
    ("kind", "body"),
    [(OpenAIChatClient, COMPLETION), (OpenAIResponsesClient, RESPONSE), (AnthropicChatClient, MESSAGE)],
)
def test_an_answer_that_comes_in_the_place_of_a_stream_is_that_answer(kind: Kind, body: object) -> None:
    answer = streamed(kind, json.dumps(body).encode(), "application/json")
    assert (answer.text, answer.finish_reason, answer.id) == ("hello", "stop", "r")


@EACH
def test_a_stream_under_the_wrong_type_of_content_is_still_a_stream(kind: Kind) -> None:
    assert streamed(kind, sse(kind), "application/json").text == "hello"
    with pytest.raises(BrokenStreamError):
        streamed(kind, b"[]", "application/json")


@EACH
def test_a_web_page_in_the_place_of_a_stream_is_told_of_the_base_url(kind: Kind) -> None:
    with pytest.raises(ServerError, match="the answer is not a JSON object: check base_url"):
        streamed(kind, b"<!doctype html><title>Welcome</title>", "text/html; charset=utf-8")
    assert streamed(kind, sse(kind), "text/html").text == "hello"


def test_it_is_handed_on_as_it_comes_all_the_same() -> None:
    async def asked() -> str:
        seen = asyncio.Event()
        events = [f"data: {json.dumps(each)}\n\n".encode() for each in chunks("hel", "lo")]

        async def body() -> AsyncIterator[bytes]:
            yield events[0]
            await seen.wait()
            for event in events[1:]:
                yield event

        async with answering_with(body(), "application/json", of_openai=True) as http_client:
            client = OpenAIChatClient("m", api_key="k", http_client=http_client, max_retries=0)
            async with client.get_streaming_response("hi") as stream:
                first = await asyncio.wait_for(anext(stream), 300)
                seen.set()
                return first.text + "".join([update.text async for update in stream])

    assert asyncio.run(asked()) == "hello"


def chunks(*deltas: str) -> list[dict[str, Any]]:
    about = {"id": "r", "object": "chat.completion.chunk", "model": "m"}
    said = [{"index": 0, "delta": {"content": delta}, "finish_reason": None} for delta in deltas]
    return [{**about, "choices": [each]} for each in (*said, {"index": 0, "delta": {}, "finish_reason": "stop"})]


@EACH
def test_a_stream_is_read_to_its_end_so_that_the_connection_can_be_used_again(kind: Kind) -> None:
    read: list[str] = []

    async def body() -> AsyncIterator[bytes]:
        yield sse(kind)
        yield b": one more comment\n\n"
        read.append("all")

    assert streamed(kind, body(), "text/event-stream").text == "hello"
    assert read == ["all"]


@EACH
def test_a_server_that_does_not_close_its_stream_is_not_waited_for(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk_streams, "_TAIL_SECONDS", 0.001)
    ended: list[str] = []

    async def body() -> AsyncIterator[bytes]:
        try:
            yield sse(kind)
            await asyncio.Event().wait()
        finally:
            ended.append("closed")

    assert streamed(kind, body(), "text/event-stream").text == "hello"
    assert ended == ["closed"]


def sse(kind: Any) -> bytes:
    return "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in EVENTS[kind]).encode()
