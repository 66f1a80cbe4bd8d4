"""A stack's context layers around somebody else's model calls."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextOverflowError,
    ContextWindowGuard,
    Fallback,
    FunctionInvoker,
    Message,
    ProgressReporter,
    ToolCall,
    ToolResultClearer,
    WiringError,
    agent_turn,
)
from chatstack.nodes.in_place import InPlace, raised_by_call
from chatstack.testing import ScriptedClient, TelemetryCapture


class TheirError(Exception):
    def __init__(self, text: str, status_code: int) -> None:
        super().__init__(text)
        self.status_code = status_code


def tool_turns(count: int) -> tuple[Message, ...]:
    found = [Message.user("go")]
    for number in range(count):
        call_id = f"c{number}"
        found.append(Message("assistant", (look(call_id),)))
        found.append(Message.tool(call_id, "long " * 200))
    return tuple(found)


def look(call_id: str) -> ToolCall:
    return ToolCall(call_id, "look", "{}")


CLEARING = ChatStack(ScriptedClient(["summary"])).use(ToolResultClearer, trigger={"tokens": 500}, keep={"messages": 1})


def test_each_call_asks_its_own_model_for_what_the_layers_leave() -> None:
    layers = InPlace(CLEARING, owner="agent")
    first, second = ScriptedClient(["one"]), ScriptedClient(["two"])

    async def run() -> tuple[str, str]:
        request = ChatRequest(tool_turns(4))
        one = await (await layers.send(request, first.send)).response()
        two = await (await layers.send(ChatRequest((Message.user("hi"),)), second.send)).response()
        return one.text, two.text

    assert asyncio.run(run()) == ("one", "two")
    (sent,) = first.requests
    assert len(sent.messages) == 9
    assert any(message.original is not message for message in sent.messages)
    assert second.requests[0].messages == (Message.user("hi"),)


def test_calls_side_by_side_do_not_meet() -> None:
    layers = InPlace(CLEARING, owner="agent")

    async def one(number: int) -> str:
        model = ScriptedClient([f"answer {number}"])

        async def call(request: ChatRequest) -> ChatStream:
            await asyncio.sleep(0)
            assert request.messages[0].text == f"question {number}"
            return await model.send(request)

        stream = await layers.send(ChatRequest((Message.user(f"question {number}"),)), call)
        return (await stream.response()).text

    async def run() -> list[str]:
        return await asyncio.gather(*map(one, range(200)))

    assert asyncio.run(run()) == [f"answer {number}" for number in range(200)]


def test_what_the_model_raises_surfaces_as_it_was_raised() -> None:
    layers = InPlace(CLEARING, owner="agent")
    error = TheirError("slow down", 429)

    async def call(request: ChatRequest) -> ChatStream:
        raise error

    with pytest.raises(TheirError) as raised:
        asyncio.run(layers.send(ChatRequest((Message.user("hi"),)), call))
    assert raised.value is error


def test_an_overflow_of_the_model_is_tried_again_smaller() -> None:
    stack = ChatStack(ScriptedClient(["x"])).use(ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True)
    layers = InPlace(stack, owner="agent")
    model, sizes = ScriptedClient(["fine"]), list[int]()

    async def call(request: ChatRequest) -> ChatStream:
        sizes.append(len(request.messages))
        if len(sizes) == 1:
            raise TheirError("prompt is too long: 2000 tokens > 1000 maximum", 400)
        return await model.send(request)

    async def run() -> str:
        return (await (await layers.send(ChatRequest(tool_turns(6)), call)).response()).text

    assert asyncio.run(run()) == "fine"
    assert sizes[1] < sizes[0] == 13


def test_calls_within_a_turn_are_one_tree() -> None:
    capture = TelemetryCapture()
    layers = InPlace(CLEARING, owner="agent", resolve=capture.resolve)
    model = ScriptedClient(["one", "two"])

    async def run() -> None:
        with agent_turn("planner", telemetry=capture.telemetry):
            for length in (1, 5):
                await (await layers.send(ChatRequest(tool_turns(length)), model.send)).response()

    asyncio.run(run())
    (root,) = [span for span in capture.spans if span.parent_id is None]
    chats = [span for span in capture.spans if span.name.startswith("chat")]
    assert root.name == "invoke_agent planner"
    assert {span.parent_id for span in chats} == {root.span_id}
    assert root.attributes["chatstack.context.tokens_left_out"]


def test_layers_that_cannot_work_there_are_refused() -> None:
    provider = ScriptedClient(["x"])
    for stack in (
        ChatStack(provider).use(FunctionInvoker, tools=[]),
        ChatStack(provider).use(ProgressReporter),
        ChatStack(provider).use(Fallback, clients=[provider]),
    ):
        with pytest.raises(WiringError, match="agent: layer"):
            InPlace(stack, owner="agent")
    with pytest.raises(WiringError, match="pass a ChatStack"):
        InPlace(cast("Any", provider), owner="agent")


class OtherOptions:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream: ChatStream = await self.inner.send(request.but(options=ChatOptions(model="other")))
        return stream


def test_a_layer_that_changes_the_options_is_refused() -> None:
    layers = InPlace(ChatStack(ScriptedClient(["x"])).use(OtherOptions), owner="agent")
    with pytest.raises(WiringError, match="options"):
        asyncio.run(layers.send(ChatRequest((Message.user("hi"),)), ScriptedClient(["x"]).send))


def test_an_error_of_ours_alone_surfaces_itself() -> None:
    error = ContextOverflowError(actual=9, limit=5)
    assert raised_by_call(error) is error
    error.__cause__ = ValueError("theirs")
    assert raised_by_call(error) is error.__cause__
