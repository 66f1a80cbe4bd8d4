"""Real graphs with real checkpointers: the model sees what is left, the state keeps everything."""

from __future__ import annotations

import asyncio
import itertools
import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph, add_messages
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from chatstack import (
    AgentState,
    AwaitedContextManager,
    BaseContextManager,
    ChatStack,
    ContextWindow,
    ContextWindowGuard,
    Image,
    InputError,
    Message,
    MessageContextManager,
    OldestFirst,
    RateLimitError,
    Reasoning,
    Strategy,
    Text,
    WiringError,
)
from chatstack.testing import ScriptedClient
from chatstack_langgraph import GraphChatNode, from_langchain, to_langchain
from tests.graphs import Broken, asking, graph_of, sent_to, thread

MANAGERS: list[BaseContextManager[Any] | Strategy] = [MessageContextManager(1), OldestFirst(40, 20)]


@pytest.mark.parametrize("manager", MANAGERS, ids=lambda manager: type(manager).__name__)
def test_turns_are_trimmed_for_the_model_and_whole_in_the_database(
    manager: BaseContextManager[Any] | Strategy, tmp_path: Path
) -> None:
    model = ScriptedClient([f"answer number {number}" for number in range(8)])

    async def converse() -> list[AnyMessage]:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "graph.db")) as saver:
            graph = graph_of(GraphChatNode(model, context_manager=manager), saver)
            for number in range(8):
                await graph.ainvoke(asking(f"question number {number}"), thread("t"))
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "graph.db")) as saver:  # as another process would
            state = await graph_of(GraphChatNode(model), saver).aget_state(thread("t"))
            held: list[AnyMessage] = state.values["messages"]
            return held

    held = asyncio.run(converse())
    expected = [text for number in range(8) for text in (f"question number {number}", f"answer number {number}")]
    assert [message.text for message in held] == expected
    assert len({message.id for message in held}) == 16
    assert max(len(request.messages) for request in model.requests) < 9
    assert sent_to(model)[-1] == Message.user("question number 7")


def test_the_clients_own_layers_see_to_it_as_well() -> None:
    model = ScriptedClient([f"answer number {number}" for number in range(8)])
    stack = (
        ChatStack(model)
        .use(ContextWindow(max_tokens=200, summary_client=ScriptedClient(["they talked"])))
        .use(ContextWindowGuard, max_context_tokens=400, prune_on_overflow=True)
    )

    async def converse() -> Any:
        async with stack.build() as client:
            graph = graph_of(GraphChatNode(client), InMemorySaver())
            for number in range(8):
                state = await graph.ainvoke(asking(f"question number {number} " * 5), thread("t"))
            return state

    state = asyncio.run(converse())
    assert len(state["messages"]) == 16
    assert len(sent_to(model)) < 15
    assert [each for each in sent_to(model) if "they talked" in each.text]
    assert not [each for each in state["messages"] if "they talked" in each.text], "summaries are of one call"


@pytest.mark.parametrize("saver", [InMemorySaver, None])
def test_the_conversations_id_is_the_thread(saver: Any) -> None:
    model = ScriptedClient()
    graph = graph_of(GraphChatNode(model), saver and saver())
    asyncio.run(graph.ainvoke(asking("hello"), thread("t-7")))
    asyncio.run(graph.ainvoke(asking("hello"), {"configurable": {"thread_id": 8}}))
    assert [request.conversation_id for request in model.requests] == ["t-7", "8"]


def test_without_a_thread_there_is_no_conversation() -> None:
    model = ScriptedClient()
    asyncio.run(graph_of(GraphChatNode(model)).ainvoke(asking("hello")))
    assert model.requests[0].conversation_id is None


def test_pictures_reasoning_and_pins_come_back_from_the_database(tmp_path: Path) -> None:
    history = [
        Message("user", (Text("never forget"), Image(data="aGk=", media_type="image/png", detail="low")), pinned=True),
        Message.assistant(Reasoning("hm", '{"type":"thinking","thinking":"hm","signature":"s"}', "anthropic"), "I see"),
        Message.user("and now?"),
    ]
    said = Message.assistant(Reasoning("so", '{"id":"rs_1","summary":[]}', "openai"), "now it is night")
    model = ScriptedClient([said])

    async def converse() -> Any:
        async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "graph.db")) as saver:
            graph = graph_of(GraphChatNode(model), saver)
            await graph.ainvoke({"messages": to_langchain(history)}, thread("t"))
            return (await graph.aget_state(thread("t"))).values["messages"]

    held = asyncio.run(converse())
    assert sent_to(model) == history
    assert from_langchain(held, keep_rest=False) == [*history, said]


def test_the_turns_usage_is_at_its_last_answer() -> None:
    state = asyncio.run(graph_of(GraphChatNode(ScriptedClient(["fine"]))).ainvoke(asking("hello")))
    said = state["messages"][-1]
    assert isinstance(said, AIMessage)
    assert said.usage_metadata is not None
    assert said.usage_metadata["total_tokens"] > said.usage_metadata["output_tokens"] > 0
    assert said.response_metadata["finish_reason"] == "stop"


def test_a_context_manager_sees_the_rest_of_the_state() -> None:
    class State(MessagesState):
        keep: int

    class Keeping(AwaitedContextManager[AgentState]):
        async def atrim_context(self, state: AgentState) -> AgentState:
            count = state.extra["keep"]
            assert isinstance(count, int)
            return self.with_messages(state, state.messages[-count:])

    model = ScriptedClient()
    builder = StateGraph(State)
    builder.add_node("chat", GraphChatNode(model, context_manager=Keeping()))
    builder.add_edge(START, "chat")
    graph: Any = builder.compile()
    after = asyncio.run(graph.ainvoke({"messages": [HumanMessage(each) for each in "abc"], "keep": 2}))
    assert [message.text for message in sent_to(model)] == ["b", "c"]
    assert len(after["messages"]) == 4


@dataclass
class Fields:
    talk: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)


class Model(BaseModel):
    talk: Annotated[list[AnyMessage], add_messages] = []


@pytest.mark.parametrize("kind", [Fields, Model])
def test_states_of_every_kind_and_messages_under_another_name(kind: type) -> None:
    model = ScriptedClient()
    builder = StateGraph(kind)
    builder.add_node("chat", GraphChatNode(model, messages_key="talk"))
    builder.add_edge(START, "chat")
    graph: Any = builder.compile()
    after = asyncio.run(graph.ainvoke({"talk": [HumanMessage("hello")]}))
    assert [message.text for message in after["talk"]] == ["hello", "fine"]


def test_branches_side_by_side_each_add_their_answer() -> None:
    class State(MessagesState):
        seen: Annotated[list[int], operator.add]

    models = {name: ScriptedClient([f"{name} says so"]) for name in ("left", "right")}
    second = ScriptedClient(["both heard"])
    builder = StateGraph(State)
    for name, model in models.items():
        builder.add_node(name, GraphChatNode(model, context_manager=MessageContextManager(1)))
        builder.add_edge(START, name)
        builder.add_edge(name, "end")
    builder.add_node("end", GraphChatNode(second))
    builder.add_edge("end", END)
    graph: Any = builder.compile(checkpointer=InMemorySaver())
    after = asyncio.run(graph.ainvoke(asking("well?"), thread("t")))
    assert [message.text for message in after["messages"]] == [
        "well?",
        "left says so",
        "right says so",
        "both heard",
    ]
    assert len(sent_to(second)) == 3


def test_many_threads_at_once_each_see_their_own() -> None:
    model = ScriptedClient(delay_seconds=0.001)
    graph = graph_of(GraphChatNode(model, context_manager=MessageContextManager(2)), InMemorySaver())

    async def converse(name: str) -> None:
        for number in range(3):
            await graph.ainvoke(asking(f"{name}: {number}"), thread(name))

    async def all_at_once() -> None:
        await asyncio.gather(*(converse(f"t{number}") for number in range(30)))

    asyncio.run(all_at_once())
    assert len(model.requests) == 90
    for request in model.requests:
        said = [message.text.split(":")[0] for message in request.messages if message.role == "user"]
        assert set(said) == {request.conversation_id}


def test_a_graph_that_waits_for_a_person_goes_on_where_it_was() -> None:
    def ask_person(state: MessagesState) -> dict[str, Any]:
        return {"messages": [HumanMessage(interrupt("are you sure?"))]}

    model = ScriptedClient(["shall I?", "done"])
    builder = StateGraph(MessagesState)
    node = GraphChatNode(model, context_manager=MessageContextManager(1))
    builder.add_node("first", node)
    builder.add_node("person", ask_person)
    builder.add_node("second", node)
    builder.add_edge(START, "first")
    builder.add_edge("first", "person")
    builder.add_edge("person", "second")
    graph: Any = builder.compile(checkpointer=InMemorySaver())

    async def converse() -> Any:
        paused = await graph.ainvoke(asking("delete it"), thread("t"))
        assert paused["__interrupt__"][0].value == "are you sure?"
        return await graph.ainvoke(Command(resume="yes"), thread("t"))

    after = asyncio.run(converse())
    assert [message.text for message in after["messages"]] == ["delete it", "shall I?", "yes", "done"]
    assert sent_to(model) == [Message.user("yes")]


def test_a_mistake_in_a_context_manager_surfaces_and_nothing_is_sent() -> None:
    model = ScriptedClient()
    with pytest.raises(AttributeError, match="no_such_thing"):
        asyncio.run(graph_of(GraphChatNode(model, context_manager=Broken())).ainvoke(asking("hello")))
    assert not model.requests


def test_what_the_provider_refuses_surfaces() -> None:
    model = ScriptedClient([RateLimitError("slow down", provider="scripted")])
    with pytest.raises(RateLimitError):
        asyncio.run(graph_of(GraphChatNode(model)).ainvoke(asking("hello")))


def test_a_state_without_the_messages_is_told_by_name() -> None:
    with pytest.raises(InputError, match=r"has no 'talk'; pass messages_key=\.\.\., one of 'messages'"):
        asyncio.run(graph_of(GraphChatNode(ScriptedClient(), messages_key="talk")).ainvoke(asking("hello")))


@pytest.mark.parametrize("client", [ScriptedClient, None, "gpt"])
def test_what_is_no_client_is_refused_when_the_node_is_made(client: Any) -> None:
    with pytest.raises(WiringError, match="GraphChatNode: client is "):
        GraphChatNode(client)


def test_between_two_edits_each_request_begins_with_what_the_last_one_sent() -> None:
    """Messages are converted anew on every call, and still are recognised as the ones that were decided about."""
    model = ScriptedClient([f"answer {number} " * 4 for number in range(30)])
    node = GraphChatNode(model, context_manager=OldestFirst(200, 100))

    async def converse() -> None:
        graph = graph_of(node, InMemorySaver())
        for number in range(30):
            await graph.ainvoke(asking(f"question {number} " * 3), thread("t"))

    asyncio.run(converse())
    pairs = list(itertools.pairwise(request.messages for request in model.requests))
    broken = [len(later) < len(earlier) for earlier, later in pairs if later[: len(earlier)] != earlier]
    assert 0 < len(broken) < 10, "edits come in batches"
    assert all(broken), "a prefix changed without an edit"
