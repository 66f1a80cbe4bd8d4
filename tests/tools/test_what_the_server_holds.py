"""A turn of which the server holds something: a conversation, a container, items that only it can read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import (
    ChatOptions,
    ChatResponse,
    ChatStack,
    FunctionInvoker,
)
from tests.tools.wire_script import (
    ANTHROPIC,
    WIRES,
    Item,
    PlayedServer,
    Wire,
)

BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ANSWER = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
SAID: Item = {**ANSWER, "content": [{"type": "output_text", "text": "Cold.", "annotations": []}]}
CONVERSATION = ChatOptions(extra={"conversation": "conv_1"})


def look(place: str) -> str:
    """Looks there."""
    return place


def ask(stack: ChatStack, *, stream: bool = False, options: ChatOptions | None = None) -> ChatResponse:
    async def asked() -> ChatResponse:
        async with stack.open() as client:
            if not stream:
                return await client.get_response("go", options=options)
            async with client.get_streaming_response("go", options=options) as answer:
                return await answer.response()

    return asyncio.run(asked())


def kinds(body: Item) -> list[str]:
    return [item.get("type", "message") for item in body["input"]]


# A choice of tools that only the API can say


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_the_last_round_of_a_turn_forbids_tools_whatever_was_chosen_in_extra(wire: Wire) -> None:
    server = PlayedServer(*wire.plays([wire.turn[0], wire.turn[-1]], stream=False))
    stack = ChatStack(wire.client(server)).use(FunctionInvoker, tools=[look], max_tool_calls_per_turn=1)
    chosen = {"type": "allowed_tools", "mode": "auto"}
    ask(stack, options=ChatOptions(extra={"tool_choice": chosen}))
    none: Any = {"type": "none"} if wire is ANTHROPIC else "none"
    assert [body["tool_choice"] for body in server.bodies] == [chosen, none]
