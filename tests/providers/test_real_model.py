"""All three wires against one real model: what it says, what it costs, what it refuses, and how it counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeAlias, TypeVar

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatResponse,
    ContextOverflowError,
    Message,
    OutputSchema,
    ToolCall,
    ToolDeclaration,
    Usage,
)
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.tokens.windows import Windows
from tests.model_server import MODEL, WINDOW_TOKENS, ModelServer, missing_part, model_server

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(bool(missing_part()), reason=f"the real model needs {missing_part()}, which is not installed"),
]

T = TypeVar("T")
Client: TypeAlias = OpenAIChatClient | OpenAIResponsesClient | AnthropicChatClient
Maker: TypeAlias = Callable[[ModelServer], Client]

SHORT = ChatOptions(max_tokens=12, temperature=0.0)


def openai_chat(server: ModelServer) -> Client:
    return OpenAIChatClient(MODEL, api_key="none", base_url=server.openai_url, max_tokens_field="max_tokens")


def openai_responses(server: ModelServer) -> Client:
    return OpenAIResponsesClient(MODEL, api_key="none", base_url=server.openai_url)


def anthropic_chat(server: ModelServer) -> Client:
    return AnthropicChatClient(MODEL, api_key="none", base_url=server.anthropic_url)


ON_EVERY_WIRE = pytest.mark.parametrize("make", [openai_chat, openai_responses, anthropic_chat])
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@pytest.fixture(scope="session")
def server() -> Iterator[ModelServer]:
    with model_server() as running:
        yield running


def run(client: Client, use: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    async def used() -> T:
        try:
            return await use(client)
        finally:
            await client.aclose()

    return asyncio.run(used())


def ask(client: Client, *messages: Message, stream: bool = False, options: ChatOptions = SHORT) -> ChatResponse:
    async def asked(client: Client) -> ChatResponse:
        async with await client.send(ChatRequest(messages, options, stream=stream)) as answer:
            return await answer.response()

    return run(client, asked)


@ON_EVERY_WIRE
@BOTH_WAYS
def test_the_model_answers_and_says_why_it_stopped(server: ModelServer, make: Maker, stream: bool) -> None:
    answer = ask(make(server), Message.user("Write a long story about a ship."), stream=stream)
    assert len(answer.text.split()) > 3
    # This server calls a Responses answer completed even where the limit has cut it off.
    assert answer.finish_reason == ("stop" if make is openai_responses else "length")
    assert answer.usage.output_tokens == 12
    assert [message.role for message in answer.messages] == ["assistant"]


@ON_EVERY_WIRE
def test_streamed_and_whole_are_the_same_answer(server: ModelServer, make: Maker) -> None:
    question = (Message.system("You are brief."), Message.user("Name a colour."))
    whole = ask(make(server), *question)
    streamed = ask(make(server), *question, stream=True)
    assert (streamed.text, kinds(streamed)) == (whole.text, kinds(whole))
    assert streamed.finish_reason == whole.finish_reason
    assert uncached(streamed.usage) == uncached(whole.usage)


@ON_EVERY_WIRE
def test_the_pieces_of_a_stream_add_up_to_its_message(server: ModelServer, make: Maker) -> None:
    async def pieces(client: Client) -> tuple[list[str], str]:
        async with client.get_streaming_response("Say hello.", options=SHORT) as stream:
            seen = [update.text async for update in stream if update.text]
            return seen, (await stream.response()).text

    seen, text = run(make(server), pieces)
    assert "".join(seen) == text
    assert len(seen) > 1


TALK = (Message.user("What is the capital of France?"), Message.assistant("Paris."), Message.user("And of Italy?"))


@pytest.mark.parametrize("messages", [TALK[:1], TALK], ids=["one question", "a conversation"])
def test_all_wires_bring_the_same_words_for_the_same_conversation(
    server: ModelServer, messages: tuple[Message, ...]
) -> None:
    makers: tuple[Maker, ...] = (openai_chat, openai_responses, anthropic_chat)
    answers = [ask(make(server), Message.system("You are a helpful assistant."), *messages) for make in makers]
    assert len({(answer.text, uncached(answer.usage)) for answer in answers}) == 1, answers


@ON_EVERY_WIRE
def test_a_prompt_that_was_read_before_is_counted_whole_and_as_cached(server: ModelServer, make: Maker) -> None:
    question = Message.user("Tell me, " + "again and " * 40 + make.__name__)
    first = ask(make(server), question).usage
    second = ask(make(server), question).usage
    assert second.input_tokens == first.input_tokens
    assert 0.9 * second.input_tokens < second.cache_read_tokens < second.input_tokens
    assert first.cache_read_tokens < second.cache_read_tokens


@ON_EVERY_WIRE
@BOTH_WAYS
def test_an_overflow_is_raised_by_send_with_both_sizes(server: ModelServer, make: Maker, stream: bool) -> None:
    with pytest.raises(ContextOverflowError) as caught:
        ask(make(server), Message.user("word " * 3000), stream=stream)
    assert caught.value.limit == WINDOW_TOKENS
    assert caught.value.actual is not None
    assert 3000 < caught.value.actual < 3100
    assert caught.value.status == 400


@ON_EVERY_WIRE
def test_the_server_tells_its_window_and_a_refusal_tells_the_same(server: ModelServer, make: Maker) -> None:
    async def asked(client: Client) -> tuple[int | None, int | None, int | None]:
        told, shared = await client.window_tokens(), await Windows().of(client, "any name will do")
        try:
            await client.get_response("word " * 3000, options=SHORT)
        except ContextOverflowError as error:
            return told, shared, error.limit
        raise AssertionError("it was not refused")

    assert run(make(server), asked) == (WINDOW_TOKENS, WINDOW_TOKENS, WINDOW_TOKENS)


CONVERSATIONS: list[tuple[Message, ...]] = [
    (Message.user("Hi"),),
    (Message.system("You are brief."), Message.user("Grüße, 你好, 👋🏽!")),
    (Message.user("one"), Message.assistant("two"), Message.user("three " * 200)),
    (
        Message.user("Weather?"),
        Message.assistant(ToolCall("a", "weather", '{"city": "Dubai"}')),
        Message.tool("a", "41C, clear"),
        Message.user("And tomorrow?"),
    ),
]
WEATHER = ToolDeclaration(
    "weather", "The weather of a city", '{"type":"object","properties":{"city":{"type":"string"}}}'
)


@pytest.mark.parametrize("messages", CONVERSATIONS, ids=["short", "unicode", "long", "with calls"])
@pytest.mark.parametrize("tools", [(), (WEATHER,)], ids=["no tools", "tools"])
@pytest.mark.parametrize("make", [openai_responses, anthropic_chat])
def test_the_reported_input_is_what_the_count_endpoint_says(
    server: ModelServer, make: Maker, messages: tuple[Message, ...], tools: tuple[ToolDeclaration, ...]
) -> None:
    request = ChatRequest(messages, ChatOptions(max_tokens=1, temperature=0.0, tools=tools), stream=True)
    reported = ask(make(server), *messages, options=request.options).usage
    assert reported.input_tokens == run(make(server), lambda client: client.count_tokens(request))


def test_an_answer_takes_the_shape_of_a_schema(server: ModelServer) -> None:
    schema = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'
    options = SHORT.but(max_tokens=60, output_schema=OutputSchema("number", schema))
    answer = ask(openai_chat(server), Message.user("Choose a number."), options=options)
    found = json.loads(answer.text)
    assert list(found) == ["n"]
    assert isinstance(found["n"], int)


@ON_EVERY_WIRE
def test_stopping_early_leaves_the_server_free_for_the_next(server: ModelServer, make: Maker) -> None:
    async def stopped(client: Client) -> str:
        long = ChatOptions(max_tokens=1500, temperature=0.0)
        async with client.get_streaming_response("Write a very long story.", options=long) as stream:
            async for update in stream:
                if update.text:
                    break
        async with asyncio.timeout(300):
            return (await client.get_response("Hi", options=SHORT)).text

    assert run(make(server), stopped) != ""


def kinds(answer: ChatResponse) -> list[tuple[str, list[type]]]:
    return [(message.role, [type(part) for part in message.parts]) for message in answer.messages]


def uncached(usage: Usage) -> tuple[int, int]:
    return usage.input_tokens, usage.output_tokens
