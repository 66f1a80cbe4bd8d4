"""A tool that the client runs pauses the graph, as one of a ToolNode does."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from chatstack import ChatStack, FunctionInvoker, Message, ProgressReporter, ToolCall, tool
from chatstack.testing import ScriptedClient
from chatstack_langgraph import GraphChatNode
from tests.graphs import asking, assert_whole_pairs, graph_of, thread


@tool
async def ask_a_person(question: str) -> str:
    """Ask whoever is in charge."""
    return str(interrupt(question))


@tool
def ask_in_a_thread(question: str) -> str:
    """Ask whoever is in charge."""
    return str(interrupt(question))


@tool
def look(question: str) -> str:
    """Look it up."""
    return f"{question}: nothing known"


def call(name: str, *questions: str) -> Message:
    return Message.assistant(*(ToolCall(f"{name}-{each}", name, f'{{"question": "{each}"}}') for each in questions))


def graph_around(answers: list[Any], **options: Any) -> Any:
    tools = [ask_a_person, ask_in_a_thread, look]
    stack = ChatStack(ScriptedClient(answers)).use(ProgressReporter).use(FunctionInvoker, tools=tools, **options)
    return graph_of(GraphChatNode(stack.build()), InMemorySaver())


async def run(graph: Any, given: Any, streams: bool) -> list[Any]:
    """The pauses that the graph then waits at."""
    if streams:
        async for _ in graph.astream(given, thread("t"), stream_mode="messages"):
            pass
    else:
        await graph.ainvoke(given, thread("t"))
    return [each.value for each in (await graph.aget_state(thread("t"))).interrupts]


async def held(graph: Any) -> list[BaseMessage]:
    found: list[BaseMessage] = (await graph.aget_state(thread("t"))).values["messages"]
    return found


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", ["ask_a_person", "ask_in_a_thread"])
def test_a_tool_pauses_the_graph_and_gets_the_answer_when_it_goes_on(name: str, streams: bool) -> None:
    asks = call(name, "sure?")

    async def check() -> None:
        graph = graph_around([asks, asks, "done"])
        assert await run(graph, asking("go"), streams) == ["sure?"]
        assert [each.content for each in await held(graph)] == ["go"]
        assert await run(graph, Command(resume="yes"), streams) == []
        assert [each.content for each in await held(graph)] == ["go", "", "yes", "done"]

    asyncio.run(check())


def test_a_pause_in_a_later_round_leaves_nothing_of_the_turn_in_the_state() -> None:
    rounds = [call("look", "weather"), call("ask_a_person", "sure?")]

    async def check() -> None:
        graph = graph_around([*rounds, *rounds, "done"])
        assert await run(graph, asking("go"), True) == ["sure?"]
        assert [each.content for each in await held(graph)] == ["go"]
        await run(graph, Command(resume="yes"), True)
        contents = [each.content for each in await held(graph)]
        assert contents == ["go", "", "weather: nothing known", "", "yes", "done"]

    asyncio.run(check())


def test_calls_that_run_one_by_one_get_each_their_own_answer() -> None:
    asks = call("ask_a_person", "first?", "second?")

    async def check() -> None:
        graph = graph_around([asks, asks, asks, "done"], max_concurrency=1)
        assert await run(graph, asking("go"), False) == ["first?"]
        assert await run(graph, Command(resume="one"), False) == ["second?"]
        assert await run(graph, Command(resume="two"), False) == []
        assert [each.content for each in await held(graph)] == ["go", "", "one", "two", "done"]

    asyncio.run(check())


def test_a_tool_that_fails_beside_is_still_a_result_that_the_model_reads() -> None:
    @tool
    def broken(question: str) -> str:
        """Fail."""
        raise ValueError("no")

    async def check() -> None:
        model = ScriptedClient([call("broken", "x"), "done"])
        client = ChatStack(model).use(FunctionInvoker, tools=[broken]).build()
        graph = graph_of(GraphChatNode(client), InMemorySaver())
        assert await run(graph, asking("go"), False) == []
        assert "broken failed" in str((await held(graph))[2].content)
        assert_whole_pairs(model.requests[-1].messages)

    asyncio.run(check())
