"""The base of clients on the official SDKs: a model, a server, and an SDK client to close."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator
from functools import partial
from typing import Any, ClassVar, Generic

from chatstack.client.checks import OwnCopy
from chatstack.client.closing import Closing
from chatstack.client.fronts import ChatFronts
from chatstack.client.options import NonNegativeInt, PositiveFloat, PositiveInt
from chatstack.client.stream import ChatStream
from chatstack.providers.per_loop import PerLoop
from chatstack.providers.sdk import C, Sdk
from chatstack.providers.settings import BaseUrl, check_settings
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate


class SdkProvider(OwnCopy, Closing, ChatFronts, Generic[C]):
    """The innermost of a stack: a subclass names its SDK, and implements sending and reading in ``_updates``."""

    __slots__ = ("_clients", "info", "model", "stall_seconds")

    _sdk: ClassVar[Sdk[Any]]

    def __init__(
        self,
        model: str,
        *,
        client: object | None = None,
        api_key: str | None = None,
        base_url: BaseUrl | None = None,
        timeout_seconds: PositiveFloat | None = None,
        max_retries: NonNegativeInt | None = None,
        stall_seconds: PositiveFloat | None = 120,
        http_client: object | None = None,
        window_tokens: PositiveInt | None = None,
        cloud: str | None = None,
    ) -> None:
        owner = type(self).__name__
        check_settings(
            owner,
            model=model,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
            stall_seconds=stall_seconds,
            window_tokens=window_tokens,
        )
        asked = {
            "api_key": api_key,
            "base_url": base_url,
            "timeout": timeout_seconds,
            "max_retries": max_retries,
            "http_client": http_client,
        }
        first: C = self._sdk.client(owner, client, asked, cloud)
        # The SDK would close an HTTP client of the caller's with its own.
        is_ours = client is None and http_client is None
        settled = self._sdk.settled(first, asked) if is_ours and cloud is None else asked
        make = partial(self._sdk.client, owner, None, settled, cloud)
        self._clients: PerLoop[C] = PerLoop(first, make if is_ours else None)
        self.model = model
        self.info = self._sdk.info(first, model, window_tokens)
        self.stall_seconds = stall_seconds

    @property
    def _client(self) -> C:
        """The SDK's client for the running event loop."""
        return self._clients.current

    @abstractmethod
    def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        """Send the request, and yield the updates of its answer."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        """Answer one request; returns once the answer has begun."""
        stream = await ChatStream.primed(self._updates(request))
        stream.sent = request
        return stream

    async def aclose(self) -> None:
        """Close the SDK's client, if it was made here."""
        await self._clients.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r}, server={self.info.server_address!r})"
