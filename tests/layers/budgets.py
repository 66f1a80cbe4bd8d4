"""A provider whose rounds cost what a test says, and a tool loop with a budget around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from chatstack import (
    Budget,
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    FunctionInvoker,
    Message,
    Text,
    ToolCall,
    Usage,
)
from chatstack.values.responses import FinishReason


class Round:
    """One answer: what it says, what it has used, and how it ends."""

    def __init__(
        self,
        answer: Message | str,
        used: int | Usage | None = 10,
        *,
        finish: FinishReason | None = None,
        model: str = "",
        error: Exception | None = None,
        seconds: float = 0,
    ) -> None:
        self.message = Message.assistant(answer) if isinstance(answer, str) else answer
        self.usage = Usage(used) if isinstance(used, int) else used
        self.finish: FinishReason = finish or ("tool_calls" if self.message.calls else "stop")
        self.model = model
        self.error = error
        self.seconds = seconds


class Metered:
    """A provider whose rounds cost what the test says; the last one again and again."""

    def __init__(self, *rounds: Round) -> None:
        self.rounds = rounds
        self.requests: list[ChatRequest] = []
        self.open = 0

    async def send(self, request: ChatRequest, /) -> ChatStream:
        now = self.rounds[min(len(self.requests), len(self.rounds) - 1)]
        self.requests.append(request)
        if now.error is not None:
            raise now.error
        return await ChatStream.primed(self._play(now))

    async def _play(self, now: Round) -> AsyncGenerator[ChatUpdate, None]:
        self.open += 1
        try:
            for part in now.message.parts:
                yield ChatUpdate(text=part.text) if isinstance(part, Text) else ChatUpdate(part=part)
            await asyncio.sleep(now.seconds)
            yield ChatUpdate(message_done=now.message, usage=now.usage, finish_reason=now.finish, model=now.model)
        finally:
            self.open -= 1


def look(city: str = "") -> str:
    """Looks at the weather."""
    return "sunny"


def calls(*ids: str, name: str = "look") -> Message:
    return Message.assistant(*(ToolCall(each, name, "{}") for each in ids))


def stack_of(*rounds: Round, loop: dict[str, Any] | None = None, **budget: Any) -> tuple[Metered, ChatStack]:
    provider = Metered(*rounds)
    stack = ChatStack(provider).use(Budget, **budget).use(FunctionInvoker, tools=[look], **(loop or {}))
    return provider, stack


def pairs_are_whole(messages: Sequence[Message]) -> bool:
    called = [call.id for message in messages for call in message.calls]
    return called == [result.call_id for message in messages for result in message.results]


async def asked(stack: ChatStack, text: str = "go", *, stream: bool = False, **options: Any) -> ChatResponse:
    client = stack.build()
    if not stream:
        answered: ChatResponse = await client.get_response(text, **options)
        return answered
    coming: ChatStream = client.get_streaming_response(text, **options)
    async with coming:
        async for _ in coming:
            pass
        return await coming.response()


def ask(stack: ChatStack, text: str = "go", **options: Any) -> ChatResponse:
    return asyncio.run(asyncio.wait_for(asked(stack, text, **options), 300))


BOTH = pytest.mark.parametrize("stream", [False, True])
