"""A model with a fallback around it, and what is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from chatstack import (
    BuiltClient,
    ChatClient,
    ChatRequest,
    ChatResponse,
    ChatStack,
    Fallback,
    Message,
)
from chatstack.client.protocol import ProviderInfo
from chatstack.testing import Answer, ScriptedClient
from chatstack.tokens.counter import char_counter

COUNTER = char_counter(4)


def model(*answers: Answer, name: str = "two", window: int | None = 100_000, **options: Any) -> ScriptedClient:
    info = ProviderInfo(name=name, model=f"model-{name}", window_tokens=window)
    return ScriptedClient(answers or (f"I am {name}",), info=info, **options)


def stack_of(first: ChatClient, *others: ChatClient) -> ChatStack:
    return ChatStack(first).use(Fallback, clients=list(others))


async def asked(
    client: BuiltClient, messages: str | Sequence[Message] = "hello", *, stream: bool = False, **options: Any
) -> ChatResponse:
    if not stream:
        answer: ChatResponse = await client.get_response(messages, **options)
        return answer
    async with client.get_streaming_response(messages, **options) as streamed:
        text = "".join([update.text async for update in streamed])
        answer = await streamed.response()
    assert text == "".join(message.text for message in answer.messages if message.role == "assistant")
    return answer


def ask(client: BuiltClient, messages: str | Sequence[Message] = "hello", **options: Any) -> ChatResponse:
    return asyncio.run(asyncio.wait_for(asked(client, messages, **options), 300))


def size(request: ChatRequest) -> int:
    return COUNTER.count_options(request.options) + sum(map(COUNTER.count_message, request.messages))


def history(turns: int, words: int = 100) -> list[Message]:
    told = [
        message
        for turn in range(turns)
        for message in (Message.user(f"{turn}: " + "word " * words), Message.assistant("answer " * words))
    ]
    return [Message.system("be brief"), *told, Message.user("and now?")]


BOTH = pytest.mark.parametrize("stream", [False, True])
