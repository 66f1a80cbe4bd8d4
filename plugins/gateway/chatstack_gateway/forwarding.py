"""Routes around the three: forwarded as they come, both ways."""

from __future__ import annotations

from collections.abc import AsyncIterable
from dataclasses import dataclass

import aiohttp
from starlette.types import Receive, Scope, Send

from chatstack.providers.failures import transport_failure
from chatstack_gateway.admission import refused, with_key
from chatstack_gateway.gateway import Gateway
from chatstack_gateway.headers import path_of, value_of
from chatstack_gateway.receiving import GoneError, RefusedError, pieces_of
from chatstack_gateway.refusals import refusal_of
from chatstack_gateway.sending import refusals_sent, send_head, send_piece
from chatstack_gateway.spans import ServerSpan, server_span
from chatstack_gateway.upstream import within_trace


@dataclass(frozen=True, slots=True)
class ForwardedRoute:
    """An ASGI application that forwards everything it gets."""

    gateway: Gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = scope["headers"]
        is_anthropic = bool(value_of(headers, b"anthropic-version"))
        with server_span(scope["method"], scope["path"], "/v1/{path}", headers) as span:
            async with refusals_sent(send, span, "messages" if is_anthropic else "chat"):
                refusal = refused(self.gateway.settings, headers)
                if refusal is not None:
                    raise RefusedError(refusal)
                has_body = value_of(headers, b"content-length") not in ("", "0") or any(
                    name == b"transfer-encoding" for name, _ in headers
                )
                body = pieces_of(receive, headers, self.gateway.settings.limits) if has_body else b""
                await forward(self.gateway, scope, send, body, span, is_anthropic=is_anthropic)


async def forward(
    gateway: Gateway,
    scope: Scope,
    send: Send,
    body: bytes | AsyncIterable[bytes],
    span: ServerSpan,
    *,
    is_anthropic: bool,
) -> None:
    """Send a request on as it came, and its answer back as it comes. Raises ``RefusedError`` if upstream cannot be
    reached."""
    headers = within_trace(with_key(gateway.settings, scope["headers"], is_anthropic=is_anthropic))
    if not isinstance(body, bytes):
        length = value_of(scope["headers"], b"content-length")
        headers += [(b"content-length", length.encode())] if length else []
    query = scope["query_string"].decode("latin-1")
    try:
        answer = await gateway.connections.open(scope["method"], path_of(scope), query, headers, body)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        cause = error.__cause__
        if isinstance(cause, RefusedError | GoneError):  # of the body that is being read meanwhile
            raise cause from None
        raise RefusedError(refusal_of(transport_failure("upstream", error) or error)) from error
    try:
        span.tell(answer.status, None)
        await send_head(send, answer.status, answer.headers)
        while piece := await answer.next():
            await send_piece(send, piece)
        await send_piece(send, b"")
    finally:
        answer.close()
