"""A whole stack in the place of another framework's model."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    FunctionInvoker,
    InputError,
    Message,
    ProviderItem,
    Text,
    ToolDeclaration,
    WiringError,
    agent_turn,
)
from chatstack.nodes.whole_stack import WholeStack, Within, tool_names
from chatstack.testing import ScriptedClient, TelemetryCapture

below: ContextVar[str] = ContextVar("below", default="nothing")


class Looking(ScriptedClient):
    """Notes what the variable is when it is asked."""

    seen = ""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        self.seen = below.get()
        return await super().send(request)


def test_what_stands_below_sees_the_variable_while_it_is_asked_and_read() -> None:
    client = Looking(["fine"])

    async def run() -> None:
        stream = await WholeStack(client, owner="TheirModel").send(
            ChatRequest((Message.user("hello"),)), Within(below, "their call")
        )
        assert below.get() == "nothing"
        assert (await stream.response()).text == "fine"
        assert below.get() == "nothing"

    asyncio.run(run())
    assert client.seen == "their call"


def test_a_call_is_a_round_of_the_agents_turn() -> None:
    capture = TelemetryCapture()
    client = ChatStack(ScriptedClient(["fine"])).build()

    async def run() -> None:
        with agent_turn("planner", telemetry=capture.telemetry):
            await (await WholeStack(client, owner="TheirModel").send(ChatRequest((Message.user("hi"),)))).response()

    asyncio.run(run())
    assert capture.spans[-1].name == "invoke_agent planner"


def test_what_is_no_client_is_refused_in_the_name_of_the_owner() -> None:
    with pytest.raises(WiringError, match=r"TheirModel: client is a name, and no chat client"):
        WholeStack("model", owner="TheirModel")  # type: ignore[arg-type]


def test_the_tools_of_the_agent_and_those_of_the_stack_are_told_apart() -> None:
    stack = ChatStack(ScriptedClient())
    assert WholeStack(stack.use(FunctionInvoker, tools=[]).build(), owner="x").has_tool_loop
    assert not WholeStack(stack.build(), owner="x").has_tool_loop
    tools = (ToolDeclaration("look"), ProviderItem("openai", '{"type": "web_search"}'))
    assert tool_names(ChatRequest((), ChatOptions(tools=tools))) == {"look"}


def test_items_of_the_framework_that_nobody_sends_are_refused() -> None:
    stack = WholeStack(ScriptedClient(["x"]), owner="TheirModel")
    theirs, other = ProviderItem("theirs", '{"type": "store"}'), ProviderItem("anthropic", "{}")
    stack.refuse_items([Message("assistant", (theirs,)), Message("user", (Text("hi"), other))], "theirs")
    for message in (Message("user", (theirs,)), Message.tool("c1", (theirs,))):
        with pytest.raises(InputError, match=r'TheirModel: content that cannot be sent: {"type": "store"}'):
            stack.refuse_items([message], "theirs")
