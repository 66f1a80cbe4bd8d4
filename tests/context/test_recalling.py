"""What was recalled lately is cleared last: else the model would only ask for it again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chatstack import CharCounter, ChatOptions, ChatRequest, ClearThenDrop, Message, ToolCall, recall_tool
from chatstack.context.edits.context import Context
from chatstack.context.strategies.clearing import ClearToolResults
from chatstack.context.strategies.recalling import recalled_lately
from chatstack.context.strategy import Strategy

RECALL = recall_tool().declaration()
COUNTER = CharCounter()


def rounds(number: int, name: str = "look", words: int = 40) -> list[Message]:
    return [
        message
        for at in range(number)
        for message in (
            Message.assistant(ToolCall(f"{name}{at}", name)),
            Message.tool(f"{name}{at}", f"{name} {at} " + "grey " * words, name=name),
        )
    ]


def context(messages: Sequence[Message], *, declared: bool = True) -> Context:
    options = ChatOptions(tools=(RECALL,) if declared else ())
    request = ChatRequest(tuple(messages), options)
    return Context.of(request, fixed_tokens=0, size_of=COUNTER.count_message)


def cleared(strategy: Strategy, context: Context) -> list[int]:
    plan = strategy.plan(context)
    return [] if plan is None else [at for at, _ in plan.replace]


TALK = [Message.user("go"), *rounds(4), *rounds(1, "recall"), *rounds(3, "read"), Message.assistant("hm")]
"""The recalled result is at 10; 2, 4, 6 and 8 are before, 12, 14 and 16 behind it."""


def test_a_clearer_takes_all_others_first() -> None:
    assert cleared(ClearToolResults(trigger={"tokens": 300}, keep={"messages": 1}), context(TALK)) == [
        2,
        4,
        6,
        8,
        12,
        14,
    ]


def test_where_they_are_not_enough_it_goes_too() -> None:
    found = cleared(ClearToolResults(trigger={"tokens": 200}, keep={"messages": 1}), context(TALK))
    assert found == [2, 4, 6, 8, 10, 12, 14]


def test_condensing_clears_all_others_first() -> None:
    found = cleared(ClearThenDrop(350, keep_recent=0.01, target=0.9, mentions=0), context(TALK))
    assert 10 not in found
    assert 8 in found
    assert 12 in found


@pytest.mark.parametrize(
    ("messages", "positions"),
    [
        ([*TALK, Message.user("next")], set()),
        ([Message.user("go"), *rounds(5, "recall")], {8, 10}),
        ([Message.user("go"), Message.assistant(ToolCall("c", "recall")), Message.tool("c", "x")], {2}),
        ([], set()),
    ],
    ids=["of an earlier turn", "the newest two", "named by its call", "nothing"],
)
def test_lately_is_the_end_of_the_running_turn(messages: list[Message], positions: set[int]) -> None:
    assert recalled_lately(context(messages)) == positions


def test_without_a_recall_tool_nothing_was_recalled() -> None:
    assert recalled_lately(context(TALK, declared=False)) == frozenset()
