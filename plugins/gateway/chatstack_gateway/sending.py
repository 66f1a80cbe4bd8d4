"""Answers on their way to the caller: upstream's as they come, the gateway's own in the wire's form."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from starlette.types import Send

from chatstack.providers.wires import Form
from chatstack_gateway.headers import Headers, downward
from chatstack_gateway.receiving import GoneError, RefusedError
from chatstack_gateway.refusals import Refusal
from chatstack_gateway.spans import ServerSpan


async def send_head(send: Send, status: int, headers: Headers) -> None:
    """Send status and headers; those of one connection stay here."""
    await send({"type": "http.response.start", "status": status, "headers": downward(headers)})


async def send_piece(send: Send, piece: bytes) -> None:
    """Send a piece of the body; b"" ends it."""
    await send({"type": "http.response.body", "body": piece, "more_body": bool(piece)})


async def send_whole(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send an answer at once."""
    await send_head(send, status, [*headers, (b"content-length", str(len(body)).encode())])
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_refusal(send: Send, refusal: Refusal, form: Form) -> None:
    """Send the gateway's own answer in the form of that wire."""
    await send_whole(send, refusal.status, refusal.headers, refusal.body(form))


@asynccontextmanager
async def refusals_sent(send: Send, span: ServerSpan, form: Form) -> AsyncGenerator[None]:
    """Send the refusal that is raised in the block; there is nothing to send to a caller that has gone away."""
    try:
        yield
    except RefusedError as error:
        span.tell(error.refusal.status, None)
        await send_refusal(send, error.refusal, form)
    except GoneError:
        pass
