"""Limits of a context in tokens and items, and what counts as an item."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import (
    CharCounter,
    ChatOptions,
    ChatRequest,
    Context,
    Image,
    Message,
    ProviderItem,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
)
from chatstack.context.edits.limits import Limits
from chatstack.context.edits.units import items_in
from tests.context.strictness import context_of
from tests.histories import PROPERTY, histories

TALK = [Message.user("x" * 384), Message.assistant(ToolCall("1", "look")), Message.tool("1", "sunny")]
TOKENS = context_of(TALK).tokens


# Items


@pytest.mark.parametrize(
    ("message", "items"),
    [
        (Message.user("hello"), 1),
        (Message.system("be brief"), 1),
        (Message.user("see", Image(url="https://example.org/a.png"), "and"), 1),
        (Message.user(""), 1),
        (Message.assistant(), 1),
        (Message.assistant(Reasoning("hm")), 1),
        (Message.assistant(Reasoning("hm"), "hello"), 1),
        (Message.assistant(ProviderItem("openai", "{}")), 1),
        (Message.assistant(ToolCall("1", "look")), 1),
        (Message.assistant(ToolCall("1", "look"), ToolCall("2", "look"), ToolCall("3", "look")), 3),
        (Message.assistant("let me see", ToolCall("1", "look"), ToolCall("2", "look")), 3),
        (Message.assistant("a", ToolCall("1", "look"), "b"), 2),
        (Message.assistant(Reasoning("hm"), ToolCall("1", "look")), 1),
        (Message.tool("1", "sunny"), 1),
        (Message("tool", (ToolResult("1"), ToolResult("2"))), 2),
        (Message("user", (ToolResult("1"), Text("and?"))), 2),
    ],
    ids=str,
)
def test_a_message_is_one_item_for_each_call_and_result_and_one_for_what_else_it_says(
    message: Message, items: int
) -> None:
    assert items_in(message) == items


@PROPERTY
@given(histories())
def test_the_items_of_a_context_are_those_of_its_messages_and_each_counts(messages: list[Message]) -> None:
    context = context_of(messages)
    assert context.items == sum(map(items_in, messages))
    asked = sum(len(message.calls) + len(message.results) for message in messages)
    assert max(asked, len(messages)) <= context.items <= asked + len(messages)


# Limits


def test_what_is_just_within_the_limits_is_within_them() -> None:
    assert Limits(TOKENS, 3).excess(context_of(TALK)) == ""
    assert Limits().excess(context_of(TALK * 100)) == ""


def test_each_limit_says_what_is_too_much() -> None:
    context = context_of(TALK * 500)
    tokens = context.tokens
    assert Limits(max_tokens=10_000).excess(context) == f"{tokens:,} tokens, more than 10,000"
    assert Limits(max_items=1_499).excess(context) == "1,500 items, more than 1,499"
    assert Limits(10_000, 1_499).excess(context) == (
        f"{tokens:,} tokens, more than 10,000 and 1,500 items, more than 1,499"
    )
    assert Limits(10_000, 1_500).excess(context) == f"{tokens:,} tokens, more than 10,000"
    assert Limits(tokens, 1_499).excess(context) == "1,500 items, more than 1,499"


def test_tokens_are_those_of_all_that_is_sent_and_if_wanted_of_the_answer() -> None:
    context = Context.of(
        ChatRequest(tuple(TALK), ChatOptions()),
        fixed_tokens=1_000,
        size_of=CharCounter().count_message,
        reserved_tokens=500,
    )
    scaled = msgspec.structs.replace(context, scale=2.0)
    for with_reserve, reserved in ((False, 0), (True, 500)):
        for each, tokens in ((context, TOKENS + 1_000), (scaled, (TOKENS + 1_000) * 2)):
            assert Limits(tokens + reserved, with_reserve=with_reserve).excess(each) == ""
            assert Limits(tokens + reserved - 1, with_reserve=with_reserve).excess(each) != ""


@pytest.mark.parametrize(
    ("limits", "tokens", "items", "share", "is_allowed"),
    [
        (Limits(), 10**9, 10**9, 0.1, True),
        (Limits(100), 100, 10**9, 1.0, True),
        (Limits(100), 100.5, 0, 1.0, False),
        (Limits(None, 10), 10**9, 10, 1.0, True),
        (Limits(None, 10), 0, 11, 1.0, False),
        (Limits(100, 10), 60, 6, 0.6, True),
        (Limits(100, 10), 61, 6, 0.6, False),
        (Limits(100, 10), 60, 7, 0.6, False),
    ],
)
def test_a_size_is_allowed_if_it_is_within_that_share_of_both_limits(
    limits: Limits, tokens: float, items: int, share: float, is_allowed: bool
) -> None:
    assert limits.allow(tokens, items, share) is is_allowed


@PROPERTY
@given(histories(), st.none() | st.integers(1, 200), st.none() | st.integers(1, 20))
def test_what_exceeds_nothing_is_allowed_and_nothing_else(
    messages: list[Message], max_tokens: int | None, max_items: int | None
) -> None:
    context, limits = context_of(messages), Limits(max_tokens, max_items)
    assert limits.allow(context.tokens, context.items) is (limits.excess(context) == "")
