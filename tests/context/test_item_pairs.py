"""Pairs of provider items in two messages: no edit splits them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from chatstack import (
    ChatStack,
    ContextWindow,
    ContextWindowGuard,
    Message,
    Plan,
    ProviderItem,
    Summarizer,
    Text,
)
from chatstack.context.edits.item_pairs import ItemPairs
from chatstack.context.edits.units import Unit, units_of
from chatstack.context.edits.verifier import problems
from chatstack.testing import ScriptedClient
from tests.context.strictness import context_of

WORDS = "some words of it " * 12


def item(**fields: Any) -> ProviderItem:
    return ProviderItem("provider", json.dumps(fields))


def paused(number: int) -> tuple[Message, Message]:
    """A search that the provider paused, and its rest."""
    return (
        Message.assistant(WORDS, item(type="server_tool_use", id=f"s{number}", name="web_search", input={})),
        Message.assistant(item(type="web_search_tool_result", tool_use_id=f"s{number}", content=[]), WORDS),
    )


def of_computer(number: int) -> tuple[Message, Message]:
    return (
        Message.assistant(WORDS, item(type="computer_call", id=f"x{number}", call_id=f"c{number}", action={})),
        Message("tool", (item(type="computer_call_output", call_id=f"c{number}", output={"image_url": WORDS}),)),
    )


def approval(number: int) -> tuple[Message, Message]:
    return (
        Message.assistant(WORDS, item(type="mcp_approval_request", id=f"m{number}", name="pay", arguments="{}")),
        Message("user", (item(type="mcp_approval_response", approval_request_id=f"m{number}", approve=True),)),
    )


KINDS = {"paused": paused, "computer": of_computer, "approval": approval}
Rounds = Callable[[int], tuple[Message, Message]]


def history(rounds: Rounds) -> list[Message]:
    messages = [Message.system("Rules.")]
    for number in range(10):
        messages += [Message.user(f"{number} {WORDS}"), *rounds(number), Message.assistant(WORDS)]
    return [*messages, Message.user("And now?")]


def leftovers(messages: tuple[Message, ...]) -> list[str]:
    pairs = ItemPairs()
    for position, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, ProviderItem):
                pairs.add(position, part)
    return list(pairs.leftovers())


STACKS: dict[str, Callable[[ChatStack, int], ChatStack]] = {
    "guard": lambda stack, limit: stack.use(ContextWindowGuard, max_context_tokens=limit, prune_on_overflow=True),
    "window": lambda stack, limit: stack.use(ContextWindow, max_tokens=limit, keep_recent_turns=1),
    "items": lambda stack, limit: stack.use(ContextWindow, max_context_items=limit // 50, keep_recent_turns=1),
    "summarizer": lambda stack, limit: stack.use(
        Summarizer, max_tokens=limit, keep_recent_turns=1, summary_client=ScriptedClient(["In short."])
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("recipe", STACKS)
def test_no_layer_splits_what_belongs_together(recipe: str, kind: str) -> None:
    messages = history(KINDS[kind])
    edits = 0
    for limit in range(300, 2_000, 50):
        model = ScriptedClient(["fine"])
        asyncio.run(STACKS[recipe](ChatStack(model), limit).build().get_response(messages))
        sent = model.requests[-1].messages
        assert leftovers(sent) == [], limit
        edits += len(sent) < len(messages)
    assert edits > 10


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_one_unit(kind: str) -> None:
    call, result = KINDS[kind](0)
    messages = [Message.user("go"), call, Message.assistant("between"), result]
    assert units_of(messages) == (Unit((0,)), Unit((1, 3)), Unit((2,)))


def test_in_one_message_they_join_nothing() -> None:
    whole = Message.assistant(*paused(0)[0].parts, *paused(0)[1].parts)
    assert units_of([whole, whole]) == (Unit((0,)), Unit((1,)))


def test_an_item_that_says_nothing_of_another_is_a_message_by_itself() -> None:
    strange = [ProviderItem("x", text) for text in ("", "[]", '{"type": 3}', '{"id": "a"}', "[" * 10_000)]
    messages = [Message.assistant("x", each) for each in strange]
    assert [unit.positions for unit in units_of(messages)] == [(at,) for at in range(len(strange))]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drop": (2,)}, "provider's result without call: s0"),
        ({"drop": (3,)}, "provider's call without result: s0"),
        ({"insert": ((3, Message("assistant", (Text("x"),), mark="summary")),), "drop": (1,)}, "insert at 3"),
    ],
    ids=str,
)
def test_a_plan_that_splits_them_is_refused(changes: dict[str, Any], said: str) -> None:
    assert said in str(problems(Plan(strategy="test", reason="test", **changes), context_of(tuple(history(paused)))))


def test_an_edit_that_takes_one_out_of_its_message_is_refused() -> None:
    messages = tuple(history(paused))
    edited = messages[3].edited(parts=(Text("less"),))
    plan = Plan(strategy="test", reason="test", replace=((3, edited),))
    assert "provider's call without result: s0" in str(problems(plan, context_of(messages)))
