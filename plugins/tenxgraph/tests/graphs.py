"""What the tests of graphs share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from injectq import InjectQ
from tenxgraph.core.graph import StateGraph
from tenxgraph.core.state import Message as GraphMessage
from tenxgraph.storage.checkpointer import SqliteCheckpointer
from tenxgraph.utils import END

from chatstack import AgentState, AwaitedContextManager, Message
from chatstack.testing import ScriptedClient


@asynccontextmanager
async def graph_of(
    node: Any, database: Path | str = ":memory:", container: InjectQ | None = None
) -> AsyncIterator[Any]:
    """A compiled graph of that one node, in a container of its own, with a database."""
    graph: Any = StateGraph(container=container or InjectQ())
    graph.add_node("chat", node)
    graph.set_entry_point("chat")
    graph.add_edge("chat", END)
    async with compiled(graph, database) as app:
        yield app


@asynccontextmanager
async def compiled(graph: Any, database: Path | str = ":memory:") -> AsyncIterator[Any]:
    app = graph.compile(checkpointer=SqliteCheckpointer(database))
    try:
        yield app
    finally:
        await app.aclose()


def asking(text: str) -> dict[str, list[GraphMessage]]:
    return {"messages": [GraphMessage.text_message(text)]}


async def state_of(database: Path | str, thread: str) -> Any:
    """What another process reads from the database."""
    checkpointer: Any = SqliteCheckpointer(database)
    try:
        return await checkpointer.aget_state({"thread_id": thread})
    finally:
        await checkpointer.arelease()


async def messages_of(database: Path | str, thread: str) -> list[GraphMessage]:
    """The messages that the database has one by one, beside the state."""
    checkpointer: Any = SqliteCheckpointer(database)
    try:
        found: list[GraphMessage] = await checkpointer.alist_messages({"thread_id": thread})
        return found
    finally:
        await checkpointer.arelease()


def sent_to(model: ScriptedClient) -> list[Message]:
    return list(model.requests[-1].messages)


def assert_whole_pairs(messages: tuple[Message, ...] | list[Message]) -> None:
    """Every call has its result behind it, and every result its call before it."""
    waiting: list[str] = []
    for message in messages:
        for result in message.results:
            assert result.call_id in waiting, f"the result of {result.call_id} has no call"
            waiting.remove(result.call_id)
        waiting.extend(call.id for call in message.calls)
    assert not waiting, f"calls without results: {waiting}"


class Broken(AwaitedContextManager[AgentState]):
    """Has a mistake in it."""

    async def atrim_context(self, state: AgentState) -> AgentState:
        return state.no_such_thing  # type: ignore[attr-defined,no-any-return]
