"""The Anthropic client over real HTTP, against a mock of the API that can fail on demand."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator

import anthropic
import httpx2
import pytest

from chatstack import (
    AuthenticationError,
    BrokenStreamError,
    CallDelta,
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ChatStream,
    ContextOverflowError,
    Message,
    ProviderConnectionError,
    ProviderError,
    ProviderTimeoutError,
    RateLimitError,
    RequestRefusedError,
    ServerError,
    StreamClosedError,
    ToolCall,
    ToolDeclaration,
)
from chatstack.providers.anthropic import AnthropicChatClient
from tests.servers import MockServer, free_port, mock_server, silent_server

pytestmark = pytest.mark.server

KEY = "sk-ant-not-to-be-seen"
MODEL = "claude-sonnet-5"
WEATHER = ToolDeclaration(
    "weather", "The weather of a city", '{"type":"object","properties":{"city":{"type":"string"}}}'
)
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def running() -> Iterator[MockServer]:
    with mock_server(context_window=2000) as server:
        yield server


@pytest.fixture
def server(running: MockServer) -> MockServer:
    running.reset()
    return running


def client(server: MockServer | str, **settings: object) -> AnthropicChatClient:
    url = server if isinstance(server, str) else server.anthropic_url
    given: dict[str, object] = {"api_key": KEY, "base_url": url, "max_retries": 0, **settings}
    return AnthropicChatClient(MODEL, **given)  # type: ignore[arg-type]


async def answer(provider: AnthropicChatClient, *, stream: bool, text: str = "hi", **options: object) -> ChatResponse:
    async with provider, await opened(provider, stream=stream, text=text, **options) as found:
        return await found.response()


async def opened(provider: AnthropicChatClient, *, stream: bool, text: str = "hi", **options: object) -> ChatStream:
    request = ChatRequest((Message.user(text),), ChatOptions().but(**options), stream=stream)
    return await provider.send(request)


async def refusal(provider: AnthropicChatClient, *, stream: bool, text: str = "hi") -> BaseException:
    """What ``send`` itself raises."""
    async with provider:
        try:
            await opened(provider, stream=stream, text=text)
        except ProviderError as error:
            return error
    raise AssertionError("send did not raise")


@BOTH_WAYS
def test_text_comes_with_usage_and_the_reason_for_its_end(server: MockServer, stream: bool) -> None:
    server.script({"type": "reply", "text": "Grüße aus Dubai."})
    found = asyncio.run(answer(client(server), stream=stream, text="Greetings from where, please?"))
    assert found.messages == (Message.assistant("Grüße aus Dubai."),)
    assert (found.finish_reason, found.model, found.rounds) == ("stop", MODEL, 1)
    assert found.usage.input_tokens > 0
    assert found.usage.output_tokens > 0
    assert found.id.startswith("msg_")
    assert isinstance(found.raw, anthropic.types.Message)
    assert found.raw.id == found.id
    assert server.bodies()[0].get("stream", False) is stream


def test_text_is_streamed_piece_by_piece(server: MockServer) -> None:
    server.script({"type": "reply", "text": "one two three four"})

    async def pieces() -> list[str]:
        async with client(server) as provider, provider.get_streaming_response("count") as stream:
            return [update.text async for update in stream if update.text]

    found = asyncio.run(pieces())
    assert "".join(found) == "one two three four"
    assert len(found) > 1


@BOTH_WAYS
def test_parallel_calls_come_in_order_and_whole(server: MockServer, stream: bool) -> None:
    calls = [{"name": "weather", "arguments": {"city": city}} for city in ("Dubai", "Zürich")]
    server.script({"type": "reply", "text": "Looking.", "tool_calls": calls})
    found = asyncio.run(answer(client(server), stream=stream, tools=(WEATHER,)))
    (message,) = found.messages
    assert message.text == "Looking."
    # As received: this server escapes what it streams, and an answer that comes whole does not tell its spelling.
    assert [(call.name, json.loads(call.arguments)) for call in message.calls] == [
        ("weather", {"city": "Dubai"}),
        ("weather", {"city": "Zürich"}),
    ]
    assert len({call.id for call in message.calls}) == 2
    assert found.finish_reason == "tool_calls"


def test_a_call_shows_while_it_is_written_and_then_comes_whole(server: MockServer) -> None:
    calls = [{"name": "weather", "arguments": {"city": city}} for city in ("Dubai", "Oslo")]
    server.script({"type": "reply", "tool_calls": calls})

    async def seen() -> tuple[list[CallDelta], list[ToolCall]]:
        async with client(server) as provider, await opened(provider, stream=True, tools=(WEATHER,)) as stream:
            updates = [update async for update in stream]
        deltas = [update.call_delta for update in updates if update.call_delta is not None]
        return deltas, [update.part for update in updates if isinstance(update.part, ToolCall)]

    deltas, whole = asyncio.run(seen())
    for index, call in enumerate(whole):
        pieces = [delta for delta in deltas if delta.index == index]
        assert (pieces[0].id, pieces[0].name) == (call.id, call.name)
        assert "".join(piece.arguments for piece in pieces) == call.arguments
    assert len(whole) == 2


def test_a_whole_turn_with_results_is_accepted(server: MockServer) -> None:
    call, result = Message.assistant(ToolCall("a", "weather")), Message.tool("a", "21C")

    async def turn() -> ChatResponse:
        async with client(server) as provider:
            return await provider.get_response(
                [Message.system("Be brief."), Message.user("Weather?"), call, result],
                options=ChatOptions(tools=(WEATHER,)),
            )

    assert asyncio.run(turn()).text != ""
    (body,) = server.bodies()
    assert body["system"] == [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]  # type: ignore[attr-defined]


@BOTH_WAYS
@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, RequestRefusedError, "invalid_request_error"),
        (401, AuthenticationError, "authentication_error"),
        (403, AuthenticationError, "permission_error"),
        (404, RequestRefusedError, "not_found_error"),
        (413, RequestRefusedError, "request_too_large"),
        (500, ServerError, "api_error"),
        (529, ServerError, "overloaded_error"),
    ],
)
def test_a_refusal_is_raised_by_send_as_its_kind(
    server: MockServer, status: int, kind: type[ProviderError], code: str, stream: bool
) -> None:
    server.script({"type": "fail", "status": status, "message": "your prompt was: hi"})
    error = asyncio.run(refusal(client(server), stream=stream))
    assert type(error) is kind
    assert (error.provider, error.status, error.code) == ("anthropic", status, code)
    assert isinstance(error.__cause__, anthropic.APIStatusError)
    assert "your prompt" not in str(error)
    assert KEY not in repr(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@BOTH_WAYS
def test_a_rate_limit_says_how_long_to_wait(server: MockServer, stream: bool) -> None:
    server.script({"type": "fail", "status": 429, "retry_after": 7})
    error = asyncio.run(refusal(client(server), stream=stream))
    assert isinstance(error, RateLimitError)
    assert error.retry_after_seconds == 7


def test_the_retries_are_those_of_the_sdk(server: MockServer) -> None:
    server.script({"type": "fail", "status": 529, "times": 2})
    found = asyncio.run(answer(client(server, max_retries=2), stream=True))
    assert found.text != ""
    assert len(server.records()) == 3


@BOTH_WAYS
def test_an_overflow_tells_both_sizes(server: MockServer, stream: bool) -> None:
    error = asyncio.run(refusal(client(server), stream=stream, text="word " * 3000))
    assert isinstance(error, ContextOverflowError)
    assert (error.actual, error.limit, error.status) == (3750, 2000, 400)


@pytest.mark.parametrize("after_chunks", [0, 4])
@pytest.mark.parametrize("fault", ["truncate", "disconnect", "malformed"])
def test_a_stream_that_breaks_off_is_an_error_and_never_a_short_answer(
    server: MockServer, fault: str, after_chunks: int
) -> None:
    server.script(
        {"type": "reply", "text": "one two three four five six seven eight"},
        {"type": "stream_fault", "kind": fault, "after_chunks": after_chunks},
    )

    async def broken() -> None:
        async with client(server) as provider:
            stream = await opened(provider, stream=True)
            await stream.response()

    with pytest.raises(BrokenStreamError) as caught:
        asyncio.run(broken())
    assert caught.value.provider == "anthropic"
    assert "one" not in str(caught.value)


def test_a_stream_that_breaks_after_a_delta_gives_the_delta_first(server: MockServer) -> None:
    server.script(
        {"type": "reply", "text": "one two three four five six seven eight"},
        {"type": "stream_fault", "kind": "truncate", "after_chunks": 4},
    )

    async def broken() -> tuple[str, type[BaseException] | None]:
        seen = ""
        async with client(server) as provider, await opened(provider, stream=True) as stream:
            try:
                async for update in stream:
                    seen += update.text
            except BrokenStreamError as error:
                return seen, type(error)
        return seen, None

    seen, kind = asyncio.run(broken())
    assert seen.startswith("one")
    assert kind is BrokenStreamError


def test_a_stream_that_stalls_is_given_up(server: MockServer) -> None:
    server.script({"type": "stream_fault", "kind": "stall", "after_chunks": 2, "stall_seconds": 600})
    with pytest.raises(BrokenStreamError, match="stall_seconds"):
        asyncio.run(answer(client(server, stall_seconds=0.3), stream=True))


def test_a_server_that_never_answers_is_a_timeout() -> None:
    with silent_server() as url:
        error = asyncio.run(refusal(client(url, timeout_seconds=0.3), stream=False))
    assert isinstance(error, ProviderTimeoutError)
    assert isinstance(error, TimeoutError)
    assert isinstance(error.__cause__, anthropic.APITimeoutError)


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    error = asyncio.run(refusal(client(f"http://127.0.0.1:{free_port()}"), stream=True))
    assert isinstance(error, ProviderConnectionError)


def test_a_long_answer_is_streamed_on_the_wire_since_the_sdk_refuses_it_whole(server: MockServer) -> None:
    found = asyncio.run(answer(client(server), stream=False, max_tokens=64_000))
    assert found.text != ""
    assert server.bodies()[0]["stream"] is True


def test_cancelling_closes_the_stream_and_is_not_swallowed(server: MockServer) -> None:
    server.script({"type": "stream_fault", "kind": "stall", "after_chunks": 4, "stall_seconds": 600})

    async def cancelled() -> str:
        async with client(server) as provider:
            stream = await opened(provider, stream=True)
            reading = asyncio.create_task(stream.response())
            await asyncio.sleep(0.2)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            with pytest.raises(StreamClosedError) as caught:
                await stream.response()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            assert others == set()
            return str(caught.value)

    assert "not complete" in asyncio.run(cancelled())


def test_a_client_of_the_callers_is_used_and_left_open(server: MockServer) -> None:
    async def use() -> bool:
        async with httpx2.AsyncClient() as http_client:
            sdk = anthropic.AsyncAnthropic(api_key=KEY, base_url=server.anthropic_url, http_client=http_client)
            provider = AnthropicChatClient(MODEL, client=sdk)
            await provider.get_response("hi")
            await provider.aclose()
            return http_client.is_closed

    assert asyncio.run(use()) is False


def test_neither_repr_nor_info_shows_the_key(server: MockServer) -> None:
    provider = client(server)
    assert KEY not in repr(provider) + repr(provider.info)
    assert repr(provider) == f"AnthropicChatClient('{MODEL}', server='127.0.0.1')"
    assert (provider.info.name, provider.info.model) == ("anthropic", MODEL)
    assert f"http://{provider.info.server_address}:{provider.info.server_port}" == server.url
