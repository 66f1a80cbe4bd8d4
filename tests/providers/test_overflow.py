"""A request that is too long is one error, by whatever API, in whatever words, and whenever it is said.

Every shape goes through the real SDKs, on no network.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import pickle
from typing import Any, TypeAlias

import openai
import pytest

from chatstack import (
    BrokenStreamError,
    ChatRequest,
    ChatResponse,
    ChatStream,
    ContextOverflowError,
    Message,
    ProviderError,
    RateLimitError,
    RequestRefusedError,
    ServerError,
)
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient

Client: TypeAlias = OpenAIChatClient | OpenAIResponsesClient | AnthropicChatClient
Event: TypeAlias = dict[str, Any]

ON_EVERY_WIRE = pytest.mark.parametrize("kind", [OpenAIChatClient, OpenAIResponsesClient, AnthropicChatClient])
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
FULL = "model_context_window_exceeded"
REQUEST = ChatRequest((Message.user("hi"),))

OPENAI = "This model's maximum context length is 8192 tokens. However, your messages resulted in 10004 tokens."
ANTHROPIC = "prompt is too long: 208656 tokens > 200000 maximum"
ANTHROPIC_SUM = "input length and `max_tokens` exceed context limit: 199759 + 8192 > 200000"
LLAMA: Event = {
    "code": 400,
    "message": "the request exceeds the available context size, try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 5003,
    "n_ctx": 4096,
}
ROUTED: Event = {
    "message": "Provider returned error",
    "code": 400,
    "metadata": {"raw": json.dumps({"error": {"message": ANTHROPIC}}), "provider_name": "Anthropic"},
}

SAID: list[tuple[Event, int | None, int | None]] = [
    ({"message": OPENAI, "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"},
     10_004, 8_192),
    ({"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"},
     None, None),
    ({"message": OPENAI, "type": "BadRequestError", "param": None, "code": 400}, 10_004, 8_192),
    ({"message": ANTHROPIC, "type": "invalid_request_error"}, 208_656, 200_000),
    ({"message": ANTHROPIC_SUM, "type": "invalid_request_error"}, 207_951, 200_000),
    (LLAMA, 5_003, 4_096),
    (ROUTED, 208_656, 200_000),
    ({"message": "Please reduce the length of the messages or completion.", "type": "invalid_request_error"},
     None, None),
]  # fmt: skip
EVERY_SHAPE = pytest.mark.parametrize(
    ("said", "actual", "limit"),
    SAID,
    ids=["openai", "openai without sizes", "vllm", "anthropic", "anthropic sum", "llama.cpp", "router", "groq"],
)


def text_events(kind: type[Client]) -> list[Event]:
    """What an answer's stream begins with, a first piece of text included."""
    if kind is OpenAIChatClient:
        return [{"id": "c", "model": "m", "choices": [{"index": 0, "delta": {"content": "be"}}]}]
    if kind is OpenAIResponsesClient:
        return [{"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "delta": "be"}]
    return [
        message_start(),
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "be"}},
    ]


def message_start() -> Event:
    message: Event = {"id": "msg", "type": "message", "role": "assistant", "model": "m", "content": []}
    message["stop_reason"] = None
    return {"type": "message_start", "message": {**message, "usage": {"input_tokens": 7, "output_tokens": 1}}}


def error_events(kind: type[Client], said: Event) -> list[Event]:
    """Every form in which that API says an error in a stream."""
    if kind is OpenAIChatClient:
        choice = {"index": 0, "delta": {}, "finish_reason": "error", "error": said}
        return [{"error": said}, {"id": "c", "choices": [choice]}]
    if kind is OpenAIResponsesClient:
        failed = {"id": "r", "object": "response", "status": "failed", "output": [], "error": said}
        return [
            {**said, "type": "error", "param": None},
            {"type": "error", "error": said},
            {"error": said},
            {"type": "response.failed", "response": failed},
        ]
    return [{"type": "error", "error": said}]


def sse(kind: type[Client], events: list[Event]) -> bytes:
    named = kind is not OpenAIChatClient
    lines = [
        (f"event: {event['type']}\n" if named and "type" in event else "") + f"data: {json.dumps(event)}\n\n"
        for event in events
    ]
    return "".join(lines).encode()


class Answering:
    """A client whose server answers every request with these bytes."""

    def __init__(self, kind: type[Client], body: bytes, content_type: str, status: int = 200) -> None:
        is_old = kind is not AnthropicChatClient and openai.__version__.startswith("2.")
        http: Any = importlib.import_module("httpx" if is_old else "httpx2")

        def answer(request: object) -> object:
            return http.Response(status, content=body, headers={"content-type": content_type})

        self._http_client = http.AsyncClient(transport=http.MockTransport(answer))
        self._client = kind("m", api_key="k", http_client=self._http_client, max_retries=0)

    @classmethod
    def streaming(cls, kind: type[Client], *events: Event) -> Answering:
        return cls(kind, sse(kind, list(events)), "text/event-stream")

    @classmethod
    def whole(cls, kind: type[Client], body: object, status: int = 200) -> Answering:
        return cls(kind, json.dumps(body).encode(), "application/json", status)

    def ask(self, *, stream: bool) -> ChatResponse:
        async def asked() -> ChatResponse:
            async with self._http_client:
                return await (await self._client.send(REQUEST.but(stream=stream))).response()

        return asyncio.run(asked())

    def refusal(self, *, stream: bool) -> ProviderError:
        """What ``send`` itself raises."""

        async def sent() -> ProviderError:
            async with self._http_client:
                with pytest.raises(ProviderError) as caught:
                    await self._client.send(REQUEST.but(stream=stream))
                return caught.value

        return asyncio.run(sent())

    def broken_off(self) -> tuple[str, ProviderError]:
        """What was shown of a stream that ``send`` had opened, and what ended it."""

        async def read() -> tuple[str, ProviderError]:
            shown: list[str] = []
            async with self._http_client, await self._client.send(REQUEST.but(stream=True)) as answer:
                with pytest.raises(ProviderError) as caught:
                    await collect(answer, shown)
                return "".join(shown), caught.value

        return asyncio.run(read())


async def collect(answer: ChatStream, shown: list[str]) -> None:
    async for update in answer:
        shown.append(update.text)


def sizes(error: ProviderError) -> tuple[type[ProviderError], int | None, int | None]:
    assert isinstance(error, ContextOverflowError), repr(error)
    assert pickle.loads(pickle.dumps(error)).limit == error.limit
    assert "context window" in str(error)
    assert "prompt is" not in str(error)
    return type(error), error.actual, error.limit


@pytest.mark.sampled(5)
@ON_EVERY_WIRE
@BOTH_WAYS
@EVERY_SHAPE
@pytest.mark.parametrize("status", [400, 500])
def test_a_refusal_before_the_answer_is_raised_by_send(
    kind: type[Client], stream: bool, said: Event, actual: int | None, limit: int | None, status: int
) -> None:
    error = Answering.whole(kind, {"type": "error", "error": said}, status).refusal(stream=stream)
    assert sizes(error) == (ContextOverflowError, actual, limit)
    assert error.status == status
    assert error.__cause__ is not None


@pytest.mark.sampled(5)
@ON_EVERY_WIRE
@EVERY_SHAPE
def test_a_refusal_in_the_stream_before_the_first_delta_is_raised_by_send(
    kind: type[Client], said: Event, actual: int | None, limit: int | None
) -> None:
    for event in error_events(kind, said):
        first = [message_start()] if kind is AnthropicChatClient else []
        for events in ([event], [*first, event]):
            error = Answering.streaming(kind, *events).refusal(stream=True)
            assert sizes(error) == (ContextOverflowError, actual, limit), event


@pytest.mark.sampled(5)
@ON_EVERY_WIRE
@EVERY_SHAPE
def test_a_refusal_after_the_first_delta_ends_the_stream(
    kind: type[Client], said: Event, actual: int | None, limit: int | None
) -> None:
    for event in error_events(kind, said):
        shown, error = Answering.streaming(kind, *text_events(kind), event).broken_off()
        assert shown == "be"
        assert sizes(error) == (ContextOverflowError, actual, limit), event


@pytest.mark.sampled(5)
@ON_EVERY_WIRE
@EVERY_SHAPE
def test_a_refusal_that_comes_as_a_whole_answer_is_one(
    kind: type[Client], said: Event, actual: int | None, limit: int | None
) -> None:
    """Proxies send errors with status 200."""
    bodies: list[Event] = [{"type": "error", "error": said}]
    if kind is OpenAIResponsesClient:
        bodies.append({"id": "r", "object": "response", "status": "failed", "output": [], "error": said})
    for body in bodies:
        assert sizes(Answering.whole(kind, body).refusal(stream=False)) == (ContextOverflowError, actual, limit)


@ON_EVERY_WIRE
@pytest.mark.parametrize(
    ("status", "said", "error"),
    [
        (413, {"message": "Request exceeds the maximum size", "type": "request_too_large"}, RequestRefusedError),
        (429, {"message": OPENAI, "code": "rate_limit_exceeded"}, RateLimitError),
        (503, {"message": OPENAI}, ServerError),
        (400, {"message": "max_tokens is too large: 9999. This model supports at most 4096"}, RequestRefusedError),
    ],
)
def test_what_is_no_overflow_is_not_taken_for_one(
    kind: type[Client], status: int, said: Event, error: type[ProviderError]
) -> None:
    for stream in (False, True):
        assert type(Answering.whole(kind, {"error": said}, status).refusal(stream=stream)) is error


@ON_EVERY_WIRE
def test_a_stream_that_breaks_in_its_own_words_is_broken_and_not_too_long(kind: type[Client]) -> None:
    for event in error_events(kind, {"message": "the model went away", "type": "who_knows"}):
        shown, error = Answering.streaming(kind, *text_events(kind), event).broken_off()
        assert (shown, type(error)) == ("be", BrokenStreamError), event


def full_window(kind: type[Client], text: str, *, stream: bool) -> Answering:
    """An answer that the end of the window cut off."""
    if kind is OpenAIChatClient:
        usage = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
        choice: Event = {"index": 0, "finish_reason": FULL}
        choice["delta" if stream else "message"] = {"role": "assistant", "content": text}
        body: Event = {"id": "c", "model": "m", "choices": [choice], "usage": usage}
        return Answering.streaming(kind, body) if stream else Answering.whole(kind, body)
    if stream:
        events = [*text_events(kind), {"type": "content_block_stop", "index": 0}] if text else [message_start()]
        ended = {"type": "message_delta", "delta": {"stop_reason": FULL}, "usage": {"output_tokens": 1}}
        return Answering.streaming(kind, *events, ended, {"type": "message_stop"})
    content = [{"type": "text", "text": text}] if text else []
    return Answering.whole(kind, {**message_start()["message"], "content": content, "stop_reason": FULL})


FULL_WINDOWS = pytest.mark.parametrize("kind", [OpenAIChatClient, AnthropicChatClient])


@FULL_WINDOWS
@BOTH_WAYS
def test_an_answer_that_the_windows_end_cut_off_is_an_answer_that_was_cut_off(kind: type[Client], stream: bool) -> None:
    answer = full_window(kind, "be", stream=stream).ask(stream=stream)
    assert (answer.text, answer.finish_reason, answer.usage.input_tokens) == ("be", "length", 7)


@FULL_WINDOWS
@BOTH_WAYS
def test_a_window_that_is_full_before_the_first_word_is_an_overflow_raised_by_send(
    kind: type[Client], stream: bool
) -> None:
    error = full_window(kind, "", stream=stream).refusal(stream=stream)
    assert sizes(error) == (ContextOverflowError, 7, None)
    assert (error.status, error.code) == (200, FULL)
