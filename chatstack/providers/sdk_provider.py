"""What the clients on the official SDKs have in common: a model, a server, and an SDK client to close."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable

from chatstack.client.closing import Closing
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate


class SdkProvider(Closing, ChatFronts):
    """The innermost of a stack: a subclass says in ``_updates`` how a request is sent and its answer read.

    ``close`` closes the SDK's client; None for one that belongs to somebody else.
    """

    __slots__ = ("_close", "info", "model", "stall_seconds")

    def __init__(
        self,
        model: str,
        info: ProviderInfo,
        *,
        stall_seconds: float | None,
        close: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self.model = model
        self.info = info
        self.stall_seconds = stall_seconds
        self._close = close

    @abstractmethod
    def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        """Send the request, and yield what comes back."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        """Answer one request; returns once the answer has begun."""
        stream = await ChatStream.primed(self._updates(request))
        stream.sent = request
        return stream

    async def aclose(self) -> None:
        """Close the SDK's client, if it was made here."""
        if self._close is not None:
            await self._close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, server={self.info.server_address!r})"
