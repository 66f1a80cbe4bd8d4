"""The node of a 10xgraph graph that asks a chatstack client."""

from __future__ import annotations

import functools
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from tenxgraph.core.state import AgentState as GraphState
from tenxgraph.core.state import Message as GraphMessage
from tenxgraph.core.state import TokenUsages
from tenxgraph.runtime.adapters.llm.model_response_converter import ModelResponseConverter

from chatstack import (
    AgentState,
    BaseContextManager,
    ChatClient,
    ChatNode,
    ChatOptions,
    ChatResponse,
    InputError,
    Resolver,
    Strategy,
    Usage,
    WiringError,
)
from chatstack.nodes.overheard import Overheard
from chatstack_tenxgraph.injection import resolved
from chatstack_tenxgraph.messages import from_tenxgraph, to_tenxgraph
from chatstack_tenxgraph.streaming import Turn, TurnConverter


@dataclass(frozen=True, slots=True, eq=False)
class GraphChatNode:
    """A node for ``graph.add_node("chat", GraphChatNode(client))``: asks the client, and adds what the turn added.

    What is sent is trimmed, for that call only, by a context manager, a strategy or the client's own layers; the state
    and the checkpointer keep every message, as long as the graph itself is given no context manager of 10xgraph's. A
    context manager gets a ``chatstack.AgentState`` with the messages, and the fields of the graph's state in ``extra``.
    What it raises surfaces: it is the cause of the graph's ``NodeError``.

    ``context_manager`` and ``client`` may be ``Inject[...]`` defaults of the node function that makes this; they stand
    for what the container that is active then has, and for nothing where it has nothing. Where several graphs run in
    one process, decorate that function with ``@injected(container)``: else all of them get what one container has.

    The conversation's id is the config's ``thread_id``. ``app.astream`` yields deltas as they arrive.
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
        for name in ("client", "context_manager"):
            object.__setattr__(self, name, resolved(getattr(self, name)))
        if isinstance(self.client, type) or not callable(getattr(self.client, "send", None)):
            raise WiringError(
                f"GraphChatNode: client is a {type(self.client).__name__}; pass a chat client, which has send()",
                layer="GraphChatNode",
                parameter="client",
            )
        node = ChatNode(
            Overheard(self.client),
            trim_context=self.trim_context,
            context_manager=self.context_manager,
            options=self.options,
            timeout_seconds=self.timeout_seconds,
            resolve=self.resolve,
        )
        object.__setattr__(self, "_node", node)

    async def __call__(self, state: GraphState, config: dict[str, Any]) -> list[GraphMessage] | ModelResponseConverter:
        """What the turn added. Raises what the client and the context manager raise."""
        if not isinstance(state, GraphState):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"GraphChatNode: state is a {type(state).__name__}, not an AgentState of tenxgraph")
        turn = functools.partial(self._turn, state, config)
        return ModelResponseConverter(Turn(turn), TurnConverter()) if config.get("is_stream") else await turn()

    async def _turn(self, state: GraphState, config: dict[str, Any]) -> list[GraphMessage]:
        extra = {name: getattr(state, name) for name in type(state).model_fields if name != "context"}
        asked = AgentState(from_tenxgraph(state.context, keep_rest=False), extra)
        thread = config.get("thread_id")
        conversation_id = str(thread) if thread is not None and thread != "" else None
        response = await self._node.answer(asked, conversation_id=conversation_id)
        return _with_usage(to_tenxgraph(response.messages), response)


def _with_usage(messages: list[GraphMessage], response: ChatResponse) -> list[GraphMessage]:
    """The tokens of the whole turn, at its last answer: sums over a history come out right."""
    last = next((each for each in reversed(messages) if each.role == "assistant"), None)
    if last is not None and response.usage.total_tokens:
        last.usages = _usages(response.usage)
    if last is not None:
        told = {"model": response.model, "finish_reason": response.finish_reason}
        last.metadata = {**{name: value for name, value in told.items() if value}, **last.metadata}
    return messages


def _usages(usage: Usage) -> TokenUsages:
    return TokenUsages(
        completion_tokens=usage.output_tokens,
        prompt_tokens=usage.input_tokens,
        total_tokens=usage.total_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cache_creation_input_tokens=usage.cache_write_tokens,
        cache_read_input_tokens=usage.cache_read_tokens,
    )
