"""A pytest plugin for LangChain's own tests: puts a stack into every agent that ``create_agent`` makes.

``CHATSTACK_IN_PLACE=middleware`` appends a ``StackMiddleware``; ``model`` puts a ``ChatStackModel`` over the model.
All triggers are far away, so nothing may change. Every request is counted, so that a run in which the layer was not
asked shows.
"""

from __future__ import annotations

import os
from typing import Any

import langchain.agents
import langchain.agents.factory
import pytest
from langchain_core.language_models import BaseChatModel

from chatstack import ChatStack, ContextWindowGuard, Summarizer, ToolResultClearer
from chatstack.client.protocol import ProviderInfo
from chatstack.testing import ScriptedClient
from chatstack_langchain import ChatStackModel, LangChainClient, StackMiddleware

PLACE = os.environ.get("CHATSTACK_IN_PLACE", "")
asked = 0
made = 0
tests = 0
original = langchain.agents.factory.create_agent


class Counted:
    """A layer that counts."""

    kind = "plain"

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def send(self, request: Any, /) -> Any:
        global asked
        asked += 1
        return await self.inner.send(request)


def stack_over(provider: Any) -> ChatStack:
    return (
        ChatStack(provider)
        .use(Counted)
        .use(ToolResultClearer, trigger={"tokens": 1_000_000}, keep={"messages": 3})
        .use(Summarizer, max_tokens=1_500_000, keep_recent_turns=3)
        .use(ContextWindowGuard, max_context_tokens=2_000_000)
    )


def provider_of(model: Any) -> Any:
    if isinstance(model, BaseChatModel):
        return LangChainClient(model)
    return ScriptedClient(info=ProviderInfo(name="langchain"))


def create_agent(model: Any, *args: Any, **options: Any) -> Any:
    global made
    made += 1
    if PLACE == "middleware":
        layer = StackMiddleware(stack_over(provider_of(model)))
        options["middleware"] = [*(options.get("middleware") or ()), layer]
    elif PLACE == "model" and isinstance(model, BaseChatModel):
        model = ChatStackModel(client=stack_over(LangChainClient(model)).build())
    return original(model, *args, **options)


if PLACE:
    langchain.agents.factory.create_agent = create_agent
    langchain.agents.create_agent = create_agent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Any:
    global tests
    before = asked
    result = yield
    tests += asked > before  # one that failed has raised above
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(
        f"chatstack: {made} agents made, {asked} requests through the stack, in {tests} tests that passed"
    )
