"""Usage adds up, updates know whether the model has begun, a response knows its text."""

from __future__ import annotations

import pytest

from chatstack import CallDelta, ChatResponse, ChatUpdate, Message, ProviderItem, Reasoning, ToolCall, ToolResult, Usage


def test_usage_adds_up_field_by_field() -> None:
    assert Usage(1, 2, 3, 4, 5) + Usage(10, 20, 30, 40, 50) == Usage(11, 22, 33, 44, 55)
    assert Usage() + Usage(1, 2) == Usage(1, 2)


def test_total_tokens_is_input_and_output_alone() -> None:
    assert Usage(100, 20, cache_read_tokens=80, cache_write_tokens=10, reasoning_tokens=15).total_tokens == 120


@pytest.mark.parametrize(
    "update",
    [
        ChatUpdate(text="a"),
        ChatUpdate(reasoning="hm"),
        ChatUpdate(part=ToolCall("c", "f")),
        ChatUpdate(part=ProviderItem("p", "{}")),
        ChatUpdate(part=Reasoning("hm")),
        ChatUpdate(call_delta=CallDelta(0, name="f")),
    ],
)
def test_text_reasoning_and_calls_are_content(update: ChatUpdate) -> None:
    assert update.has_content


@pytest.mark.parametrize(
    "update",
    [
        ChatUpdate(),
        ChatUpdate(usage=Usage(1, 1)),
        ChatUpdate(part=ToolResult("c", "f", "ran here")),
        ChatUpdate(message_done=Message.assistant("a")),
        ChatUpdate(finish_reason="stop", response_id="r"),
    ],
)
def test_results_usage_and_endings_are_not_content(update: ChatUpdate) -> None:
    assert not update.has_content


def test_the_text_of_a_response_is_that_of_its_last_assistant_message() -> None:
    response = ChatResponse(
        messages=(
            Message.assistant("let me look", ToolCall("c", "f")),
            Message.tool("c", "result"),
            Message.assistant("it is 42"),
            Message.tool("d", "late"),
        )
    )
    assert response.text == "it is 42"


def test_a_response_without_an_assistant_message_has_no_text() -> None:
    assert ChatResponse(messages=()).text == ""
    assert ChatResponse(messages=(Message.tool("c", "x"),)).text == ""


def test_the_reprs_leave_the_sdks_own_object_out() -> None:
    class Secret:
        def __repr__(self) -> str:
            raise AssertionError("raw must not be shown")

    update = ChatUpdate(text="a", finish_reason="stop", raw=Secret())
    assert repr(update) == "ChatUpdate(text='a', finish_reason='stop')"
    response = ChatResponse(messages=(), id="r", model="m", raw=Secret())
    assert repr(response).startswith("ChatResponse(messages=(), usage=Usage(")
    assert "raw" not in repr(response)
