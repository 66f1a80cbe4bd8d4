"""Prompt caches for real: conversations with a local model, whose server reports what it read from its cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

import pytest

from chatstack import (
    CharCounter,
    ChatClient,
    ChatOptions,
    ChatResponse,
    ChatStack,
    Message,
    Summarizer,
    ToolDeclaration,
    Usage,
    find,
)
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
    steady = f"{make.__name__} reports. {HEAD[:5_000]}"
    _, capture = talk(make(server), [steady, steady, f"Now {make.__name__}. {HEAD[:5_000]}"], stream=True)
    assert capture.warnings == ("cache_missed",)
    (span,) = capture.spans_named("prompt_cache")
    assert span.attributes["chatstack.cache.miss_reason"] == "head"


# Summaries

LIKE_THE_MODEL = CharCounter(chars_per_token=4)


@pytest.fixture(scope="module")
def large_server() -> Iterator[ModelServer]:
    with model_server(window_tokens=8_192) as running:
        yield running


@pytest.mark.parametrize(
    ("make", "prepare_at"), [(openai_chat, None), (anthropic_chat, 0.7)], ids=["when due", "ahead"]
)
def test_a_summary_reads_at_least_95_percent_of_its_input(
    large_server: ModelServer, make: Maker, prepare_at: float | None
) -> None:
    """What the model writes may be cut off, and then it is no summary; what it has read was reported by then."""
    client = make(large_server)
    options = ChatOptions(instructions="You are brief.", max_tokens=8, temperature=0.0, tools=(LOOK,))
    stack = ChatStack(client).use(
        Summarizer,
        max_tokens=5_000,
        keep_recent_turns=1,
        max_summary_tokens=64,
        summary_prompt="Sum it up.",
        cache_aligned=True,
        prepare_at=prepare_at,
        counter=LIKE_THE_MODEL,
    )

    async def talked() -> Usage:
        history, overhead = list[Message](), Usage()
        async with stack.open() as built:
            while not overhead.input_tokens and len(history) < 16:
                history.append(Message.user(f"{make.__name__} {prepare_at} {len(history)}: {HEAD[:5_000]}"))
                answer = await built.get_response(history, options=options, conversation_id="c")
                history.append(Message.assistant(answer.text or "Yes."))
                overhead = answer.overhead_usage
                background = find(built, Summarizer).services.attempts.background  # type: ignore[union-attr]
                while len(background):  # noqa: ASYNC110 - a real server takes its time
                    await asyncio.sleep(0.05)
        await client.aclose()  # type: ignore[attr-defined]
        return overhead

    overhead = asyncio.run(talked())
    assert overhead.input_tokens > 3_000
    assert overhead.cache_read_tokens >= 0.95 * overhead.input_tokens
