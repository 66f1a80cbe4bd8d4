"""Real graphs with the SQLite checkpointer: the model sees what is left, the database keeps everything."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from injectq import Inject, InjectQ
from tenxgraph.core.exceptions import NodeError
from tenxgraph.core.graph import StateGraph
from tenxgraph.core.state import AgentState as GraphState
from tenxgraph.core.state import Message as GraphMessage
from tenxgraph.utils import END
from tenxgraph.utils.interrupt import interrupt

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
from chatstack_tenxgraph import GraphChatNode, from_tenxgraph, injected, to_tenxgraph
from tests.graphs import Broken, asking, compiled, graph_of, messages_of, sent_to, state_of

EIGHT = [text for number in range(8) for text in (f"question number {number}", f"answer number {number}")]


async def eight_turns(app: Any) -> None:
    for number in range(8):
        await app.ainvoke(asking(f"question number {number}"), {"thread_id": "t"})


def talking() -> ScriptedClient:
    return ScriptedClient([f"answer number {number}" for number in range(8)])


def test_an_injected_manager_trims_for_the_model_and_the_database_holds_all(tmp_path: Path) -> None:
    database, model, container = tmp_path / "graph.db", talking(), InjectQ()
    container.bind_instance(BaseContextManager, MessageContextManager(1))

    @injected(container)
    async def chat(
        state: GraphState, config: dict[str, Any], ctx_mgr: BaseContextManager[Any] | None = Inject[BaseContextManager]
    ) -> Any:
        return await GraphChatNode(model, context_manager=ctx_mgr)(state, config)

    async def converse() -> tuple[Any, list[GraphMessage]]:
        async with graph_of(chat, database, container) as app:
            await eight_turns(app)
        return await state_of(database, "t"), await messages_of(database, "t")

    state, messages = asyncio.run(converse())
    assert [message.text() for message in state.context] == EIGHT
    assert [message.text() for message in messages] == EIGHT
    assert [len(request.messages) for request in model.requests] == [1] * 8
    assert sent_to(model) == [Message.user("question number 7")]


@pytest.mark.parametrize("manager", [MessageContextManager(2), OldestFirst(40, 20)], ids=["manager", "strategy"])
def test_so_do_those_that_the_node_is_given(manager: BaseContextManager[Any] | Strategy, tmp_path: Path) -> None:
    database, model = tmp_path / "graph.db", talking()

    async def converse() -> Any:
        async with graph_of(GraphChatNode(model, context_manager=manager), database) as app:
            await eight_turns(app)
        return await state_of(database, "t")

    assert [message.text() for message in asyncio.run(converse()).context] == EIGHT
    assert max(len(request.messages) for request in model.requests) < 9


def test_the_clients_own_layers_see_to_it_as_well(tmp_path: Path) -> None:
    database, model = tmp_path / "graph.db", talking()
    stack = (
        ChatStack(model)
        .use(ContextWindow(max_tokens=60, summary_client=ScriptedClient(["they talked"])))
        .use(ContextWindowGuard, max_context_tokens=400, prune_on_overflow=True)
    )

    async def converse() -> Any:
        async with stack.build() as client, graph_of(GraphChatNode(client), database) as app:
            await eight_turns(app)
        return await state_of(database, "t")

    assert [message.text() for message in asyncio.run(converse()).context] == EIGHT
    assert [each for each in sent_to(model) if "they talked" in each.text]
    assert len(sent_to(model)) < 15


def test_pictures_reasoning_and_pins_come_back_from_the_database(tmp_path: Path) -> None:
    database = tmp_path / "graph.db"
    history = [
        Message("user", (Text("never forget"), Image(data="aGk=", media_type="image/png", detail="low")), pinned=True),
        Message.assistant(Reasoning("hm", '{"type":"thinking","signature":"s"}', "anthropic"), "I see"),
        Message.user("and now?"),
    ]
    said = Message.assistant(Reasoning("so", '{"id":"rs_1","summary":[]}', "openai"), "now it is night")
    model = ScriptedClient([said])

    async def converse() -> Any:
        async with graph_of(GraphChatNode(model), database) as app:
            await app.ainvoke({"messages": to_tenxgraph(history)}, {"thread_id": "t"})
        return await state_of(database, "t")

    held = asyncio.run(converse()).context
    assert sent_to(model) == history
    assert from_tenxgraph(held, keep_rest=False) == [*history, said]


def test_the_conversations_id_is_the_thread_and_the_usage_is_at_the_answer() -> None:
    model = ScriptedClient()

    async def converse() -> Any:
        async with graph_of(GraphChatNode(model)) as app:
            return await app.ainvoke(asking("hello"), {"thread_id": "t-7"})

    said = asyncio.run(converse())["messages"][-1]
    assert model.requests[0].conversation_id == "t-7"
    assert said.usages.total_tokens == said.usages.prompt_tokens + said.usages.completion_tokens > 0
    assert said.metadata["finish_reason"] == "stop"


def test_a_context_manager_sees_the_fields_of_the_state() -> None:
    class State(GraphState):
        keep: int = 2

    class Keeping(AwaitedContextManager[AgentState]):
        async def atrim_context(self, state: AgentState) -> AgentState:
            count = state.extra["keep"]
            assert isinstance(count, int)
            return self.with_messages(state, state.messages[-count:])

    model = ScriptedClient()
    graph: Any = StateGraph(State(), container=InjectQ())
    graph.add_node("chat", GraphChatNode(model, context_manager=Keeping()))
    graph.set_entry_point("chat")
    graph.add_edge("chat", END)

    async def converse() -> None:
        async with compiled(graph) as app:
            await app.ainvoke({"messages": [GraphMessage.text_message(each) for each in "abc"]}, {"thread_id": "t"})

    asyncio.run(converse())
    assert [message.text for message in sent_to(model)] == ["b", "c"]


def test_many_threads_at_once_each_see_their_own() -> None:
    model = ScriptedClient(delay_seconds=0.001)

    async def converse() -> None:
        async with graph_of(GraphChatNode(model, context_manager=MessageContextManager(2))) as app:

            async def talk(name: str) -> None:
                for number in range(3):
                    await app.ainvoke(asking(f"{name}: {number}"), {"thread_id": name})

            await asyncio.gather(*(talk(f"t{number}") for number in range(20)))

    asyncio.run(converse())
    assert len(model.requests) == 60
    for request in model.requests:
        said = {message.text.split(":")[0] for message in request.messages if message.role == "user"}
        assert said == {request.conversation_id}


def test_a_graph_that_waits_for_a_person_goes_on_where_it_was() -> None:
    async def person(state: GraphState, config: dict[str, Any]) -> GraphMessage:
        return GraphMessage.text_message(interrupt("are you sure?"))

    model = ScriptedClient(["shall I?", "done"])
    graph: Any = StateGraph(container=InjectQ())
    graph.add_node("first", GraphChatNode(model))
    graph.add_node("person", person)
    graph.add_node("second", GraphChatNode(model, context_manager=MessageContextManager(1)))
    graph.set_entry_point("first")
    for one, other in (("first", "person"), ("person", "second"), ("second", END)):
        graph.add_edge(one, other)

    async def converse() -> Any:
        async with compiled(graph) as app:
            await app.ainvoke(asking("delete it"), {"thread_id": "t"})
            return await app.ainvoke({"resume": "yes"}, {"thread_id": "t"}, response_granularity="full")

    after = asyncio.run(converse())
    assert [message.text() for message in after["state"].context] == ["delete it", "shall I?", "yes", "done"]
    assert sent_to(model) == [Message.user("yes")]


def test_a_mistake_in_a_context_manager_surfaces_and_nothing_is_sent() -> None:
    """10xgraph's own agent swallows it, and sends everything."""
    model = ScriptedClient()

    async def converse() -> None:
        async with graph_of(GraphChatNode(model, context_manager=Broken())) as app:
            await app.ainvoke(asking("hello"), {"thread_id": "t"})

    with pytest.raises(NodeError, match="no_such_thing") as caught:
        asyncio.run(converse())
    assert isinstance(caught.value.__cause__, AttributeError)
    assert not model.requests


def test_what_the_provider_refuses_is_the_cause_of_the_nodes_error() -> None:
    async def converse() -> None:
        async with graph_of(GraphChatNode(ScriptedClient([RateLimitError("slow", provider="scripted")]))) as app:
            await app.ainvoke(asking("hello"), {"thread_id": "t"})

    with pytest.raises(NodeError) as caught:
        asyncio.run(converse())
    assert isinstance(caught.value.__cause__, RateLimitError)


@pytest.mark.parametrize("client", [ScriptedClient, None, "gpt"])
def test_what_is_no_client_is_refused_when_the_node_is_made(client: Any) -> None:
    with pytest.raises(WiringError, match="GraphChatNode: client is "):
        GraphChatNode(client)


def test_a_state_of_another_kind_is_refused() -> None:
    state: Any = AgentState([Message.user("a")])
    with pytest.raises(InputError, match="state is a AgentState, not an AgentState of tenxgraph"):
        asyncio.run(GraphChatNode(ScriptedClient())(state, {}))


def test_between_two_edits_each_request_begins_with_what_the_last_one_sent() -> None:
    """Messages are converted anew on every call, and still are recognised as the ones that were decided about."""
    model = ScriptedClient([f"answer {number} " * 4 for number in range(30)])
    node = GraphChatNode(model, context_manager=OldestFirst(200, 100))

    async def converse() -> None:
        async with graph_of(node) as app:
            for number in range(30):
                await app.ainvoke(asking(f"question {number} " * 3), {"thread_id": "t"})

    asyncio.run(converse())
    pairs = list(itertools.pairwise(request.messages for request in model.requests))
    broken = [len(later) < len(earlier) for earlier, later in pairs if later[: len(earlier)] != earlier]
    assert 0 < len(broken) < 10, "edits come in batches"
    assert all(broken), "a prefix changed without an edit"
