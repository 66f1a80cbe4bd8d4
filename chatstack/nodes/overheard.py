"""A client that passes requests and updates on to a listener, while a node waits for the whole response."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar, Protocol

from chatstack.client.checks import send_to
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient, LayerKind
from chatstack.client.stream import ChatStream
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate


class Listener(Protocol):
    """A listener to the calls of a node. An exception that it raises ends the call."""

    async def asked(self, request: ChatRequest) -> None: ...

    async def heard(self, update: ChatUpdate) -> None: ...


listener_now: ContextVar[Listener | None] = ContextVar("listener_now", default=None)
"""The listener to the calls of this task, if any."""


@dataclass(frozen=True, slots=True, eq=False)
class Overheard(ChatFronts):
    """Passes everything on; with a listener, the response is streamed, and each update goes to the listener first."""

    inner: ChatClient

    kind: ClassVar[LayerKind] = "plain"

    async def send(self, request: ChatRequest, /) -> ChatStream:
        listener = listener_now.get()
        if listener is None:
            return await send_to(self.inner, request)
        request = request.but(stream=True)
        await listener.asked(request)
        stream = await send_to(self.inner, request)
        told = ChatStream(_telling(stream, listener), owns=stream)
        told.sent = stream.sent
        return told


async def _telling(stream: ChatStream, listener: Listener) -> AsyncGenerator[ChatUpdate, None]:
    async with aclosing(stream):
        async for update in stream:
            await listener.heard(update)
            yield update
