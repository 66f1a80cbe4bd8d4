"""A pytest plugin for Agent Framework's own tests: puts a stack around every model call of every chat client.

``CHATSTACK_IN_PLACE=middleware`` appends a ``StackMiddleware`` to each client's middleware; ``client`` puts a
``ChatStackClient`` over the client that an agent is made with; ``nothing`` appends a middleware that does nothing, to
tell what having any changes. All triggers are far away, so nothing may change. Every
request is counted, so that a run in which the layer was not asked shows.
"""

from __future__ import annotations

import os
from typing import Any

import agent_framework
import pytest
from agent_framework import BaseChatClient, ChatMiddlewareLayer, FunctionInvocationLayer, RawAgent, chat_middleware

from chatstack import ChatStack, ContextWindowGuard, Summarizer, ToolResultClearer
from chatstack.stack.recipe import NO_PROVIDER
from chatstack_agent_framework import AgentFrameworkClient, ChatStackClient, StackMiddleware

PLACE = os.environ.get("CHATSTACK_IN_PLACE", "")
asked = 0
tests = 0


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


def with_middleware() -> None:
    original = ChatMiddlewareLayer._get_chat_middleware_pipeline

    def pipeline(self: Any, middleware: Any) -> Any:
        layer = self.__dict__.get("_chatstack_layer")
        if layer is None:
            layer = self.__dict__["_chatstack_layer"] = StackMiddleware(stack_over(NO_PROVIDER))
        return original(self, [*middleware, layer])

    ChatMiddlewareLayer._get_chat_middleware_pipeline = pipeline  # type: ignore[method-assign]


def with_nothing() -> None:
    original = ChatMiddlewareLayer._get_chat_middleware_pipeline

    @chat_middleware
    async def nothing(context: Any, call_next: Any) -> None:
        await call_next()

    def pipeline(self: Any, middleware: Any) -> Any:
        return original(self, [*middleware, nothing])

    ChatMiddlewareLayer._get_chat_middleware_pipeline = pipeline  # type: ignore[method-assign]


def with_client() -> None:
    original = RawAgent.__init__

    def init(self: Any, client: Any, *args: Any, **options: Any) -> None:
        if isinstance(client, BaseChatClient) and isinstance(client, FunctionInvocationLayer):
            inner = client
            client = ChatStackClient(
                stack_over(AgentFrameworkClient(inner)).build(),
                function_invocation_configuration=inner.function_invocation_configuration,
            )
            client.function_middleware = inner.function_middleware
        original(self, client, *args, **options)

    RawAgent.__init__ = init  # type: ignore[method-assign]


if PLACE:
    {"middleware": with_middleware, "client": with_client, "nothing": with_nothing}[PLACE]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Any:
    global tests
    before = asked
    result = yield
    tests += asked > before  # one that failed has raised above
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    passed, failed = (len(terminalreporter.getreports(outcome)) for outcome in ("passed", "failed"))
    terminalreporter.write_line(f"agent_framework {agent_framework.__version__} in {agent_framework.__path__}")
    terminalreporter.write_line(f"{passed} passed, {failed} failed")
    terminalreporter.write_line(f"chatstack: {asked} requests through the stack, in {tests} tests that passed")
