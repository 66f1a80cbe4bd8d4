"""A recorder of turns: it answers for the model and for the tools, and for this turn alone."""

from __future__ import annotations

import asyncio
import contextvars

import pytest

from chatstack import ChatClient, ChatRequest, ChatStack, FunctionInvoker, Message, ToolCall, ToolResult, tool
from chatstack.client.stream import ChatStream
from chatstack.stack.recipe import BuiltClient
from chatstack.testing import ScriptedClient
from chatstack.tools.execution import Outcome, ToolRunner
from chatstack.tools.parameters import ToolContext
from chatstack.tools.recording import turn_recorder
from chatstack.tools.turn import OVER_LIMIT


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"


def asks(*cities: str) -> Message:
    return Message.assistant(*(ToolCall(str(n), "weather", f'{{"city": "{city}"}}') for n, city in enumerate(cities)))


class Recorder:
    """Passes everything on, notes it, and has the result of one call; of each round it knows that many calls."""

    def __init__(self, let_through: int = 0) -> None:
        self.let_through = let_through
        self.asked = 0
        self.ran: list[tuple[int, int, str]] = []

    async def answer(self, client: ChatClient, request: ChatRequest) -> ChatStream:
        self.asked += 1
        return await client.send(request)

    async def outcome(self, runner: ToolRunner, position: int, call: ToolCall, context: ToolContext) -> Outcome:
        self.ran.append((context.round, position, call.arguments))
        if "Oslo" in call.arguments:
            return Outcome(ToolResult(call.id, call.name, "rain, as it was written down"))
        return await runner.run(call, context)

    def begun(self, round: int) -> int:
        return self.let_through


def client_of(model: ScriptedClient, most_calls: int = 10) -> BuiltClient:
    return ChatStack(model).use(FunctionInvoker, tools=[weather], max_tool_calls_per_turn=most_calls).build()


@pytest.mark.parametrize("streamed", [False, True])
def test_each_round_and_each_call_goes_through_the_recorder(streamed: bool) -> None:
    recorder = Recorder()
    client = client_of(ScriptedClient([asks("Lima", "Oslo"), asks("Accra"), "fine"]))

    async def turn() -> tuple[Message, ...]:
        turn_recorder.set(recorder)
        if not streamed:
            return (await client.get_response("Where?")).messages
        async with client.get_streaming_response("Where?") as stream:
            async for _ in stream:
                pass
            return (await stream.response()).messages

    messages = asyncio.run(turn())
    assert recorder.asked == 3
    assert [(round, position) for round, position, _ in recorder.ran] == [(0, 0), (0, 1), (1, 0)]
    results = [result.output for message in messages for result in message.results]
    assert results == ["sun in Lima", "rain, as it was written down", "sun in Accra"]


def test_a_turn_in_another_context_is_not_recorded() -> None:
    recorder, model = Recorder(), ScriptedClient([asks("Oslo"), "fine"])

    async def story() -> list[object]:
        unrecorded = contextvars.copy_context()
        turn_recorder.set(recorder)
        turn = asyncio.create_task(client_of(model).get_response("Where?"), context=unrecorded)
        return [result.output for message in (await turn).messages for result in message.results]

    assert asyncio.run(story()) == ["sun in Oslo"]
    assert (recorder.asked, recorder.ran) == (0, [])


def test_calls_that_are_recorded_are_not_cut_by_a_limit_that_is_lower_by_now() -> None:
    recorder = Recorder(let_through=2)
    model = ScriptedClient([asks("Lima", "Oslo", "Bonn"), asks("Accra", "Oslo", "Bonn"), "fine"])

    async def turn() -> list[object]:
        turn_recorder.set(recorder)
        answer = await client_of(model, most_calls=1).get_response("Where?")
        return [result.output for message in answer.messages for result in message.results]

    written, over = "rain, as it was written down", OVER_LIMIT
    assert asyncio.run(turn()) == ["sun in Lima", written, over, "sun in Accra", written, over]
