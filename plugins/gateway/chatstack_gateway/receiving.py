"""The body of a request as it comes in, within its bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.types import Receive

from chatstack_gateway.headers import Headers, value_of
from chatstack_gateway.refusals import Refusal
from chatstack_gateway.settings import Limits

_SLOWEST_BYTES_PER_SECOND = 1024
"""Pace of a body below which it is refused: one that comes a byte a minute would hold its connection for ever."""


class RefusedError(Exception):
    """A request that the gateway itself refuses."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


class GoneError(Exception):
    """The caller has gone away."""


async def body_of(receive: Receive, headers: Headers, limits: Limits) -> bytes:
    """Return the whole body. Raises ``RefusedError`` for one that is too large or too slow."""
    pieces = [piece async for piece in pieces_of(receive, headers, limits)]
    return b"".join(pieces)


async def pieces_of(receive: Receive, headers: Headers, limits: Limits) -> AsyncIterator[bytes]:
    """Yield the body in pieces. Raises ``RefusedError``, and ``GoneError`` if its sender goes away."""
    told = value_of(headers, b"content-length")
    size, waited_seconds = 0, 0.0
    clock = asyncio.get_running_loop().time
    coding = value_of(headers, b"transfer-encoding").strip().lower()
    if coding not in ("", "chunked"):
        raise RefusedError(Refusal(501, "the body is transferred in a coding other than chunked", is_final=True))
    if told.isdigit() and int(told) > limits.body_bytes:
        raise _too_large(limits)
    while True:
        # What counts is the wait for the caller, not the time that upstream takes to read what has come.
        left = limits.body_seconds + size / _SLOWEST_BYTES_PER_SECOND - waited_seconds
        since = clock()
        try:
            async with asyncio.timeout(min(limits.body_seconds, max(left, 0))):
                message = await receive()
        except TimeoutError:
            raise RefusedError(Refusal(408, f"the body did not come within {limits.body_seconds:g} seconds")) from None
        waited_seconds += clock() - since
        if message["type"] == "http.disconnect":
            raise GoneError
        piece = message.get("body", b"")
        size += len(piece)
        if size > limits.body_bytes:
            raise _too_large(limits)
        if piece:
            yield piece
        if not message.get("more_body", False):
            return


def _too_large(limits: Limits) -> RefusedError:
    told = f"the body is larger than {limits.body_bytes:,} bytes, which is this gateway's limit"
    return RefusedError(Refusal(413, told, is_final=True))
