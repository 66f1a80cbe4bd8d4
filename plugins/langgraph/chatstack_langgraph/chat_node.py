"""The node of a LangGraph graph that asks a chatstack client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, is_dataclass
from typing import Any, ClassVar, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import get_async_callback_manager_for_config
from langgraph.errors import GraphBubbleUp
from pydantic import BaseModel

from chatstack import AgentState, ChatResponse, InputError
from chatstack.nodes.graph_node import GraphNode
from chatstack.nodes.overheard import listener_now
from chatstack_langgraph.callbacks import CallbackListener
from chatstack_langgraph.messages import from_langchain, to_langchain
from chatstack_langgraph.updates import to_usage_metadata


@dataclass(frozen=True, slots=True, eq=False)
class GraphChatNode(GraphNode):
    """A node for ``builder.add_node("chat", GraphChatNode(client))``: asks the client, and adds what the turn added.

    The state's ``messages_key`` holds LangChain messages under a reducer that adds, such as ``add_messages``. What is
    sent is trimmed, for that call only, by a context manager, a strategy or the client's own layers; the state and the
    checkpointer keep every message. A context manager gets a ``chatstack.AgentState`` with the messages, and the rest
    of the graph's state in ``extra``. What it raises surfaces.

    A tool that the client runs may pause the graph by ``interrupt()``, as one of a ``ToolNode`` does.

    The conversation's id is the graph's ``thread_id``. Tokens go to ``stream_mode="messages"`` and to the callbacks of
    the run as they arrive. The node is asynchronous: use ``ainvoke`` and ``astream``.
    """

    _: KW_ONLY
    messages_key: str = "messages"

    signals: ClassVar[tuple[type[Exception], ...]] = (GraphBubbleUp,)

    async def __call__(self, state: Any, config: RunnableConfig) -> dict[str, list[BaseMessage]]:
        """What the turn added, for the reducer. Raises what the client and the context manager raise."""
        values = _values_of(state)
        if self.messages_key not in values:
            raise InputError(
                f"{type(state).__name__}: has no {self.messages_key!r}; pass messages_key=..., one of "
                f"{', '.join(map(repr, values))}"
            )
        messages = from_langchain(_listed(values.pop(self.messages_key), self.messages_key), keep_rest=False)
        callbacks = get_async_callback_manager_for_config(config)
        listener = CallbackListener(callbacks, type(self.client).__name__) if callbacks.handlers else None
        thread = config.get("configurable", {}).get("thread_id")
        return {self.messages_key: await self._answer(AgentState(messages, values), thread, listener)}

    async def _answer(self, state: AgentState, thread: object, listener: CallbackListener | None) -> list[BaseMessage]:
        token = listener_now.set(listener)
        try:
            response = await self.ask(state, thread)
        except BaseException as error:
            if listener is not None:
                await listener.failed(error)
            raise
        finally:
            listener_now.reset(token)
        added = _with_usage(to_langchain(response.messages), response)
        if listener is not None:
            for place, message in enumerate(added):
                message.id = listener.id_of(place)
            await listener.ended(added)
        return added


def _values_of(state: object) -> dict[str, Any]:
    """The fields of a state: a mapping, a pydantic model or a dataclass, as LangGraph takes them."""
    if isinstance(state, Mapping):
        return dict(cast("Mapping[str, Any]", state))
    if isinstance(state, BaseModel):
        return {name: getattr(state, name) for name in type(state).model_fields}
    if is_dataclass(state) and not isinstance(state, type):
        return {each.name: getattr(state, each.name) for each in fields(state)}
    raise InputError(f"{type(state).__name__}: is no state of a graph; expected a mapping, a dataclass or a model")


def _listed(found: object, key: str) -> Sequence[BaseMessage]:
    if isinstance(found, Sequence) and not isinstance(found, str):
        return cast("Sequence[BaseMessage]", found)
    raise InputError(f"{key}: expected a list of messages, got {type(found).__name__}; use the reducer add_messages")


def _with_usage(messages: list[BaseMessage], response: ChatResponse) -> list[BaseMessage]:
    """The tokens of the whole turn, at its last answer: sums over a history come out right."""
    answers = [each for each in messages if isinstance(each, AIMessage)]
    if answers:
        last = answers[-1]
        last.usage_metadata = to_usage_metadata(response.usage) or last.usage_metadata
        told = {"model_name": response.model, "finish_reason": response.finish_reason, "id": response.id}
        last.response_metadata = {name: value for name, value in told.items() if value}
    return messages
