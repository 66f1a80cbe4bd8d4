"""Results that come after the model has gone on without them: it has not seen them, wherever they are put."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import (
    ChatRequest,
    ChatStack,
    ClearThenDrop,
    ContextWindowGuard,
    Message,
    ToolCall,
    ToolResultClearer,
    ToolResultShaper,
    Truncate,
)
from chatstack.testing import ScriptedClient


def rounds(number: int) -> list[Message]:
    found: list[Message] = []
    for at in range(number):
        call = Message.assistant(ToolCall(f"c{at}", "look", f'{{"at":{at}}}'))
        result = Message.tool(f"c{at}", f"{at} " + "word " * 4_000)
        found += [call, result, Message.assistant(f"answer {at}"), Message.user(f"and {at}?")]
    return found


BEFORE = [
    Message.user("task"),
    Message.assistant(ToolCall("late", "wait")),
    Message.user("meanwhile?"),
    Message.assistant("fine"),
    Message.user("more"),
    *rounds(6),
]
LAYERS: list[tuple[Any, dict[str, Any]]] = [
    (ToolResultClearer, {"trigger": {"tokens": 15_000}, "keep": {"messages": 1}}),
    (ClearThenDrop, {"max_tokens": 25_000}),
    (ContextWindowGuard, {"max_context_tokens": 25_000, "prune_on_overflow": True}),
    (Truncate, {"max_tokens": 25_000}),
]


def sent(stack: ChatStack, *histories: list[Message]) -> ChatRequest:
    """Return the last request."""
    model = stack.provider
    assert isinstance(model, ScriptedClient)

    async def ask() -> None:
        client = stack.build()
        for history in histories:
            await client.get_response(history)

    asyncio.run(ask())
    return model.requests[-1]


def late_in(request: ChatRequest) -> list[str]:
    return [result.text for message in request.messages for result in message.results if result.call_id == "late"]


@pytest.mark.parametrize(("layer", "options"), LAYERS)
@pytest.mark.parametrize("is_shaped", [False, True])
def test_a_late_result_stays_until_the_model_has_answered_it(layer: Any, options: Any, is_shaped: bool) -> None:
    stack = ChatStack(ScriptedClient(["ok"]))
    stack = stack.use(ToolResultShaper, max_bytes=19_000) if is_shaped else stack
    stack = stack.use(layer, **options)
    result = Message.tool("late", "found it " + "word " * 4_000)
    came = [*BEFORE, Message.assistant("ok"), result, Message.user("now?")]
    (text,) = late_in(sent(stack, BEFORE, came))
    assert text.startswith("found it word")
    assert len(text) > 15_000

    seen = [*came, Message.assistant("ok"), Message.user("and now?"), *rounds(4)]
    assert [text[:8] for text in late_in(sent(stack, seen))] != ["found it"]


@pytest.mark.parametrize(("layer", "options"), LAYERS[1:])
def test_a_late_result_that_is_too_large_loses_its_middle(layer: Any, options: Any) -> None:
    result = Message.tool("late", "found it " + "word " * 60_000)
    came = [*BEFORE, Message.assistant("ok"), result, Message.user("now?")]
    (text,) = late_in(sent(ChatStack(ScriptedClient(["ok"])).use(layer, **options), BEFORE, came))
    assert text.startswith("found it word")
    assert "left out" in text
