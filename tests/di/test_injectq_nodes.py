"""Context managers and clients for the nodes of a graph, from an injectq container."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from injectq import Inject, InjectQ, inject

from chatstack import (
    AgentState,
    BaseContextManager,
    ChatClient,
    ChatNode,
    ChatStack,
    ContextMemory,
    ContextWindow,
    ContextWindowGuard,
    Message,
    MessageContextManager,
    StackContextManager,
    StrategyContextManager,
    SummaryClient,
    TokenCounter,
    Truncate,
    WiringError,
)
from chatstack.di.injectq import install, install_context_manager
from chatstack.testing import ScriptedClient
from tests.di.app import Journal, Provider, Words, recipe


def trimmed_by(container: InjectQ, state: AgentState) -> AgentState:
    """The node of the seed, with injectq's decorator."""

    @inject
    async def node(
        state: AgentState,
        manager: BaseContextManager[AgentState] | None = Inject[BaseContextManager],  # type: ignore[assignment,type-arg]
    ) -> AgentState:
        return await manager.atrim_context(state) if manager else state

    with container.context():
        return asyncio.run(node(state))


LONG = AgentState(tuple(Message.user(f"question {number} " * 20) for number in range(30)))


@pytest.mark.parametrize(
    ("manager", "kind"),
    [
        (MessageContextManager(max_messages=2), MessageContextManager),
        (Truncate(max_tokens=200), StrategyContextManager),
        (ContextWindow(max_tokens=200, keep_recent_turns=1), StrategyContextManager),
        (ChatStack(ScriptedClient(["short"])).use(Truncate, max_tokens=200), StackContextManager),
    ],
    ids=["manager", "strategy", "window", "stack"],
)
def test_a_node_gets_its_context_manager_injected(manager: Any, kind: type) -> None:
    container = InjectQ()
    container.bind_instance(TokenCounter, Words())
    container.bind_instance(SummaryClient, ScriptedClient(["in short"]))
    install_context_manager(container, manager)
    left = trimmed_by(container, LONG)
    assert 0 < len(left.messages) < len(LONG.messages)
    made = container.get(BaseContextManager)
    assert type(made) is kind
    assert made is container.get(BaseContextManager) is asyncio.run(container.aget(BaseContextManager))
    assert made is manager or kind is not MessageContextManager


def test_a_strategy_is_made_into_a_manager_with_what_the_container_has() -> None:
    container, memory, counter = InjectQ(), ContextMemory(), Words()
    cheap = ScriptedClient()
    for kind, service in ((TokenCounter, counter), (ContextMemory, memory), (SummaryClient, cheap)):
        container.bind_instance(kind, service)
    install_context_manager(container, ContextWindow(max_tokens=200))
    manager = container.get(BaseContextManager)
    assert (manager.counter, manager.memory, manager.client) == (counter, memory, cheap)


def test_a_recipe_is_made_into_a_manager_with_what_the_container_has() -> None:
    class Heavy(Words):
        def count_text(self, text: str) -> int:
            return 1_000 if text else 0

    state = AgentState(tuple(Message.user("brief") for _ in range(5)))
    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=3_000, prune_on_overflow=True)
    heavy, light = InjectQ(), InjectQ()
    heavy.bind(TokenCounter, Heavy)
    for container in (heavy, light):
        install_context_manager(container, stack)
    assert len(trimmed_by(heavy, state).messages) == 2
    assert trimmed_by(light, state) is state


def test_a_node_without_a_manager_gets_one_that_is_false() -> None:
    assert trimmed_by(InjectQ(), LONG) is LONG


def test_a_node_takes_its_client_and_its_manager_from_the_container() -> None:
    container, provider = InjectQ(), Provider()
    container.bind_instance(Journal, Journal())
    install(container, recipe(provider))
    install_context_manager(container, MessageContextManager(max_messages=2))
    node = ChatNode(container.get(ChatClient), context_manager=container.get(BaseContextManager))
    state = asyncio.run(node(AgentState((Message.user("a"), Message.user("b"), Message.user("c")))))
    assert [message.text for message in provider.requests[0].messages] == ["b", "c"]
    assert [message.text for message in state.messages] == ["a", "b", "c", "b c"]


@pytest.mark.parametrize("manager", [MessageContextManager, object(), ScriptedClient()])
def test_what_is_no_context_manager_is_not_installed(manager: Any) -> None:
    with pytest.raises(WiringError, match=r"install_context_manager: manager is .*; pass an instance of"):
        install_context_manager(InjectQ(), manager)


def test_another_manager_replaces_the_first_until_that_has_been_handed_out() -> None:
    container, first, other = InjectQ(), MessageContextManager(max_messages=1), MessageContextManager(max_messages=2)
    install_context_manager(container, other)
    install_context_manager(container, first)
    assert container.get(BaseContextManager) is first
    with pytest.raises(WiringError, match="this container has handed out its BaseContextManager already"):
        install_context_manager(container, other)
    with container.override(BaseContextManager, other):
        assert container.get(BaseContextManager) is other
    assert container.get(BaseContextManager) is first
