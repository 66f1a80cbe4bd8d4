"""Thinking is asked for where the API accepts it: not in the middle of a turn that began without."""

from __future__ import annotations

from typing import Any

import pytest

from chatstack import ChatOptions, ChatRequest, Message, NativeClearing, ProviderItem, Reasoning, ToolCall
from chatstack.providers.anthropic.events import AnswerFold, events_of
from chatstack.providers.anthropic.wire import messages_to_wire, request_to_wire

ENABLED = {"type": "enabled", "budget_tokens": 2_000}
THOUGHT = Reasoning("hm", '{"type":"thinking","thinking":"hm","signature":"s"}', "anthropic")
GO, RESULT = Message.user("go"), Message.tool("c", "found")
CALL, THOUGHTFUL = Message.assistant(ToolCall("c", "look")), Message.assistant(THOUGHT, ToolCall("c", "look"))
COMPACTION = ProviderItem("anthropic", '{"type":"compaction","content":"so far"}')


def body(*messages: Message, thinking: object = ENABLED, **extra: Any) -> dict[str, Any]:
    return request_to_wire(ChatRequest(messages, ChatOptions(extra={"thinking": thinking, **extra})))


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param((CALL, RESULT), id="another model has called"),
        pytest.param((Message.assistant("I look.", ToolCall("c", "look")), RESULT), id="and said so"),
        pytest.param((CALL, RESULT, CALL, RESULT), id="twice"),
        pytest.param((CALL, RESULT, Message.user("faster")), id="and the user has spoken beside the result"),
        pytest.param((CALL, RESULT, Message.system("be brief"), CALL, RESULT), id="around a system message"),
        pytest.param((CALL, RESULT, Message.assistant("It")), id="and the answer is to be gone on with"),
    ],
)
def test_a_turn_that_began_without_thinking_ends_without(turn: tuple[Message, ...]) -> None:
    wire = body(GO, *turn)
    assert "thinking" not in wire
    assert wire["messages"] == messages_to_wire((GO, *turn))


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param((GO,), id="nothing is answered yet"),
        pytest.param((GO, THOUGHTFUL, RESULT), id="it began with thinking"),
        pytest.param((GO, THOUGHTFUL, RESULT, CALL, RESULT), id="and goes on without, as models do"),
        pytest.param((GO, Message.assistant(THOUGHT), CALL, RESULT), id="in a message of its own"),
        pytest.param((GO, CALL, RESULT, Message.assistant("done"), Message.user("more")), id="the turn is over"),
        pytest.param(
            (GO, CALL, RESULT, Message.assistant("done"), GO, THOUGHTFUL, RESULT), id="and the next one thinks"
        ),
    ],
)
def test_any_other_request_thinks(messages: tuple[Message, ...]) -> None:
    wire = body(*messages)
    assert (wire["thinking"], wire["messages"]) == (ENABLED, messages_to_wire(messages))


@pytest.mark.parametrize("thinking", [{"type": "adaptive"}, {"type": "disabled"}, {"type": "later"}, "on", None])
def test_no_other_thinking_is_touched(thinking: object) -> None:
    assert body(GO, CALL, RESULT, thinking=thinking)["thinking"] == thinking


def test_a_turn_without_thinking_has_none_later_either() -> None:
    """The API refuses a turn that has some while it is off."""
    before = (GO, THOUGHTFUL, RESULT, Message.assistant("done"), GO, CALL, RESULT)
    wire = body(*before, Message.assistant(THOUGHT), THOUGHTFUL, RESULT)
    plain = messages_to_wire((*before, CALL, RESULT))
    assert ("thinking" in wire, wire["messages"]) == (False, plain)


def test_the_edit_that_needs_thinking_goes_with_it() -> None:
    thoughts, results = {"type": "clear_thinking_20251015"}, {"type": "clear_tool_uses_20250919"}
    assert "context_management" not in body(GO, CALL, RESULT, context_management={"edits": [thoughts]})
    both = {"edits": [thoughts, results]}
    assert body(GO, CALL, RESULT, context_management=both)["context_management"] == {"edits": [results]}
    assert body(GO, THOUGHTFUL, RESULT, context_management=both)["context_management"] == both
    options = ChatOptions(
        extra={"thinking": ENABLED, "context_management": {"edits": [thoughts]}},
        native_edits=(NativeClearing(trigger_tokens=9),),
    )
    wire: Any = request_to_wire(ChatRequest((GO, CALL, RESULT), options))
    (edit,) = wire["context_management"]["edits"]
    assert edit["type"] == results["type"]


def test_all_requests_of_such_a_turn_begin_alike() -> None:
    first = body(GO, CALL, RESULT)
    second = body(GO, CALL, RESULT, CALL, RESULT)
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert first.keys() == second.keys()


def test_a_turn_that_begins_with_a_block_of_anthropics_stays_as_it_is() -> None:
    turn = Message.assistant(COMPACTION, ToolCall("c", "look"))
    assert body(GO, turn, RESULT)["thinking"] == ENABLED


def test_messages_of_the_callers_own_are_not_looked_into() -> None:
    assert body(GO, messages=[{"role": "assistant", "content": "hi"}])["thinking"] == ENABLED


def answered(asked: str, model: str = "") -> Message:
    """An answer with thinking and a call, as it comes from a server that is asked for that model."""
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "tool_use", "id": "c", "name": "look", "input": {}},
    ]
    fold = AnswerFold(asked=asked)
    for event in events_of({"model": model or asked, "content": content, "stop_reason": "tool_use", "usage": {}}):
        assert all(update.message_done is None for update in fold.updates(event))
    (message,) = [update.message_done for update in fold.ended() if update.message_done is not None]
    return message


@pytest.mark.parametrize("model", ["glm-5.2", "kimi-k2-thinking", "MiniMax-M2"])
def test_a_claude_gets_no_thinking_of_another_makers_model(model: str) -> None:
    """It is not signed by Anthropic, which would refuse every later request."""
    request = ChatRequest((GO, answered(model), RESULT), ChatOptions(extra={"thinking": ENABLED}))
    for asked in ("claude-sonnet-4-5", "us.anthropic.Claude-Sonnet-4-5-v1:0"):
        wire: Any = request_to_wire(request, model=asked)
        assert [block["type"] for block in wire["messages"][1]["content"]] == ["tool_use"]
        assert "thinking" not in wire  # the turn began without any that could be sent
    own: Any = request_to_wire(request, model=model)
    assert [block["type"] for block in own["messages"][1]["content"]] == ["thinking", "tool_use"]
    named = request.but(options=request.options.but(model="claude-opus-4-5"))
    assert request_to_wire(named, model=model)["messages"] == wire["messages"]


def test_a_claude_gets_its_own_thinking_from_whatever_server() -> None:
    named = [
        ("claude-sonnet-4-5", ""),
        ("anthropic/claude-opus-4.5", ""),
        ("claude", "house-model"),
        ("house", "claude"),
    ]
    for asked, model in named:
        message = answered(asked, model)
        assert message.extra_json == ""
        wire: Any = request_to_wire(ChatRequest((GO, message, RESULT)), model="claude-haiku-4-5")
        assert wire["messages"][1]["content"][0]["type"] == "thinking"


def test_an_answer_that_did_not_think_names_no_model() -> None:
    fold = AnswerFold(asked="glm-5.2")
    answer = {"model": "glm-5.2", "content": [{"type": "text", "text": "hi"}], "stop_reason": "end_turn"}
    for event in events_of(answer):
        list(fold.updates(event))
    assert [each.message_done for each in fold.ended() if each.message_done] == [Message.assistant("hi")]
