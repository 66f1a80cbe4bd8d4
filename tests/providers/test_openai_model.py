"""A real model behind the OpenAI wires: llama.cpp's server, an OpenAI-compatible one by ``base_url``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TypeAlias

import pytest

from chatstack import ChatOptions, ChatRequest, ChatResponse, ContextOverflowError, Message
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from tests.model_server import MODEL, WINDOW_TOKENS, ModelServer, missing_part, model_server

pytestmark = [pytest.mark.server, pytest.mark.skipif(bool(missing_part()), reason=f"needs {missing_part()}")]

Kind: TypeAlias = type[OpenAIChatClient] | type[OpenAIResponsesClient]
BOTH = pytest.mark.parametrize("kind", [OpenAIChatClient, OpenAIResponsesClient])


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


def ask(kind: Kind, server: ModelServer, text: str, *, stream: bool, max_tokens: int = 12) -> ChatResponse:
    async def asked() -> ChatResponse:
        async with kind(MODEL, api_key="none", base_url=server.openai_url, max_retries=0) as client:
            options = ChatOptions(max_tokens=max_tokens, temperature=0.0)
            history = (Message.system("be brief"), Message.user(text))
            return await (await client.send(ChatRequest(history, options, None, stream))).response()

    return asyncio.run(asked())


@BOTH
def test_a_model_answers_the_same_streamed_and_whole(server: ModelServer, kind: Kind) -> None:
    whole = ask(kind, server, "Say hello.", stream=False)
    streamed = ask(kind, server, "Say hello.", stream=True)
    assert whole.text == streamed.text != ""
    assert whole.finish_reason == streamed.finish_reason
    assert whole.usage.input_tokens == streamed.usage.input_tokens > 0
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 0


@BOTH
def test_an_answer_is_bounded_by_max_tokens(server: ModelServer, kind: Kind) -> None:
    response = ask(kind, server, "Tell me a long story about a ship.", stream=True, max_tokens=5)
    assert response.usage.output_tokens == 5


def test_an_answer_that_was_cut_off_says_so(server: ModelServer) -> None:
    response = ask(OpenAIChatClient, server, "Tell me a long story about a ship.", stream=False, max_tokens=5)
    assert response.finish_reason == "length"


@BOTH
@pytest.mark.parametrize("stream", [False, True])
def test_a_true_overflow_tells_both_sizes(server: ModelServer, kind: Kind, stream: bool) -> None:
    with pytest.raises(ContextOverflowError) as caught:
        ask(kind, server, "word " * 3 * WINDOW_TOKENS, stream=stream)
    assert caught.value.limit == WINDOW_TOKENS
    assert (caught.value.actual or 0) > WINDOW_TOKENS
    assert "word" not in str(caught.value)


@BOTH
def test_a_prompt_that_was_cached_counts_as_input(server: ModelServer, kind: Kind) -> None:
    text = "The ship leaves the harbour at dawn. " * 20
    first, second = (ask(kind, server, text, stream=False) for _ in range(2))
    assert second.usage.input_tokens == first.usage.input_tokens
    assert 0 < second.usage.cache_read_tokens <= second.usage.input_tokens
