"""What the tests of graphs share."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from chatstack import AgentState, AwaitedContextManager, Message
from chatstack.testing import ScriptedClient


def graph_of(node: Any, checkpointer: Any = None) -> Any:
    """A graph of that one node."""
    builder = StateGraph(MessagesState)
    builder.add_node("chat", node)
    builder.add_edge(START, "chat")
    return builder.compile(checkpointer=checkpointer)


def thread(name: str) -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


def asking(text: str) -> dict[str, list[BaseMessage]]:
    return {"messages": [HumanMessage(text)]}


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
