"""A pytest plugin for Pydantic AI's own tests: puts a stack in front of the models that they use.

``CHATSTACK_IN_PLACE=wrapper`` answers each request of their test models, and of their OpenAI and Anthropic models, by a
``StackedModel`` over that very model. All triggers are far away, so nothing may change. Requests are counted, so that a
run in which the layer was not asked shows.
"""

from __future__ import annotations

import importlib
import os
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel

from chatstack import ChatStack, ContextWindowGuard, Summarizer, ToolResultClearer
from chatstack.client.protocol import ProviderInfo
from chatstack.testing import ScriptedClient
from chatstack_pydantic_ai import StackedModel

PLACE = os.environ.get("CHATSTACK_IN_PLACE", "")
asked = tests = 0


class Counted:
    """A layer that counts."""

    kind = "plain"

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def send(self, request: Any, /) -> Any:
        global asked
        asked += 1
        return await self.inner.send(request)


STACK = (
    ChatStack(ScriptedClient(info=ProviderInfo(name="pydantic-ai")))
    .use(Counted)
    .use(ToolResultClearer, trigger={"tokens": 1_000_000}, keep={"messages": 3})
    .use(Summarizer, max_tokens=1_500_000, keep_recent_turns=3)
    .use(ContextWindowGuard, max_context_tokens=2_000_000)
)


def put_in_front_of(kind: Any) -> None:
    bare_request, bare_stream = kind.request, kind.request_stream

    class Bare(WrapperModel):
        async def request(self, *given: Any, **named: Any) -> Any:
            return await bare_request(self.wrapped, *given, **named)

        @asynccontextmanager
        async def request_stream(self, *given: Any, **named: Any) -> Any:
            async with bare_stream(self.wrapped, *given, **named) as stream:
                yield stream

    async def request(self: Any, *given: Any, **named: Any) -> Any:
        return await StackedModel(Bare(self), STACK).request(*given, **named)

    @asynccontextmanager
    async def request_stream(self: Any, *given: Any, **named: Any) -> Any:
        async with StackedModel(Bare(self), STACK).request_stream(*given, **named) as stream:
            yield stream

    kind.request, kind.request_stream = request, request_stream


if PLACE == "wrapper":
    put_in_front_of(TestModel)
    put_in_front_of(FunctionModel)
    for module, name in (
        ("openai", "OpenAIChatModel"),
        ("openai", "OpenAIResponsesModel"),
        ("anthropic", "AnthropicModel"),
    ):
        put_in_front_of(getattr(importlib.import_module(f"pydantic_ai.models.{module}"), name))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Any:
    global tests
    before = asked
    result = yield
    tests += asked > before  # one that failed has raised above
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"chatstack: {asked} requests through the stack, in {tests} tests that passed")
