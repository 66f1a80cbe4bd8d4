"""Recovery from the refusals of real servers: an API that is imitated, on all wires, and a real model's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import pytest

from chatstack import (
    ChatOptions,
    ChatResponse,
    ChatStack,
    ContextOverflowError,
    ContextWindowGuard,
    Message,
    ToolCall,
    Windows,
)
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.telemetry.emission import Telemetry
from chatstack.testing import TelemetryCapture
from tests.model_server import MODEL, WINDOW_TOKENS, ModelServer, missing_part, model_server
from tests.servers import MockServer, mock_server

pytestmark = pytest.mark.server

MOCKED_WINDOW = 2_000
EXCEEDED = "context_window_exceeded"
Client: TypeAlias = OpenAIChatClient | OpenAIResponsesClient | AnthropicChatClient
Server: TypeAlias = MockServer | ModelServer
Maker: TypeAlias = Callable[[Server, str], Client]


def openai_chat(server: Server, model: str) -> Client:
    return OpenAIChatClient(model, api_key="none", base_url=server.openai_url, max_tokens_field="max_tokens")


def openai_responses(server: Server, model: str) -> Client:
    return OpenAIResponsesClient(model, api_key="none", base_url=server.openai_url)


def anthropic_chat(server: Server, model: str) -> Client:
    return AnthropicChatClient(model, api_key="none", base_url=server.anthropic_url)


ON_EVERY_WIRE = pytest.mark.parametrize("make", [openai_chat, openai_responses, anthropic_chat])
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="module")
def mocked() -> Iterator[MockServer]:
    with mock_server(context_window=MOCKED_WINDOW) as running:
        yield running


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    if missing_part():
        pytest.skip(f"the real model needs {missing_part()}, which is not installed")
    with model_server() as running:
        yield running


def talk(messages: int = 41, start: str = "") -> list[Message]:
    """User and assistant in turn, about 100 tokens each, with a call and its result in every tenth place."""
    words = "the ship has left the harbour and the wind is fair today so that we "
    history: list[Message] = [Message.system("You are brief.")]
    for number in range(messages):
        if number % 10 == 5:
            history.append(Message.assistant(f"{start}let me see", ToolCall(f"c{number}", "look", '{"at": "sea"}')))
            history.append(Message.tool(f"c{number}", f"{number} {words * 4}"))
        else:
            history.append((Message.user, Message.assistant)[number % 2](f"{start}{number} {words * 6}"))
    return history


class Guarded:
    """A pruning guard that takes the window for far too large."""

    def __init__(self, client: Client, *, prune_to: float = 0.7) -> None:
        self.provider, self.capture, self.windows = client, TelemetryCapture(), Windows()
        stack = ChatStack(client).use(
            ContextWindowGuard,
            max_context_tokens=1_000_000,
            prune_on_overflow=True,
            prune_to=prune_to,
        )
        self.client = stack.build({Windows: self.windows, Telemetry: self.capture.telemetry}.get)

    def converse(self, *turns: Sequence[Message], stream: bool) -> list[ChatResponse]:
        async def used() -> list[ChatResponse]:
            answers: list[ChatResponse] = []
            try:
                for messages in turns:
                    options = ChatOptions(max_tokens=8, temperature=0.0)
                    if stream:
                        async with self.client.get_streaming_response(messages, options=options) as answer:
                            answers.append(await answer.response())
                    else:
                        answers.append(await self.client.get_response(messages, options=options))
            finally:
                await self.provider.aclose()
            return answers

        return asyncio.run(used())

    @property
    def outcomes(self) -> list[object]:
        """How each call of the model ended: with which error, or "" for none."""
        return [span.attributes.get("error.type", "") for span in self.capture.spans if span.name.startswith("chat ")]


@ON_EVERY_WIRE
@BOTH_WAYS
def test_an_imitated_api_answers_after_pruning_and_the_next_turns_need_no_refusal(
    mocked: MockServer, make: Maker, stream: bool
) -> None:
    mocked.reset()
    guarded = Guarded(make(mocked, "gpt-4o-mini"))
    history = talk()
    turns = [history, [*history, Message.assistant("Yes."), Message.user("And then?")], talk(5)]
    answers = guarded.converse(*turns, stream=stream)
    assert [record["status"] for record in mocked.records()] == [400, 200, 200, 200]
    assert guarded.outcomes == ["ContextOverflowError", "", "", ""]
    assert all(answer.messages for answer in answers)
    assert len(guarded.capture.spans_named("compact_context truncate")) == 1
    assert guarded.windows.learnt(guarded.provider) == MOCKED_WINDOW


@ON_EVERY_WIRE
def test_an_imitated_api_that_refuses_what_may_not_be_removed_is_not_asked_again(
    mocked: MockServer, make: Maker
) -> None:
    mocked.reset()
    guarded = Guarded(make(mocked, "gpt-4o-mini"))
    with pytest.raises(ContextOverflowError) as caught:
        guarded.converse([Message.user("word " * 4_000)], stream=False)
    assert caught.value.limit == MOCKED_WINDOW
    assert caught.value.__cause__ is not None
    assert len(mocked.records()) == 1


@ON_EVERY_WIRE
@BOTH_WAYS
def test_a_real_model_answers_after_pruning_and_nothing_after_that_needs_a_refusal(
    model: ModelServer, make: Maker, stream: bool
) -> None:
    """Its own count is believed: what is left is close to what was aimed at, a fifth of the window."""
    guarded = Guarded(make(model, MODEL), prune_to=0.2)
    history = talk()
    turns = [history, [*history, Message.assistant("Yes."), Message.user("And then?")], talk(start="another: ")]
    first, then, other = guarded.converse(*turns, stream=stream)
    assert guarded.outcomes == ["ContextOverflowError", "", "", ""]
    assert 0.13 * WINDOW_TOKENS < first.usage.input_tokens <= 0.2 * WINDOW_TOKENS
    assert first.usage.input_tokens < then.usage.input_tokens <= WINDOW_TOKENS
    assert 0 < other.usage.input_tokens <= WINDOW_TOKENS
    assert guarded.windows.learnt(guarded.provider) == WINDOW_TOKENS
    assert guarded.capture.warnings[0] == EXCEEDED
    edits = guarded.capture.spans_named("compact_context truncate")
    assert len(edits) == 2  # one for each conversation
