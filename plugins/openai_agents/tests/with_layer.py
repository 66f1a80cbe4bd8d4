"""A pytest plugin for the Agents SDK's own tests: puts a ``StackModel`` around every model that a runner asks.

All triggers are far away, so nothing may change. Every request is counted, so that a run in which the layer was not
asked shows. ``CHATSTACK_IN_PLACE=model`` turns it on.
"""

from __future__ import annotations

import os
from typing import Any

import agents.run_internal.run_loop as run_loop
import agents.run_internal.turn_preparation as turn_preparation
import pytest

from chatstack import ChatStack, ContextWindowGuard, Summarizer, ToolResultClearer
from chatstack_openai_agents import AgentsModelClient, StackModel

asked = 0
tests = 0
original = turn_preparation.get_model


class Counted:
    """A layer that counts."""

    kind = "plain"

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def send(self, request: Any, /) -> Any:
        global asked
        asked += 1
        return await self.inner.send(request)


def get_model(*args: Any, **options: Any) -> Any:
    stack = (
        ChatStack(AgentsModelClient(original(*args, **options)))
        .use(Counted)
        .use(ToolResultClearer, trigger={"tokens": 1_000_000}, keep={"messages": 3})
        .use(Summarizer, max_tokens=1_500_000, keep_recent_turns=3)
        .use(ContextWindowGuard, max_context_tokens=2_000_000)
    )
    return StackModel(stack.build())


if os.environ.get("CHATSTACK_IN_PLACE"):
    run_loop.get_model = get_model  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Any:
    global tests
    before = asked
    result = yield
    tests += asked > before  # one that failed has raised above
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"chatstack: {asked} requests through the stack, in {tests} tests that passed")
