"""Conversations whose requests differ in more than their messages: facts in the instructions, the tools of a step, the
length of an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from chatstack import (
    ChatOptions,
    ChatStack,
    ClearThenDrop,
    Message,
    Summarizer,
    ToolCall,
    ToolDeclaration,
    ToolResultClearer,
)
from chatstack.testing import ScriptedClient, TelemetryCapture

TOOLS = tuple(ToolDeclaration(f"tool_{number}", "does something " * 20, "{}") for number in range(3))

RECIPES: dict[str, Callable[[ChatStack], ChatStack]] = {
    "clearer": lambda stack: stack.use(ToolResultClearer, trigger={"tokens": 2_000}, keep={"messages": 2}),
    "condensing": lambda stack: stack.use(ClearThenDrop, max_tokens=2_400),
    "summarizer": lambda stack: stack.use(
        Summarizer, max_tokens=2_000, keep_recent_turns=1, summary_client=ScriptedClient(["In short: it went on."])
    ),
}
OPTIONS: dict[str, Callable[[int], ChatOptions]] = {
    "instructions": lambda number: ChatOptions(instructions="The user likes trains. " * (1 + number * 7 % 10)),
    "tools": lambda number: ChatOptions(tools=TOOLS[: number % 3]),
    "max_tokens": lambda number: ChatOptions(max_tokens=300 if number % 2 else 50),
}


@pytest.mark.parametrize("changing", OPTIONS)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("keeps", ["the answer", "words of its own"])
def test_what_is_sent_begins_as_before_unless_an_edit_is_told(recipe: str, changing: str, keeps: str) -> None:
    """And an edit is told once, not again for each set of options."""
    model, capture = ScriptedClient(), TelemetryCapture()
    client = RECIPES[recipe](ChatStack(model)).build(capture.resolve)
    broke, told = list[int](), list[int]()

    async def talk() -> None:
        history, sent = [Message.user("The task. " * 10)], tuple[Message, ...]()
        for number in range(60):
            call, spans = ToolCall(f"c{number}", "read", "{}"), len(capture.spans)
            model.answers = [f"Step {number} is done." if number % 4 == 3 else Message.assistant(call)]
            answer = await client.get_response(history, conversation_id="c", options=OPTIONS[changing](number))
            edits = [span for span in capture.spans[spans:] if span.name.startswith("compact_context")]
            told.extend(number for span in edits if span.attributes["chatstack.severity"] == "INFO")
            before, sent = sent, model.requests[-1].messages
            if sent[: len(before)] != before:
                broke.append(number)
            kept = answer.messages if keeps == "the answer" else [Message.assistant(f"I did step {number}.", call)]
            history += kept
            history += [Message.tool(each.id, f"{number} words " * 40, name="read") for each in kept[0].calls]
            if number % 4 == 3:
                history.append(Message.user(f"Go on from step {number}. " * 5))

    asyncio.run(talk())
    assert told
    assert broke == told
