"""Managers and nodes are closed: what they write ahead of need ends with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from chatstack import (
    AgentState,
    ChatNode,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindow,
    Message,
    StackContextManager,
    StrategyContextManager,
    Summarizer,
)
from chatstack.client.closing import Closing
from chatstack.testing import ScriptedClient


class Endless:
    """A model that goes on writing."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        await asyncio.sleep(60)
        raise AssertionError


def state(turns: int) -> AgentState:
    said = "some words " * 50
    history = [(Message.user(f"question {at} {said}"), Message.assistant(f"answer {at} {said}")) for at in range(turns)]
    return AgentState([*(message for turn in history for message in turn), Message.user("last")])


def window() -> ContextWindow:
    return ContextWindow(max_tokens=4_000, keep_recent_turns=1, prepare_at=0.5, summary_client=Endless())


def by_strategy() -> tuple[Closing, ChatNode]:
    node = ChatNode(ScriptedClient(["fine"]), context_manager=window())
    return node, node


def by_manager() -> tuple[Closing, ChatNode]:
    manager = StrategyContextManager(window())
    return manager, ChatNode(ScriptedClient(["fine"]), context_manager=manager)


def by_stack() -> tuple[Closing, ChatNode]:
    stack = ChatStack(ScriptedClient(["fine"]))
    manager = StackContextManager(
        stack.use(Summarizer, max_tokens=4_000, keep_recent_turns=1, prepare_at=0.5, summary_client=Endless())
    )
    return manager, ChatNode(ScriptedClient(["fine"]), context_manager=manager)


@pytest.mark.parametrize("made", [by_strategy, by_manager, by_stack])
def test_closing_ends_the_summaries_that_are_written_ahead_of_need(
    made: Callable[[], tuple[Closing, ChatNode]],
) -> None:
    async def run() -> tuple[int, int]:
        closing, node = made()
        async with closing:
            for turns in (6, 7, 8):
                await node(state(turns))
            under_way = len(asyncio.all_tasks()) - 1
        return under_way, len(asyncio.all_tasks()) - 1

    under_way, left = asyncio.run(run())
    assert under_way > 0
    assert left == 0
