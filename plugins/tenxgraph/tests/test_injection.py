"""Services from containers: each graph has its own, and gets nothing of another's."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
import tenxgraph.core.state
from injectq import Inject, InjectQ
from tenxgraph.core.exceptions import NodeError
from tenxgraph.core.graph import StateGraph
from tenxgraph.core.state import AgentState as GraphState

from chatstack import BaseContextManager, ChatClient, ChatNode, ChatStack, MessageContextManager, WiringError
from chatstack.testing import ScriptedClient
from chatstack_tenxgraph import GraphChatNode, injected
from tests.graphs import asking, graph_of, sent_to


def test_nothing_of_10xgraphs_is_taken_for_ours() -> None:
    """Its container has a key of the same name, bound to None, whenever a graph has no context manager."""
    container, ours = InjectQ(), MessageContextManager(1)
    container.bind_instance(BaseContextManager, ours)
    StateGraph(container=container)
    assert container.get(BaseContextManager) is ours
    assert container.try_get(tenxgraph.core.state.BaseContextManager) is None


def test_a_manager_of_10xgraphs_is_refused_by_its_name() -> None:
    theirs: Any = tenxgraph.core.state.MessageContextManager()
    with pytest.raises(WiringError, match=r"context_manager is a tenxgraph\..*MessageContextManager"):
        GraphChatNode(ScriptedClient(), context_manager=theirs)


def node_of(container: InjectQ | None) -> Any:
    """One function for several graphs, as it stands in a module."""

    async def chat(
        state: GraphState,
        config: dict[str, Any],
        client: ChatClient = Inject[ChatClient],  # type: ignore[type-abstract]
        ctx_mgr: BaseContextManager[Any] | None = Inject[BaseContextManager],
    ) -> Any:
        return await GraphChatNode(client, context_manager=ctx_mgr)(state, config)

    return injected(container)(chat) if container is not None else chat


def services(manager: BaseContextManager[Any] | None) -> tuple[InjectQ, ScriptedClient]:
    container, model = InjectQ(), ScriptedClient()
    container.bind_instance(ChatClient, model)
    if manager is not None:
        container.bind_instance(BaseContextManager, manager)
    return container, model


def test_two_graphs_with_two_containers_do_not_see_each_other() -> None:
    """A graph that is built activates its container, and a lazy proxy keeps what it found first."""
    first, first_model = services(MessageContextManager(1))
    second, second_model = services(MessageContextManager(3))

    async def converse() -> None:
        async with (
            graph_of(node_of(first), container=first) as one,
            graph_of(node_of(second), container=second) as other,
        ):
            for number in range(4):
                with first.context():  # 10xgraph itself asks the active container, for its checkpointer
                    await one.ainvoke(asking(f"first {number}"), {"thread_id": "t"})
                with second.context():
                    await other.ainvoke(asking(f"second {number}"), {"thread_id": "t"})

    asyncio.run(converse())
    assert [message.text for message in sent_to(first_model)] == ["first 3"]
    assert [each.text for each in sent_to(second_model) if each.role == "user"] == ["second 1", "second 2", "second 3"]


def test_the_container_of_a_node_holds_whichever_is_active() -> None:
    first, first_model = services(None)
    second, second_model = services(None)

    async def converse() -> None:
        async with graph_of(node_of(first), container=first) as app:
            second.activate()  # as building another graph does
            await app.ainvoke(asking("hello"), {"thread_id": "t"})

    asyncio.run(converse())
    assert (len(first_model.requests), len(second_model.requests)) == (1, 0)


def test_a_plain_lazy_default_is_asked_for_anew_by_each_node_that_is_made() -> None:
    """Without ``injected``, as the manual of 10xgraph shows it: no object of the first graph's is kept."""
    chat = node_of(None)
    first, first_model = services(MessageContextManager(1))
    second, second_model = services(None)

    async def converse() -> None:
        for container in (first, second):
            async with graph_of(chat, container=container) as app:
                await app.ainvoke(asking("one"), {"thread_id": "t"})
                await app.ainvoke(asking("two"), {"thread_id": "t"})

    asyncio.run(converse())
    assert [len(request.messages) for request in first_model.requests] == [1, 1]
    assert [len(request.messages) for request in second_model.requests] == [1, 3]


def test_what_is_not_bound_is_none_where_it_may_be_and_an_error_where_not() -> None:
    container = InjectQ()

    async def chat(
        state: str,
        client: ChatClient = Inject[ChatClient],  # type: ignore[type-abstract]
        ctx_mgr: BaseContextManager[Any] | None = Inject[BaseContextManager],
    ) -> object:
        return ctx_mgr

    with pytest.raises(WiringError, match="node 'chat': nothing is bound for parameter 'client', a ChatClient"):
        asyncio.run(injected(container)(chat)("state"))
    assert asyncio.run(injected(container)(chat)("state", client=ScriptedClient())) is None
    assert asyncio.run(injected(container)(chat)("state", ScriptedClient())) is None
    with pytest.raises(WiringError, match="container is a str"):
        injected("container")  # type: ignore[arg-type]


def test_a_service_is_looked_up_on_every_call() -> None:
    container = InjectQ()
    made: list[object] = []
    container.bind_factory(BaseContextManager, lambda: made.append(MessageContextManager(1)) or made[-1])

    @injected(container)
    async def node(ctx_mgr: BaseContextManager[Any] | None = Inject[BaseContextManager]) -> object:
        return ctx_mgr

    assert [asyncio.run(node()) for _ in range(3)] == made
    assert len(made) == 3


def test_what_an_annotation_says_of_none_counts_and_not_how_it_is_written() -> None:
    """Annotations of this module are text; those of the second node are objects."""

    @injected(InjectQ())
    async def written(
        ctx_mgr: Annotated[BaseContextManager[Any] | None, "who trims"] = Inject[BaseContextManager],
    ) -> object:
        return ctx_mgr

    async def node(ctx_mgr: Any = Inject[BaseContextManager]) -> object:
        return ctx_mgr

    node.__annotations__["ctx_mgr"] = Annotated[BaseContextManager[Any] | None, "who trims"]
    assert asyncio.run(written()) is None
    assert asyncio.run(injected(InjectQ())(node)()) is None
    node.__annotations__["ctx_mgr"] = Annotated[BaseContextManager[Any], "None of 10xgraph's"]
    with pytest.raises(WiringError, match="nothing is bound for parameter 'ctx_mgr'"):
        asyncio.run(injected(InjectQ())(node)())
    node.__annotations__["ctx_mgr"] = 'Annotated[BaseContextManager[Any], "None of 10xgraph\'s"]'
    with pytest.raises(WiringError, match="nothing is bound for parameter 'ctx_mgr'"):
        asyncio.run(injected(InjectQ())(node)())
    node.__annotations__["ctx_mgr"] = "OnlyThereForTypeCheckers | None"
    assert asyncio.run(injected(InjectQ())(node)()) is None


def test_asynchronous_generators_and_plain_functions_are_filled_in_as_well() -> None:
    container, model = services(None)

    @injected(container)
    async def generator(count: int, client: ChatClient = Inject[ChatClient]) -> AsyncIterator[Any]:  # type: ignore[type-abstract]
        for number in range(count):
            yield number, client

    @injected(container)
    def plain(client: ChatClient = Inject[ChatClient]) -> object:  # type: ignore[type-abstract]
        return client

    @injected(container)
    async def node(client: ChatClient = Inject[ChatClient]) -> object:  # type: ignore[type-abstract]
        return client

    async def read() -> list[Any]:
        return [each async for each in generator(2)]

    assert asyncio.run(read()) == [(0, model), (1, model)]
    assert plain() is model
    assert asyncio.run(node()) is model
    assert [inspect.iscoroutinefunction(each) for each in (generator, plain, node)] == [False, False, True]


def test_a_lazy_default_that_nothing_fills_in_is_refused_where_it_would_be_kept() -> None:
    """It would give the second graph what it has found for the first."""

    async def kept(state: GraphState, config: dict[str, Any], client: Any = Inject[ChatClient]) -> Any:
        return await GraphChatNode(ChatStack(client).build())(state, config)

    async def ask(node: Any, container: InjectQ) -> None:
        async with graph_of(node, container=container) as app:
            with container.context():
                await app.ainvoke(asking("hello"), {"thread_id": "t"})

    with pytest.raises(NodeError) as caught:
        asyncio.run(ask(kept, services(None)[0]))
    assert isinstance(caught.value.__cause__, WiringError)
    assert caught.value.__cause__.parameter == "client"
    assert "@injected(container)" in str(caught.value.__cause__)
    # A container of its own: in the first one, 10xgraph would find the first graph's checkpointer, and open it again.
    container, model = services(None)
    asyncio.run(ask(injected(container)(kept), container))
    assert len(model.requests) == 1


def test_our_own_node_refuses_a_lazy_default_and_finds_nothing_by_it() -> None:
    container, model = services(MessageContextManager(1))
    client: Any = Inject[ChatClient]
    manager: Any = Inject[BaseContextManager]
    with container.context():
        for options in ({"client": client}, {"client": model, "context_manager": manager}):
            with pytest.raises(WiringError, match=r"^ChatNode: .* Inject\[...\] default") as caught:
                ChatNode(**options)
            assert caught.value.parameter == [*options][-1]
    second, second_model = services(None)
    with second.context():
        assert client.requests is second_model.requests, "it had kept the first one"
