"""A turn for ``app.astream``: deltas as they arrive, and each message whole once it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

from tenxgraph.core.state import Message as GraphMessage
from tenxgraph.core.state import ReasoningBlock, TextBlock
from tenxgraph.runtime.adapters.llm.base_converter import BaseConverter

from chatstack import ChatRequest, ChatUpdate, InputError, Message
from chatstack.nodes.overheard import listener_now
from chatstack_tenxgraph.messages import to_tenxgraph


@dataclass(frozen=True)
class Turn:
    """A turn that has not begun: ``ask`` asks, and gives what it added.

    ``context`` is that of the node's call: when the graph reads the turn, that call has returned, and ``interrupt()``
    would find no node.
    """

    ask: Callable[[], Awaitable[list[GraphMessage]]]
    context: Context = field(default_factory=copy_context)


class TurnConverter(BaseConverter):
    """Streams a turn into a graph. What is asked runs in a task of its own, which ends with the stream."""

    async def convert_response(self, response: Any) -> GraphMessage:
        """Raises ``InputError``: a turn may add several messages."""
        raise InputError("GraphChatNode: a streamed turn is no single message; return what the node returns as it is")

    async def convert_streaming_response(  # type: ignore[override]
        self, config: dict[str, Any], node_name: str, response: Turn, meta: dict[str, Any] | None = None
    ) -> AsyncGenerator[GraphMessage, None]:
        """Deltas, each under the id of the message that it is of, then that message."""
        turn = _Overhearing()
        asking = asyncio.create_task(_asked(response, turn), context=response.context)
        try:
            while (told := await turn.queue.get()) is not None:
                yield told
            for place, message in enumerate(await asking):
                if place >= turn.handed_on:
                    yield message.model_copy(update={"message_id": turn.id_of(place)})
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def _asked(turn: Turn, listener: _Overhearing) -> list[GraphMessage]:
    listener_now.set(listener)  # in a context that ends with this task
    try:
        return await turn.ask()
    finally:
        listener.queue.put_nowait(None)


class _Overhearing:
    """Puts what a turn says into a queue. Of its messages the last one stays: it gets the usage of the whole turn."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[GraphMessage | None] = asyncio.Queue()
        self.handed_on = 0
        self._ids: list[str | int] = []
        self._done: list[Message] = []

    def id_of(self, place: int) -> str | int:
        """The id of the n-th message of the turn."""
        while len(self._ids) <= place:
            self._ids.append(GraphMessage(role="assistant", content=[]).message_id)
        return self._ids[place]

    async def asked(self, request: ChatRequest) -> None:
        return None

    async def heard(self, update: ChatUpdate) -> None:
        while self.handed_on < len(self._done) and (update.has_content or update.message_done is not None):
            (whole,) = to_tenxgraph([self._done[self.handed_on]])
            self.queue.put_nowait(whole.model_copy(update={"message_id": self.id_of(self.handed_on)}))
            self.handed_on += 1
        content: list[Any] = [TextBlock(text=update.text)] if update.text else []
        if update.reasoning:
            content.append(ReasoningBlock(summary=update.reasoning))
        if content:
            id = self.id_of(len(self._done))
            self.queue.put_nowait(GraphMessage(message_id=id, role="assistant", content=content, delta=True))
        if update.message_done is not None:
            self._done.append(update.message_done)
