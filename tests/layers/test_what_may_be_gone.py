"""What was decided for one request, and does not hold for the next; and what the model has not seen yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from chatstack import (
    CharCounter,
    ChatStack,
    ClearThenDrop,
    ContextWindowGuard,
    Message,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    ToolResultClearer,
    WiringError,
)
from chatstack.testing import ScriptedClient, TelemetryCapture

QUESTION = Message.user("the question: rename foo to bar")


def work(rounds: int) -> list[Message]:
    messages: list[Message] = []
    for number in range(rounds):
        call = ToolCall(f"c{number}", "look", "{}")
        messages += [Message.assistant("looking", call), Message.tool(call.id, f"{number} " * 200, name="look")]
    return messages


def stack_of(kind: str, provider: ScriptedClient) -> ChatStack:
    if kind == "guard":
        return ChatStack(provider).use(
            ContextWindowGuard, max_context_tokens=1_500, prune_on_overflow=True, prune_to=0.3
        )
    return ChatStack(provider).use(ClearThenDrop, max_tokens=1_500, target=0.2)


@pytest.mark.parametrize("kind", ["guard", "condensing"])
def test_the_question_comes_back_when_a_reminder_behind_it_goes(kind: str) -> None:
    """Dropped while it was not the latest user message, it must not stay dropped when it is."""
    provider = ScriptedClient(["ok"])
    client = stack_of(kind, provider).build()
    history = [Message.user("hello"), Message.assistant("hi"), QUESTION, *work(12)]
    asyncio.run(client.get_response([*history, Message.user("reminder: be quick")]))
    assert QUESTION not in provider.requests[-1].messages
    for end in (0, 2):
        asyncio.run(client.get_response([*history, *work(end // 2)]))
        assert QUESTION in provider.requests[-1].messages


@pytest.mark.parametrize("kind", ["guard", "condensing"])
@pytest.mark.parametrize("conversation_id", [None, "c-42"])
def test_the_question_comes_back_when_the_work_goes_on_without_the_reminder(
    kind: str, conversation_id: str | None
) -> None:
    """The answer is bound to what was sent with the reminder, and to a history that has none."""
    provider = ScriptedClient([Message.assistant(ToolCall("new", "look", "{}"))])
    client = stack_of(kind, provider).build()
    history = [Message.user("hello"), Message.assistant("hi"), QUESTION, *work(12)]
    reminded = [*history, Message.user("reminder: be quick")]
    answer = asyncio.run(client.get_response(reminded, conversation_id=conversation_id))
    assert QUESTION not in provider.requests[-1].messages
    history += [*answer.messages, Message.tool("new", "found", name="look")]
    asyncio.run(client.get_response(history, conversation_id=conversation_id))
    assert QUESTION in provider.requests[-1].messages


def test_a_history_that_comes_again_without_its_reasoning_is_edited_anew() -> None:
    """It is the same history, but the edit of a message tells the parts that stay by their places."""
    provider, keep = ScriptedClient(["ok"]), {"messages": 2}
    stack = ChatStack(provider).use(ToolResultClearer, trigger={"messages": 12}, keep=keep, clear_tool_inputs=True)
    client = stack.build()
    calls = [ToolCall(f"c{number}", "look", '{"at": "here"}') for number in range(8)]
    asked, results = Message.user("go"), [Message.tool(call.id, "found " * 50, name="look") for call in calls]

    def history(*reasoning: Reasoning) -> list[Message]:
        said = [Message("assistant", (*reasoning, call)) for call in calls]
        return [asked, *(each for pair in zip(said, results, strict=True) for each in pair)]

    answer = asyncio.run(client.get_response(history(Reasoning("hm"))))
    asyncio.run(client.get_response([*history(), *answer.messages, Message.user("and now?")]))
    first, then = ([each.calls for each in request.messages if each.calls] for request in provider.requests)
    assert first == then
    assert {call.arguments for (call,) in then} == {"{}", calls[0].arguments}


def new_results(shape: str) -> list[Message]:
    calls = [ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}")]
    results = tuple(ToolResult(call.id, "look", "x" * 40_000) for call in calls)
    asked = Message.assistant(*calls)
    if shape == "one message each":
        return [asked, *(Message("tool", (result,)) for result in results)]
    return [asked, Message("tool" if shape == "one tool message" else "user", results)]


@pytest.mark.parametrize("shape", ["one message each", "one tool message", "one user message"])
def test_what_the_model_has_not_seen_is_shortened_whatever_its_shape(shape: str) -> None:
    provider, capture = ScriptedClient(["ok"]), TelemetryCapture()
    client = ChatStack(provider).use(ClearThenDrop, max_tokens=10_000).build(capture.resolve)
    asyncio.run(client.get_response([QUESTION, *new_results(shape)]))
    results = [result for message in provider.requests[-1].messages for result in message.results]
    assert [result.call_id for result in results] == ["a", "b"]
    assert all("bytes left out]" in result.text for result in results)
    assert all(len(result.text) > 1_000 for result in results)


@pytest.mark.parametrize("layer", ["clearer", "condensing"])
def test_half_a_character_that_a_provider_gave_does_no_harm(layer: str) -> None:
    odd = Message("assistant", (ToolCall("a", "look\ud800"), ToolResult("a", "look", "half \ud800" * 500)))
    stack = ChatStack(ScriptedClient(["ok"]))
    if layer == "clearer":
        stack = stack.use(
            ToolResultClearer, trigger={"tokens": 10}, keep={"messages": 0}, placeholder="[{tool} {handle}]"
        )
    else:
        stack = stack.use(ClearThenDrop, max_tokens=900)
    client = stack.build()
    for end in range(1, 4):
        history: Sequence[Message] = [QUESTION, odd, *work(end)]
        assert asyncio.run(client.get_response(history)).text == "ok"


@dataclass
class Unhashable(CharCounter):
    chars_per_token: float = 4


@pytest.mark.parametrize(
    ("source", "options", "layer"),
    [
        (ContextWindowGuard, {"max_context_tokens": 900}, "ContextWindowGuard"),
        (ToolResultClearer, {}, "ToolResultClearer"),
        (ClearThenDrop, {"max_tokens": 900}, "ClearThenDrop"),
    ],
)
def test_a_counter_that_cannot_be_used_is_refused_at_build(
    source: type, options: dict[str, object], layer: str
) -> None:
    stack = ChatStack(ScriptedClient(["ok"]))
    with pytest.raises(WiringError, match=f"{layer}: counter Unhashable cannot be hashed"):
        stack.use(source, counter=Unhashable(), **options).build()
    with pytest.raises(WiringError, match="counter"):
        stack.use(source, counter=5, **options).build()


def test_saving_less_than_a_token_is_no_edit() -> None:
    provider, capture = ScriptedClient(["ok"]), TelemetryCapture()
    stack = ChatStack(provider).use(
        ToolResultClearer, trigger={"tokens": 1}, keep={"messages": 0}, placeholder="[gone]"
    )
    call = ToolCall("a", "look")
    asyncio.run(
        stack.build(capture.resolve).get_response(
            [
                QUESTION,
                Message.assistant(call),
                Message("tool", (ToolResult("a", "look", "[okay]"),)),
                Message("assistant", (Text("so"),)),
                QUESTION,
            ]
        )
    )
    assert "plan_rejected" not in capture.warnings
