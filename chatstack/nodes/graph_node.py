"""The common base of the nodes for other graph libraries: they call a client while a listener may follow."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

from chatstack.client.closing import Closing
from chatstack.client.protocol import ChatClient
from chatstack.client.wiring import Resolver
from chatstack.context.strategy import Strategy
from chatstack.nodes.applying import check_call
from chatstack.nodes.chat_node import ChatNode, check_node
from chatstack.nodes.managers import BaseContextManager
from chatstack.nodes.overheard import Overheard
from chatstack.nodes.state import AgentState
from chatstack.stack.recipe import ChatStack
from chatstack.telemetry.tracer import needs_tracer
from chatstack.tools.execution import graph_signals
from chatstack.values.requests import ChatOptions
from chatstack.values.responses import ChatResponse


@dataclass(frozen=True, slots=True, eq=False)
class GraphNode(Closing):
    """The base of a node that takes the state and the messages of another library: its fields, and ``ask``.

    A subclass writes ``__call__`` in its library's form, and converts the input of ``ask`` and its result. Its
    ``signals`` are the exceptions by which a tool pauses the graph: no tool loop in the client takes them for failures.
    Fields are those of ``ChatNode``, and mean the same: make a node with a strategy once. Raises ``WiringError``, in
    the name of the subclass, for invalid fields.
    """

    client: ChatClient
    _: KW_ONLY
    trim_context: bool | None = None
    context_manager: BaseContextManager[Any] | Strategy | None = None
    options: ChatOptions | None = None
    timeout_seconds: float | None = None
    resolve: Resolver | None = field(default=None, repr=False)
    _node: ChatNode = field(init=False, repr=False)

    signals: ClassVar[tuple[type[Exception], ...]] = ()

    def __post_init__(self) -> None:
        check_node(type(self).__name__, self.client, self.context_manager, self.trim_context)
        check_call(type(self).__name__, self.options, self.timeout_seconds)
        # The tracer goes inside, where it sees that a call is streamed for a listener.
        client = ChatStack(self.client).build(self.resolve) if needs_tracer(self.client) else self.client
        node = ChatNode(
            Overheard(client),
            trim_context=self.trim_context,
            context_manager=self.context_manager,
            options=self.options,
            timeout_seconds=self.timeout_seconds,
            resolve=self.resolve,
        )
        object.__setattr__(self, "_node", node)

    async def aclose(self) -> None:
        """End the background work of the layer that a strategy was given."""
        await self._node.aclose()

    async def ask(self, state: AgentState, thread: object) -> ChatResponse:
        """Return the response to that state. The graph's thread is the conversation; a thread without a name is none.

        The listener in ``chatstack.nodes.overheard.listener_now`` gets the response as it arrives.
        """
        conversation_id = str(thread) if thread is not None and thread != "" else None
        token = graph_signals.set(self.signals)
        try:
            return await self._node.answer(state, conversation_id=conversation_id)
        finally:
            graph_signals.reset(token)
