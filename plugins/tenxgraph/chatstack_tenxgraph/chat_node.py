"""The node of a 10xgraph graph that asks a chatstack client."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from tenxgraph.core.state import AgentState as GraphState
from tenxgraph.core.state import Message as GraphMessage
from tenxgraph.core.state import TokenUsages
from tenxgraph.runtime.adapters.llm.model_response_converter import ModelResponseConverter

from chatstack import AgentState, ChatResponse, InputError, Usage
from chatstack.nodes.graph_node import GraphNode
from chatstack_tenxgraph.injection import resolved
from chatstack_tenxgraph.messages import from_tenxgraph, to_tenxgraph
from chatstack_tenxgraph.streaming import Turn, TurnConverter


@dataclass(frozen=True, slots=True, eq=False)
class GraphChatNode(GraphNode):
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

    def __post_init__(self) -> None:
        for name in ("client", "context_manager"):
            object.__setattr__(self, name, resolved(getattr(self, name)))
        GraphNode.__post_init__(self)

    async def __call__(self, state: GraphState, config: dict[str, Any]) -> list[GraphMessage] | ModelResponseConverter:
        """What the turn added. Raises what the client and the context manager raise."""
        if not isinstance(state, GraphState):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(f"GraphChatNode: state is a {type(state).__name__}, not an AgentState of tenxgraph")
        turn = functools.partial(self._turn, state, config)
        return ModelResponseConverter(Turn(turn), TurnConverter()) if config.get("is_stream") else await turn()

    async def _turn(self, state: GraphState, config: dict[str, Any]) -> list[GraphMessage]:
        extra = {name: getattr(state, name) for name in type(state).model_fields if name != "context"}
        asked = AgentState(from_tenxgraph(state.context, keep_rest=False), extra)
        response = await self.ask(asked, config.get("thread_id"))
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
