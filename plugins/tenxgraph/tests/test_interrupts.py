"""A tool that the client runs pauses the graph, as one of a ToolNode does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tenxgraph.utils.interrupt import interrupt, pending_interrupt

from chatstack import ChatStack, FunctionInvoker, Message, ProgressReporter, ToolCall, tool
from chatstack.testing import ScriptedClient
from chatstack_tenxgraph import GraphChatNode
from tests.graphs import asking, graph_of, state_of


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


def call(name: str, question: str) -> Message:
    return Message.assistant(ToolCall(f"{name}-{question}", name, f'{{"question": "{question}"}}'))


async def run(app: Any, given: dict[str, Any], streams: bool) -> None:
    config = {"thread_id": "t"}
    if streams:
        async for _ in app.astream(given, config):
            pass
    else:
        await app.ainvoke(given, config)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("name", ["ask_a_person", "ask_in_a_thread"])
def test_a_tool_pauses_the_graph_and_gets_the_answer_when_it_goes_on(name: str, streams: bool, tmp_path: Path) -> None:
    rounds = [call("look", "weather"), call(name, "sure?")]
    stack = (
        ChatStack(ScriptedClient([*rounds, *rounds, "done"]))
        .use(ProgressReporter)
        .use(FunctionInvoker, tools=[ask_a_person, ask_in_a_thread, look])
    )
    database = tmp_path / "graph.sqlite"

    async def check() -> None:
        async with graph_of(GraphChatNode(stack.build()), database) as app:
            await run(app, asking("go"), streams)
            paused = await state_of(database, "t")
            waiting = pending_interrupt(paused)
            assert waiting is not None
            assert waiting.value == "sure?"
            assert [each.text() for each in paused.context] == ["go"]
            await run(app, {"resume": "yes"}, streams)
        ended = await state_of(database, "t")
        assert pending_interrupt(ended) is None
        assert [each.text() for each in ended.context] == ["go", "", "weather: nothing known", "", "yes", "done"]

    asyncio.run(check())
