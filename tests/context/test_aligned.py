"""The request for a cache-aligned summary: what was sent, the same options, and the instruction behind them."""

from __future__ import annotations

from typing import Any

import pytest

from chatstack import CharCounter, ChatOptions, ChatRequest, Message, OutputSchema, ToolCall, ToolDeclaration
from chatstack.context.edits.context import Context
from chatstack.context.edits.summaries import OPENING, SUMMARY_PROMPT
from chatstack.context.summaries.aligned import Aligned, aligned_request
from chatstack.context.summaries.folding import Cut

COUNTER = CharCounter()
LOOK = ToolDeclaration("look")
TALK = (
    Message.user("task"),
    Message.assistant("", ToolCall("a", "look")),
    Message.tool("a", "seen"),
    Message.assistant("one"),
    Message.user("two"),
    Message.assistant("three"),
    Message.user("four"),
)
CUT = Cut(4, (1, 2, 3))


def context_of(messages: tuple[Message, ...] = TALK, **options: Any) -> Context:
    given = ChatOptions(**{"instructions": "be brief", "tools": (LOOK,), **options})
    request = ChatRequest(messages, given, "c-42")
    return Context.of(
        request,
        fixed_tokens=COUNTER.count_options(given),
        size_of=COUNTER.count_message,
        reserved_tokens=given.max_tokens or 0,
    )


def aligned(
    context: Context, cut: Cut = CUT, *, prompt: str = "Sum it up.", provider: str = "openai", sent: int = 5
) -> Aligned:
    found = aligned_request(context, cut, prompt, 100, provider=provider, sent=sent)
    assert found is not None
    return found


def test_before_an_answer_it_begins_with_the_request_that_led_to_the_last_one() -> None:
    request = aligned(context_of()).request
    assert request.messages[:-1] == TALK[:5]
    assert request.messages[-1].role == "user"
    assert (request.conversation_id, request.options.instructions, request.options.tools) == (
        "c-42",
        "be brief",
        (LOOK,),
    )


def test_after_it_was_sent_it_begins_with_the_request_itself() -> None:
    assert aligned(context_of(), sent=7).request.messages[:-1] == TALK


def test_it_holds_all_that_is_summarized() -> None:
    assert aligned(context_of(), Cut(6, (1, 2, 3, 4, 5))).request.messages[:-1] == TALK[:6]


def test_the_instruction_has_the_prompt_and_says_what_stays() -> None:
    told = aligned(context_of(), prompt="Sum {words} up.").request.messages[-1].text
    assert "Sum {words} up." in told
    assert "Its last 1 messages remain" in told
    assert "at most 50 words" in told
    assert OPENING in told
    assert "remain" not in aligned(context_of(), Cut(5, (1, 2, 3))).request.messages[-1].text
    assert SUMMARY_PROMPT in aligned(context_of(), prompt=SUMMARY_PROMPT).request.messages[-1].text


@pytest.mark.parametrize(
    ("provider", "asked", "expected"),
    [
        ("openai", None, "none"),
        ("openai", "required", "none"),
        ("", "look", "none"),
        ("anthropic", None, None),
        ("anthropic", "auto", "auto"),
        ("anthropic", "none", "none"),
    ],
)
def test_tools_are_not_allowed_unless_forbidding_them_loses_the_cache(
    provider: str, asked: str | None, expected: str | None
) -> None:
    assert aligned(context_of(tool_choice=asked), provider=provider).request.options.tool_choice == expected


def test_without_tools_there_is_no_choice_to_make() -> None:
    assert aligned(context_of(tools=())).request.options.tool_choice is None


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 100),
        ({"max_tokens": 7}, 100),
        ({"max_tokens": 5_000}, 100),
        ({"max_tokens": 5_000, "extra": {"thinking": {"budget_tokens": 2_000}}}, 5_000),
        ({"extra": {"max_completion_tokens": 9, "thinking": {}}}, 100),
        ({"extra": {"thinking": {"budget_tokens": 2_000}}}, None),
        ({"reasoning_effort": "high", "max_tokens": 300}, 300),
    ],
)
def test_the_answer_is_as_long_as_a_summary_with_room_for_thinking(options: dict[str, Any], most: int | None) -> None:
    given = aligned(context_of(stop=("x",), **options)).request.options
    assert (given.max_tokens, given.stop) == (most, ())
    assert "max_completion_tokens" not in given.extra
    assert dict(given.extra).get("thinking") == options.get("extra", {}).get("thinking")


def test_it_counts_what_it_takes_of_a_window() -> None:
    context = context_of(max_tokens=50)
    request, tokens = aligned(context, sent=7)
    needed = COUNTER.count_options(context.request.options) + sum(map(COUNTER.count_message, request.messages)) + 100
    assert tokens == needed


@pytest.mark.parametrize(
    ("provider", "options"),
    [
        ("openai", {"output_schema": OutputSchema("answer", "{}")}),
        ("anthropic", {"tool_choice": "required"}),
        ("anthropic", {"tool_choice": "look"}),
    ],
)
def test_where_the_answer_has_to_be_something_else_there_is_none(provider: str, options: dict[str, Any]) -> None:
    context = context_of(**options)
    assert aligned_request(context, CUT, "Sum it up.", 100, provider=provider, sent=5) is None


def test_where_a_result_came_after_the_answer_there_is_none() -> None:
    late = (*TALK[:2], Message.user("well?"), TALK[3], TALK[2], TALK[4])
    assert aligned_request(context_of(late), Cut(1, ()), "Sum it up.", 100, provider="openai", sent=3) is None
