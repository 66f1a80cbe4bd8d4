"""Prompt caches for real: conversations with a local model, whose server reports what it read from its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

import pytest

from chatstack import ChatClient, ChatOptions, ChatResponse, ChatStack, Message, ToolDeclaration
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.testing import TelemetryCapture
from tests.model_server import MODEL, ModelServer, missing_part, model_server

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(bool(missing_part()), reason=f"the real model needs {missing_part()}, which is not installed"),
]

Maker: TypeAlias = Callable[[ModelServer], ChatClient]

HEAD = "You are a helpful librarian who knows all the books. " * 120
LOOK = ToolDeclaration("look", "Looks at a shelf", '{"type":"object","properties":{"shelf":{"type":"string"}}}')


def openai_chat(server: ModelServer) -> ChatClient:
    return OpenAIChatClient(
        MODEL, api_key="none", base_url=server.openai_url, max_tokens_field="max_tokens", cache="key"
    )


def openai_responses(server: ModelServer) -> ChatClient:
    return OpenAIResponsesClient(MODEL, api_key="none", base_url=server.openai_url, cache="key")


def anthropic_chat(server: ModelServer) -> ChatClient:
    return AnthropicChatClient(MODEL, api_key="none", base_url=server.anthropic_url, cache="1h")


ON_EVERY_WIRE = pytest.mark.parametrize("make", [openai_chat, openai_responses, anthropic_chat])
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


def talk(client: ChatClient, heads: list[str], *, stream: bool) -> tuple[list[ChatResponse], TelemetryCapture]:
    """One turn for each head."""
    capture, options = TelemetryCapture(), ChatOptions(max_tokens=8, temperature=0.0, tools=(LOOK,), tool_choice="none")

    async def talked() -> list[ChatResponse]:
        history, answers = list[Message](), list[ChatResponse]()
        async with ChatStack(client).open(capture.resolve) as built:
            for number, head in enumerate(heads):
                history.append(Message.user(f"Question {number}: name one book."))
                messages = [Message.system(head), *history]
                if stream:
                    async with built.get_streaming_response(messages, options=options, conversation_id="c") as answer:
                        answers.append(await answer.response())
                else:
                    answers.append(await built.get_response(messages, options=options, conversation_id="c"))
                history += answers[-1].messages
        await client.aclose()  # type: ignore[attr-defined]
        return answers

    return asyncio.run(talked()), capture


@ON_EVERY_WIRE
@BOTH_WAYS
def test_each_turn_reads_what_the_one_before_has_left(server: ModelServer, make: Maker, stream: bool) -> None:
    answers, capture = talk(make(server), [f"{make.__name__} {stream}. {HEAD[:1_200]}"] * 4, stream=stream)
    for before, answer in pairwise(answers):
        # The last tokens of a prompt are read anew, and the template ends it in other words than it goes on with.
        assert answer.usage.cache_read_tokens > before.usage.input_tokens - 32
    assert "cache_missed" not in capture.warnings


@ON_EVERY_WIRE
def test_a_head_that_changes_is_told(server: ModelServer, make: Maker) -> None:
    steady = f"{make.__name__} reports. {HEAD}"
    _, capture = talk(make(server), [steady, steady, f"Now {make.__name__}. {HEAD}"], stream=True)
    assert capture.warnings == ("cache_missed",)
    (span,) = capture.spans_named("prompt_cache")
    assert span.attributes["chatstack.cache.miss_reason"] == "head"
