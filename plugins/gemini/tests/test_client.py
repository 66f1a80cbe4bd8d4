"""The client: its settings, its errors, and what it asks beside answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import google.genai
import httpx2
import pytest
from google.genai.types import HttpOptions
from opentelemetry.sdk.trace import TracerProvider
from standin import check_request, chunk

from chatstack import from_config
from chatstack.errors import (
    AuthenticationError,
    BrokenStreamError,
    ContextOverflowError,
    InputError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
    ServerError,
    WiringError,
)
from chatstack.testing.provider_server import Delivery, ReceivedRequest, ScriptedServer, ServerReply
from chatstack.values.messages import Message
from chatstack.values.parts import Text
from chatstack.values.requests import ChatOptions, ChatRequest, ToolDeclaration
from chatstack_gemini import GeminiChatClient

FINE = ServerReply.json(chunk([{"text": "fine"}], finishReason="STOP"))
HI = ChatRequest((Message.user("hi"),))
TOOL = ToolDeclaration("f")


def served(
    work: Callable[[ScriptedServer], Awaitable[Any]], *replies: ServerReply
) -> tuple[Any, list[ReceivedRequest]]:
    """Return what the work returns with a server that has these replies, the last of them again and again."""

    async def run() -> tuple[Any, list[ReceivedRequest]]:
        def script(request: ReceivedRequest) -> Delivery:
            return Delivery(replies[min(len(server.requests), len(replies)) - 1])

        async with ScriptedServer(script) as server:
            return await work(server), server.requests

    return asyncio.run(run())


def client_of(server: ScriptedServer, **settings: Any) -> GeminiChatClient:
    return GeminiChatClient(
        "gemini-3.8-flash", **{"api_key": "k", "base_url": server.base_url, "max_retries": 0, **settings}
    )


def doing(work: Callable[[GeminiChatClient], Awaitable[Any]], **settings: Any) -> Callable[[ScriptedServer], Any]:
    """Return that work with a client, which is closed at the end."""

    async def whole(server: ScriptedServer) -> Any:
        client = client_of(server, **settings)
        try:
            return await work(client)
        finally:
            await client.aclose()

    return whole


def asking(request: ChatRequest = HI, **settings: Any) -> Callable[[ScriptedServer], Any]:
    async def ask(client: GeminiChatClient) -> Any:
        return await (await client.send(request)).response()

    return doing(ask, **settings)


def error_of(reply: ServerReply, *, stream: bool = False) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        served(asking(HI.but(stream=stream)), reply)
    return caught.value


def refusal(code: int, status: str, message: str = "no", **more: object) -> ServerReply:
    return ServerReply.json({"error": {"code": code, "message": message, "status": status, **more}}, status=code)


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (refusal(401, "UNAUTHENTICATED"), AuthenticationError, "UNAUTHENTICATED"),
        (refusal(403, "PERMISSION_DENIED"), AuthenticationError, "PERMISSION_DENIED"),
        (refusal(400, "INVALID_ARGUMENT", "API key not valid. Please pass"), AuthenticationError, "INVALID_ARGUMENT"),
        (refusal(404, "NOT_FOUND"), RequestRefusedError, "NOT_FOUND"),
        (refusal(400, "FAILED_PRECONDITION"), RequestRefusedError, "FAILED_PRECONDITION"),
        (refusal(429, "RESOURCE_EXHAUSTED"), RateLimitError, "RESOURCE_EXHAUSTED"),
        (refusal(500, "INTERNAL"), ServerError, "INTERNAL"),
        (refusal(504, "DEADLINE_EXCEEDED"), ProviderTimeoutError, "DEADLINE_EXCEEDED"),
        (ServerReply((b"<html>",), status=502, content_type="text/html"), ServerError, ""),
        (ServerReply.json([{"error": {"code": 503, "status": "UNAVAILABLE"}}], status=503), ServerError, "UNAVAILABLE"),
    ],
)
def test_each_refusal_is_the_error_that_fits(reply: ServerReply, kind: type[ProviderError], code: str) -> None:
    for stream in (False, True):
        error = error_of(reply, stream=stream)
        assert (type(error), error.status, error.code) == (kind, reply.status, code)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        refusal(400, "INVALID_ARGUMENT", "API key not valid. Please pass"),
        refusal(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
        refusal(404, "NOT_FOUND"),
        refusal(429, "RESOURCE_EXHAUSTED", details=[{"@type": "x", "retryDelay": "38.5s"}]),
        refusal(503, "UNAVAILABLE"),
    ],
)
def test_an_error_that_comes_with_status_200_is_the_error_that_its_own_status_makes(
    reply: ServerReply, stream: bool
) -> None:
    error, plain = error_of(replace(reply, status=200), stream=stream), error_of(reply, stream=stream)
    assert (type(error), str(error)) == (type(plain), str(plain))
    assert vars(error) == vars(plain)


def test_an_error_in_a_list_that_comes_with_status_200_is_one_too() -> None:
    (body,) = refusal(503, "UNAVAILABLE").pieces
    error = error_of(ServerReply((b"[" + body + b"]",)))
    assert (type(error), error.status, error.code) == (ServerError, 503, "UNAVAILABLE")


@pytest.mark.parametrize("fields", [{"code": "503"}, {"code": None}, {"code": [503]}, {"message": 5}, {"status": []}])
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_of_another_shape_is_one_all_the_same(fields: dict[str, object], stream: bool) -> None:
    told = {"code": 503, "message": "no", "status": "UNAVAILABLE", **fields}
    error = error_of(ServerReply.json({"error": told}), stream=stream)
    assert error.status == (503 if told["code"] == 503 else 0)


def test_what_a_text_says_of_errors_is_no_error() -> None:
    said = ServerReply.json(chunk([{"text": '{"error": {"code": 503}}'}], finishReason="STOP") | {"error": None})
    answer, _ = served(asking(), said)
    assert answer.text == '{"error": {"code": 503}}'


@pytest.mark.parametrize(
    ("told", "actual", "limit"),
    [
        ("The input token count (1091639) exceeds the maximum number of tokens allowed (1048576).", 1091639, 1048576),
        ("The input token count exceeds the maximum number of tokens allowed 1048576.", None, 1048576),
        ("... because the input token count is 40960 but model only supports up to 32768. Reduce ...", 40960, 32768),
    ],
)
def test_an_overflow_tells_its_sizes(told: str, actual: int | None, limit: int) -> None:
    error = error_of(refusal(400, "INVALID_ARGUMENT", told))
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit) == (actual, limit)


def test_a_body_that_is_too_large_is_no_overflow() -> None:
    error = error_of(refusal(400, "INVALID_ARGUMENT", "Request payload size exceeds the limit: 20971520 bytes."))
    assert type(error) is RequestRefusedError


def test_a_rate_limit_tells_the_fraction_of_a_second() -> None:
    delay = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "38.5s"}
    error = error_of(refusal(429, "RESOURCE_EXHAUSTED", details=[{"@type": "x"}, delay]))
    assert isinstance(error, RateLimitError)
    assert error.retry_after_seconds == 38.5


@pytest.mark.parametrize("event", [{"error": {"message": "no code"}}, {"error": "text"}, ["a list"], "no JSON"])
def test_an_event_that_is_none_breaks_the_stream(event: object) -> None:
    error = error_of(ServerReply.events(chunk([{"text": "half"}]), event), stream=True)
    assert isinstance(error, BrokenStreamError)
    assert isinstance(error_of(ServerReply.events(event), stream=True), ProviderError)


def test_half_a_character_is_told_with_its_place() -> None:
    half = Message("assistant", (Text("secret \ud83d"),))
    with pytest.raises(InputError, match=r"^messages\[1\]: holds half a character"):
        served(asking(HI.but(messages=(*HI.messages, half))), FINE)


@pytest.mark.parametrize("model", ["a?b=c", "../files", "a b", "{model}"])
def test_a_name_that_is_no_models_is_refused_by_name(model: str) -> None:
    with pytest.raises(InputError, match=r"options\.model"):
        served(asking(HI.but(options=ChatOptions(model=model))), FINE)


def test_a_stream_that_falls_silent_is_broken() -> None:
    held = Delivery(ServerReply.events(chunk([{"text": "half"}]), chunk([], finishReason="STOP")), 1, "hold")

    async def work() -> bool:
        async with ScriptedServer(lambda request: held) as server:
            client = client_of(server, stall_seconds=0.1)
            with pytest.raises(BrokenStreamError, match="stalled"):
                await (await client.send(HI.but(stream=True))).response()
            is_left = await server.until(lambda: not server.open_connections, 5.0)
            await client.aclose()
            return is_left

    assert asyncio.run(work())


def test_failed_calls_are_tried_again() -> None:
    answer, requests = served(asking(max_retries=1), refusal(503, "UNAVAILABLE"), FINE)
    assert (answer.text, len(requests)) == ("fine", 2)


def test_a_short_timeout_is_no_deadline_that_the_server_refuses() -> None:
    for seconds, deadline in ((0.5, "10"), (60, "60")):
        _, (request,) = served(asking(timeout_seconds=seconds), FINE)
        assert request.headers["x-server-timeout"] == deadline


def test_the_trace_goes_along() -> None:
    async def work(server: ScriptedServer) -> None:
        client = client_of(server)
        with TracerProvider().get_tracer("test").start_as_current_span("turn"):
            await (await client.send(HI)).response()
            await (await client.send(HI.but(stream=True))).response()
        await (await client.send(HI)).response()
        await client.aclose()

    streamed = ServerReply.events(chunk([{"text": "fine"}], finishReason="STOP"))
    _, requests = served(work, FINE, streamed, FINE)
    assert ["traceparent" in each.headers for each in requests] == [True, True, False]


def test_tokens_are_counted_with_tools_and_instructions() -> None:
    request = HI.but(options=ChatOptions(instructions="be brief", tools=(TOOL,)))

    count, (received,) = served(
        doing(lambda client: client.count_tokens(request)), ServerReply.json({"totalTokens": 31})
    )
    body = check_request(received)
    assert count == 31
    assert received.target.endswith("/models/gemini-3.8-flash:countTokens")
    assert body["contents"] == []
    asked = body["generateContentRequest"]
    assert asked["model"] == "models/gemini-3.8-flash"
    assert asked.keys() == {"model", "contents", "systemInstruction", "tools"}


def test_a_count_without_a_number_is_an_error() -> None:
    with pytest.raises(ServerError, match="no count of tokens"):
        served(doing(lambda client: client.count_tokens(HI)), ServerReply.json({}))


def test_the_window_is_on_the_models_card() -> None:
    card = {"name": "models/gemini-3.8-flash", "inputTokenLimit": 1048576, "outputTokenLimit": 65536}
    window, (request,) = served(doing(lambda client: client.window_tokens()), ServerReply.json(card))
    assert window == 1048576
    assert request.target.endswith("/models/gemini-3.8-flash")
    none, _ = served(doing(lambda client: client.window_tokens("other")), ServerReply.json({"name": "models/x"}))
    assert none is None
    for status in (404, 200):
        with pytest.raises(RequestRefusedError, match="not found"):
            served(doing(lambda client: client.window_tokens()), replace(refusal(404, "NOT_FOUND"), status=status))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_client_of_the_callers_is_used_and_left_open(is_async: bool) -> None:
    async def work(server: ScriptedServer) -> str:
        made = google.genai.Client(api_key="k", http_options=HttpOptions(base_url=server.base_url))
        client = GeminiChatClient("gemini-3.8-flash", client=made.aio if is_async else made)
        assert (client.info.name, client.info.server_port) == ("gcp.gemini", server.port)
        for _ in range(2):
            answer = await (await client.send(HI)).response()
            await client.aclose()
        await made.aio.aclose()
        return answer.text

    assert served(work, FINE)[0] == "fine"


def test_a_client_for_google_cloud_has_its_addresses() -> None:
    async def work(server: ScriptedServer) -> int | None:
        made = google.genai.Client(vertexai=True, api_key="k", http_options=HttpOptions(base_url=server.base_url))
        client = GeminiChatClient("gemini-3.8-flash", client=made)
        assert client.info.name == "gcp.vertex_ai"
        await (await client.send(HI)).response()
        counted = await client.count_tokens(HI.but(options=ChatOptions(instructions="be brief")))
        await made.aio.aclose()
        return counted

    count, (answered, asked) = served(work, FINE, ServerReply.json({"totalTokens": 7}))
    assert count == 7
    assert "/publishers/google/models/gemini-3.8-flash:generateContent" in answered.target
    assert check_request(asked).keys() == {"contents", "systemInstruction"}


def test_an_http_client_of_the_callers_is_used_and_left_open() -> None:
    async def work(server: ScriptedServer) -> bool:
        async with httpx2.AsyncClient(headers={"x-mine": "yes"}) as mine:
            client = client_of(server, http_client=mine)
            await (await client.send(HI)).response()
            await client.aclose()
            return mine.is_closed

    is_closed, (request,) = served(work, FINE)
    assert request.headers["x-mine"] == "yes"
    assert not is_closed


def test_one_client_serves_one_event_loop_after_another() -> None:
    async def work(server: ScriptedServer) -> list[str]:
        client = client_of(server)
        return [await asyncio.to_thread(lambda: asyncio.run(ask(client))) for _ in range(3)]

    async def ask(client: GeminiChatClient) -> str:
        return (await (await client.send(HI)).response()).text

    assert served(work, FINE)[0] == ["fine"] * 3


def test_the_key_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "from-environment")
    _, (request,) = served(asking(api_key=None), FINE)
    assert request.headers["x-goog-api-key"] == "from-environment"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({}, "no API key; set GEMINI_API_KEY"),
        ({"api_key": ""}, "api_key is empty"),
        ({"api_key": "a\nb"}, "characters that no header may hold"),
        ({"api_key": "k", "base_url": "localhost:1"}, "base_url must be like"),
        ({"api_key": "k", "max_retries": -1}, "max_retries must be a whole number"),
        ({"client": object()}, r"client must be a google\.genai\.Client\(...\), not object"),
        ({"client": object(), "api_key": "k"}, "pass client, or api_key, not both"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(WiringError, match=told):
        GeminiChatClient("gemini-3.8-flash", **settings)


def test_a_config_finds_it_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "k")
    stack = from_config({"provider": {"use": "gemini", "model": "gemini-3.8-flash", "timeout_seconds": 30}})
    assert isinstance(stack.build().provider, GeminiChatClient)
