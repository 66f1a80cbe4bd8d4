"""Types: managers keep the class of a state, and what is wrong is seen before it runs."""

from __future__ import annotations

import asyncio
import typing
from dataclasses import dataclass
from pathlib import Path

import pytest

from chatstack import Message, OldestFirst
from chatstack.nodes.chat_node import ChatNode
from chatstack.nodes.managers import (
    AwaitedContextManager,
    BaseContextManager,
    MessageContextManager,
    StrategyContextManager,
)
from chatstack.nodes.state import AgentState
from chatstack.testing import ScriptedClient
from tests.type_checkers import lines_with_errors

PRELUDE = """
from __future__ import annotations
from dataclasses import dataclass
from typing import assert_type
from chatstack import Message, OldestFirst
from chatstack.nodes.chat_node import ChatNode
from chatstack.nodes.managers import BaseContextManager, MessageContextManager, StrategyContextManager
from chatstack.nodes.state import AgentState
from chatstack.testing import ScriptedClient

@dataclass(frozen=True)
class Mine:
    messages: tuple[Message, ...]

class OfMine(BaseContextManager[Mine]):
    def trim_context(self, state: Mine) -> Mine:
        return self.with_messages(state, state.messages[1:])
    async def atrim_context(self, state: Mine) -> Mine:
        return self.trim_context(state)
"""

RIGHT = """
manager = MessageContextManager(max_messages=3)
assert_type(manager.trim_context(Mine(())), Mine)
assert_type(StrategyContextManager(OldestFirst(9, 5)).trim_context(AgentState()), AgentState)
assert_type(OfMine().with_messages(Mine(()), []), Mine)
ours: BaseContextManager[Mine] = manager
node = ChatNode(ScriptedClient(), context_manager=OfMine())
async def call() -> None:
    assert_type(await node(Mine(())), Mine)
    assert_type(await manager.atrim_context(AgentState()), AgentState)
"""

WRONG = """
OfMine().trim_context(AgentState())
MessageContextManager().trim_context({"messages": []})
ChatNode(ScriptedClient(), context_manager="newest")
BaseContextManager[int]
OfMine(max_messages=3)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("source", "errors"), [(RIGHT, 0), (WRONG, 5)], ids=["right", "wrong"])
def test_a_type_checker_sees_what_is_right_and_what_is_wrong(tmp_path: Path, source: str, errors: int) -> None:
    assert len(lines_with_errors("mypy", PRELUDE + source, tmp_path)) == errors


@pytest.mark.parametrize(
    "kind",
    [
        AgentState,
        AwaitedContextManager,
        BaseContextManager,
        ChatNode,
        MessageContextManager,
        StrategyContextManager,
    ],
)
def test_the_hints_of_every_class_resolve_at_run_time(kind: type) -> None:
    """Containers read them."""
    assert typing.get_type_hints(kind) is not None
    assert kind.__doc__
    if "__init__" in vars(kind):
        typing.get_type_hints(kind.__init__)  # type: ignore[misc]


def test_a_node_and_its_manager_can_be_given_by_a_container() -> None:
    """A manager is bound under its base class, and asked for by it."""

    @dataclass
    class Agent:
        manager: BaseContextManager[AgentState]

    hint = typing.get_type_hints(Agent, localns=locals())["manager"]
    bound = {typing.get_origin(hint): MessageContextManager(1)}
    node = ChatNode(ScriptedClient(), context_manager=bound[BaseContextManager])
    assert len(asyncio.run(node(AgentState([Message.user("a")]))).messages) == 2
    assert isinstance(StrategyContextManager(OldestFirst(9, 5)), BaseContextManager)
