"""Two real SDKs, two real servers: the first one is overloaded, too small, or gone; the second one answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from chatstack import (
    ChatResponse,
    ChatStack,
    ContextOverflowError,
    Fallback,
    Message,
    RateLimitError,
    ServerError,
)
from chatstack.errors import AuthenticationError, FallbackError, ProviderConnectionError
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from tests.servers import MockServer, free_port, mock_server

pytestmark = pytest.mark.server

SMALL_TOKENS = 300
LARGE_TOKENS = 100_000
LONG = [Message.user("word " * 400), Message.assistant("answer " * 400)] * 2 + [Message.user("and now?")]
Client: TypeAlias = OpenAIChatClient | OpenAIResponsesClient | AnthropicChatClient
Maker: TypeAlias = Callable[[str], Client]
BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module")
def small() -> Iterator[MockServer]:
    with mock_server(context_window=SMALL_TOKENS) as running:
        yield running


@pytest.fixture(scope="module")
def large() -> Iterator[MockServer]:
    with mock_server(context_window=LARGE_TOKENS) as running:
        yield running


def chat(url: str, window: int = LARGE_TOKENS) -> Client:
    return OpenAIChatClient("gpt-4o", api_key="none", base_url=f"{url}/v1", max_retries=0, window_tokens=window)


def responses(url: str, window: int = LARGE_TOKENS) -> Client:
    return OpenAIResponsesClient("gpt-4o", api_key="none", base_url=f"{url}/v1", max_retries=0, window_tokens=window)


def claude(url: str, window: int = LARGE_TOKENS) -> Client:
    return AnthropicChatClient(
        "claude-sonnet-5", api_key="none", base_url=f"{url}/anthropic", max_retries=0, window_tokens=window
    )


def ask(first: Client, second: Client, messages: list[Message] | str, *, stream: bool) -> ChatResponse:
    async def asked() -> ChatResponse:
        client = ChatStack(first).use(Fallback, clients=[second]).build()
        async with first, second:
            if not stream:
                return await client.get_response(messages)
            async with client.get_streaming_response(messages) as answer:
                return await answer.response()

    return asyncio.run(asked())


@BOTH
@pytest.mark.parametrize("status", [429, 500, 529, 401])
def test_one_that_is_overloaded_is_followed_by_one_of_another_provider(
    small: MockServer, large: MockServer, status: int, stream: bool
) -> None:
    small.script({"type": "fail", "status": status})
    large.script({"type": "reply", "text": "Here I am."})
    response = ask(claude(small.url), chat(large.url), "hello", stream=stream)
    assert response.text == "Here I am."
    assert response.model == "gpt-4o"
    (body,) = large.bodies()
    assert body["model"] == "gpt-4o"
    assert body["messages"] == [{"role": "user", "content": "hello"}]


@BOTH
def test_one_that_cannot_be_reached_is_followed_by_one_that_can(large: MockServer, stream: bool) -> None:
    large.script({"type": "reply", "text": "Here I am."})
    nobody = f"http://127.0.0.1:{free_port()}"
    assert ask(responses(nobody), claude(large.url), "hello", stream=stream).text == "Here I am."


@BOTH
@pytest.mark.parametrize("kind", [chat, responses, claude])
def test_what_is_too_long_for_one_fits_the_next(
    small: MockServer, large: MockServer, kind: Maker, stream: bool
) -> None:
    small.script()
    large.script({"type": "reply", "text": "That fits."})
    response = ask(kind(small.url), chat(large.url), LONG, stream=stream)
    assert response.text == "That fits."
    (body,) = large.bodies()
    assert len(body["messages"]) == len(LONG)  # type: ignore[arg-type]


@BOTH
def test_what_is_too_long_for_both_is_cut_to_the_window_of_the_second(
    small: MockServer, large: MockServer, stream: bool
) -> None:
    small.script({"type": "fail", "status": 529})
    messages = [Message.user("the task"), *LONG[:-1], Message.user("and now?")]
    response = ask(claude(small.url), chat(small.url, SMALL_TOKENS), messages, stream=stream)
    assert response.text
    refused, answered = small.bodies()
    assert len(refused["messages"]) == len(messages)  # type: ignore[arg-type]
    assert answered["messages"] == [
        {"role": "user", "content": "the task"},
        {"role": "user", "content": "and now?"},
    ]


@BOTH
def test_where_both_fail_both_errors_are_there_with_what_the_sdks_said(
    small: MockServer, large: MockServer, stream: bool
) -> None:
    small.script()
    large.script({"type": "fail", "status": 429, "retry_after": 7})
    with pytest.raises(FallbackError) as caught:
        ask(chat(small.url), claude(large.url), LONG, stream=stream)
    first, second = caught.value.exceptions
    assert isinstance(first, ContextOverflowError)
    assert first.limit == SMALL_TOKENS
    assert isinstance(second, RateLimitError)
    assert second.retry_after_seconds == 7
    assert type(first.__cause__).__module__.startswith("openai")
    assert type(second.__cause__).__module__.startswith("anthropic")
    assert "word" not in "".join(str(each) for each in (caught.value, first, second))


def test_each_kind_of_refusal_keeps_its_own_class(small: MockServer, large: MockServer) -> None:
    small.script({"type": "fail", "status": 529})
    large.script({"type": "fail", "status": 401})
    with pytest.raises(FallbackError) as caught:
        ask(claude(small.url), chat(large.url), "hello", stream=False)
    assert [type(each) for each in caught.value.exceptions] == [ServerError, AuthenticationError]
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(FallbackError) as caught:
        ask(chat(nobody), responses(nobody), "hello", stream=False)
    assert [type(each) for each in caught.value.exceptions] == [ProviderConnectionError] * 2
