"""The innermost client where upstream speaks another wire than the caller: requests and answers are written anew."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from chatstack import ChatRequest, ChatStream, ChatUpdate
from chatstack.client.protocol import ProviderInfo
from chatstack.errors import ServerError
from chatstack.providers.wires import PROVIDERS, Form
from chatstack_gateway.converting import body_of
from chatstack_gateway.exchange import CURRENT, Exchange, is_about
from chatstack_gateway.headers import KEYS, Headers, value_of
from chatstack_gateway.positions import written
from chatstack_gateway.provider import ACCEPTS, WireProvider
from chatstack_gateway.settings import LARGE_BYTES, Settings
from chatstack_gateway.splicing import same
from chatstack_gateway.upstream import Connections, header_bytes

PATHS: dict[Form, str] = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
_VERSION = ("anthropic-version", "2023-06-01")


class ConvertingProvider(WireProvider):
    """Sends requests of callers that speak ``form`` to an upstream that speaks ``api``. By raw HTTP, too: each request
    has a key of its own, and nothing is tried twice."""

    def __init__(
        self, form: Form, api: Form, settings: Settings, connections: Connections, *, window_tokens: int | None
    ) -> None:
        super().__init__(form, settings, connections, window_tokens=window_tokens)
        self.api: Form = api
        self._info = ProviderInfo(
            name=PROVIDERS[api],
            server_address=settings.upstream.host,
            server_port=settings.upstream.port,
            window_tokens=window_tokens,
        )

    async def send(self, request: ChatRequest, /) -> ChatStream:
        exchange = CURRENT.get()
        if exchange is None or exchange.form != self.form:
            raise ServerError("the gateway's provider was asked outside of a request")
        return await ChatStream.primed(self._asked(exchange, request))

    async def _asked(self, exchange: Exchange, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        is_own = is_about(exchange.request, request)
        if not is_own:
            request = request.but(stream=False, options=request.options.but(model=exchange.request.options.model))
        is_large = len(exchange.raw) > LARGE_BYTES
        body = await asyncio.to_thread(_encoded, self.api, request) if is_large else _encoded(self.api, request)
        if is_own:
            exchange.attempts += 1
            exchange.sent_bytes = len(body)
            exchange.is_edited = not same(request.messages, exchange.request.messages)
            if exchange.is_edited and not exchange.is_bypassed:
                exchange.outcome, exchange.reason = "edited", ""
        answer = await self._opened(self._headers_for(exchange.headers), body, exchange.path, exchange.query)
        async for update in self._updates(answer, self.api):
            yield update

    def _headers_for(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        """Return the headers for upstream. To another provider goes the caller's key alone, in the header for it."""
        if PROVIDERS[self.form] == PROVIDERS[self.api]:
            return super()._headers_for(headers)
        key = next((value for name in KEYS if (value := value_of(headers, name))), "")
        secret = key[7:].strip() if key[:7].lower() == "bearer " else key
        if self.api == "messages":
            return header_bytes([("x-api-key", secret), _VERSION, *ACCEPTS])
        return header_bytes([("authorization", f"Bearer {secret}"), *ACCEPTS])

    def __repr__(self) -> str:
        return f"ConvertingProvider({self.form!r} to {self.api!r}, {self._info.server_address!r})"


def _encoded(api: Form, request: ChatRequest) -> bytes:
    return written(body_of(api, request)).encode()
