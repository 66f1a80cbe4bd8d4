"""Carrying out: edits in force are made of what comes, whoever keeps its objects or does not."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from chatstack import ChatStack, ContextMemory, ContextWindowGuard, Message, ToolCall, ToolResultClearer
from chatstack.testing import ScriptedClient
from tests.histories import decoded_again


def stack(model: ScriptedClient) -> ChatStack:
    """A clearer, and a guard that drops what it left."""
    return (
        ChatStack(model, memory=ContextMemory(clock=lambda: 0.0))
        .use(ToolResultClearer, trigger={"tokens": 500}, keep={"messages": 1})
        .use(ContextWindowGuard, max_context_tokens=900, prune_on_overflow=True)
    )


def rounds(first: int, count: int, words: int = 30) -> list[Message]:
    return [
        message
        for number in range(first, first + count)
        for message in (
            Message.assistant("I look.", ToolCall(f"c{number}", "look", '{"at": 1}')),
            Message.tool(f"c{number}", f"seen {number} " + "grey " * words, name="look"),
        )
    ]


def test_of_fresh_objects_those_that_came_are_sent() -> None:
    """Those of an earlier call would be held for nothing, and nobody could find them in what came."""
    model = ScriptedClient(["fine"])
    client = stack(model).build()
    history = [Message.user("task"), *rounds(0, 12)]

    async def check() -> None:
        for form in (list, list, decoded_again, list, list, decoded_again, decoded_again):
            history.extend(rounds(len(history), 1, 1))
            came = form(history)
            await client.get_response(came)
            assert {id(each.original) for each in model.requests[-1].messages} <= {id(each) for each in came}

    asyncio.run(check())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_whoever_keeps_objects_or_not_the_same_is_sent(seed: int) -> None:
    """Among them callers that go back, and such that change between the two."""
    random = Random(seed)
    models = [ScriptedClient(["fine"]) for _ in range(3)]
    clients = [stack(model).build() for model in models]
    history, edited = [Message.user("task")], list[bool]()

    async def check() -> None:
        for number in range(0, 120, 3):
            if random.random() < 0.15:
                del history[max(1, len(history) - random.randrange(1, 8)) :]
                history.append(Message.user(f"otherwise {number}"))
            history.extend(rounds(number, random.randrange(1, 4), random.randrange(1, 60)))
            changes = decoded_again(history) if random.random() < 0.5 else list(history)
            for client, came in zip(clients, (list(history), decoded_again(history), changes), strict=True):
                await client.get_response(came)
            assert models[0].requests[-1].messages == models[1].requests[-1].messages == models[2].requests[-1].messages
            edited.append(any(each.original is not each for each in models[0].requests[-1].messages))

    asyncio.run(check())
    assert sum(edited) > 5
