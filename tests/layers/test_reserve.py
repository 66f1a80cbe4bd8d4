"""The room that is reserved for an answer: which limits it counts against, and who names it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from chatstack import (
    CharCounter,
    ChatOptions,
    ChatStack,
    ClearThenDrop,
    ContextOverflowError,
    ContextWindowGuard,
    Message,
    OldestFirst,
    ProviderInfo,
    ToolCall,
    ToolResultClearer,
)
from chatstack.testing import ScriptedClient, TelemetryCapture

RESERVING = ProviderInfo(name="scripted", model="m", default_max_tokens=8_192, window_tokens=20_000)
CHAT = [
    Message.user("hello"),
    Message.assistant("hi"),
    Message.user("how are you?"),
    Message.assistant("well"),
    Message.user("good"),
]


@pytest.mark.parametrize(
    "layer",
    [
        (ContextWindowGuard, {"max_context_tokens": 8_000, "prune_on_overflow": True}),
        (ContextWindowGuard, {"max_context_tokens": 8_000, "prune_on_overflow": True, "strict": True}),
        (OldestFirst, {"max_tokens": 8_000, "target_tokens": 6_000}),
        (ClearThenDrop, {"max_tokens": 8_000}),
    ],
    ids=["guard", "strict", "oldest first", "clear then drop"],
)
def test_a_reserve_that_nobody_asked_for_does_not_count_against_a_stated_limit(layer: Any) -> None:
    provider, capture = ScriptedClient(info=RESERVING), TelemetryCapture()
    client = ChatStack(provider).use(layer[0], **layer[1]).build(capture.resolve)
    asyncio.run(client.get_response(CHAT))
    assert provider.requests[0].messages == tuple(CHAT)
    assert capture.warnings == ()


def test_a_stated_window_of_the_clearer_is_not_filled_by_a_reserve_that_nobody_asked_for() -> None:
    history = [Message.user("work")]
    for number in range(6):
        history += [Message.assistant(ToolCall(f"c{number}", "read")), Message.tool(f"c{number}", f"{number}" * 400)]
    provider = ScriptedClient(info=RESERVING)
    options: Any = {"trigger": {"messages": 2}, "keep": {"messages": 1}, "clear_at_least": "pays"}
    stack = ChatStack(provider).use(ToolResultClearer, max_context_tokens=8_000, **options)
    asyncio.run(stack.build().get_response(history))
    assert provider.requests[0].messages == tuple(history)
    stack = stack.override("ToolResultClearer", max_context_tokens="auto", counter=CharCounter(0.2))
    asyncio.run(stack.build().get_response(history))
    assert provider.requests[1].messages != tuple(history)


def test_against_the_models_own_window_it_counts_and_every_message_names_it() -> None:
    capture = TelemetryCapture()
    stack = ChatStack(ScriptedClient(info=RESERVING)).use(ContextWindowGuard, max_context_tokens="auto")
    asyncio.run(stack.build(capture.resolve).get_response("x" * 40_000))
    assert capture.warnings == ("context_window_near_limit",)
    near = "about 18,196 of 20,000 tokens (8,192 of them reserved for the answer by the provider's default)"
    assert near in str(capture.span("context_guard").attributes["chatstack.warning.message"])
    strict = stack.override("ContextWindowGuard", prune_on_overflow=True, strict=True).build(capture.resolve)
    with pytest.raises(ContextOverflowError) as caught:
        asyncio.run(strict.get_response("x" * 60_000))
    assert "room reserved for the answer (8,192 tokens)" in str(caught.value)


def test_a_reserve_that_was_asked_for_counts_against_a_stated_limit_and_is_named() -> None:
    capture = TelemetryCapture()
    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=1_000)
    asyncio.run(stack.build(capture.resolve).get_response("x" * 384, options=ChatOptions(max_tokens=950)))
    message = str(capture.spans_named("context_guard")[0].attributes["chatstack.warning.message"])
    assert "about 1,050 of 1,000 tokens (950 of them reserved for the answer by max_tokens)" in message


def test_an_edit_says_how_much_of_the_size_was_the_answers_reserve() -> None:
    provider, capture = ScriptedClient(info=RESERVING), TelemetryCapture()
    stack = ChatStack(provider).use(ContextWindowGuard, max_context_tokens="auto", prune_on_overflow=True)
    history = [Message.user("a"), Message.assistant("x" * 48_000), Message.user("b")]
    asyncio.run(stack.build(capture.resolve).get_response(history))
    reason = str(capture.span("compact_context truncate").attributes["chatstack.compaction.reason"])
    assert "(8,192 of them reserved for the answer by the provider's default), more than 20,000" in reason


def test_a_refusal_is_about_the_window_so_that_the_reserve_is_taken_off_what_it_tells() -> None:
    history = [Message.user(f"{number}".ljust(4_000, "x")) for number in range(30)]
    refusal = ContextOverflowError(30_120 + 8_192, 20_000)
    provider, capture = ScriptedClient([refusal, "fine"], info=RESERVING), TelemetryCapture()
    stack = ChatStack(provider).use(ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True)
    client = stack.build(capture.resolve)
    asyncio.run(client.get_response(history))
    assert len(provider.requests[1].messages) == (20_000 - 8_192) // 1_004
    asyncio.run(client.get_response([Message.user("other"), *history[:15]]))
    assert len(provider.requests[2].messages[1:]) <= (20_000 - 8_192) // 1_004


def test_a_small_window_is_not_filled_by_a_default_that_is_larger_than_it() -> None:
    info = ProviderInfo(name="scripted", model="m", default_max_tokens=8_192, window_tokens=4_096)
    provider, capture = ScriptedClient(info=info), TelemetryCapture()
    stack = ChatStack(provider).use(ContextWindowGuard, max_context_tokens="auto", prune_on_overflow=True)
    asyncio.run(stack.build(capture.resolve).get_response(CHAT))
    assert provider.requests[0].messages == tuple(CHAT)
    assert capture.warnings == ()
