"""What the nodes of graphs of other libraries have in common: they ask a client, while somebody listens."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from chatstack.client.protocol import ChatClient
from chatstack.client.wiring import Resolver
from chatstack.context.strategy import Strategy
from chatstack.nodes.chat_node import ChatNode, check_node
from chatstack.nodes.managers import BaseContextManager
from chatstack.nodes.overheard import Overheard
from chatstack.nodes.state import AgentState
from chatstack.values.requests import ChatOptions
from chatstack.values.responses import ChatResponse


@dataclass(frozen=True, slots=True, eq=False)
class GraphNode:
    """The base of a node that takes the state and the messages of another library: what it is made with, and ``ask``.

    A subclass writes ``__call__`` as its library wants it, converts what it gets, and what ``ask`` gives back. Fields
    are those of ``ChatNode``, and mean the same. Raises ``WiringError`` in the name of the subclass for what cannot be.
    """

    client: ChatClient
    _: KW_ONLY
    trim_context: bool = True
    context_manager: BaseContextManager[Any] | Strategy | None = None
    options: ChatOptions | None = None
    timeout_seconds: float | None = None
    resolve: Resolver | None = field(default=None, repr=False)
    _node: ChatNode = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_node(type(self).__name__, self.client, self.context_manager, self.trim_context)
        node = ChatNode(
            Overheard(self.client),
            trim_context=self.trim_context,
            context_manager=self.context_manager,
            options=self.options,
            timeout_seconds=self.timeout_seconds,
            resolve=self.resolve,
        )
        object.__setattr__(self, "_node", node)

    async def ask(self, state: AgentState, thread: object) -> ChatResponse:
        """The answer to that state. The graph's thread is the conversation; a thread without a name is none.

        Whoever is in ``chatstack.nodes.overheard.listener_now`` hears the answer as it arrives.
        """
        conversation_id = str(thread) if thread is not None and thread != "" else None
        return await self._node.answer(state, conversation_id=conversation_id)
