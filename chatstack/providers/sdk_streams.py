"""Streams of the SDKs: their silences, what else than events their bodies hold, and how they end."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Protocol, cast

from chatstack.providers.extras import WireObject
from chatstack.providers.stalls import StallGuard

_JSON = "application/json"
_TAIL_SECONDS = 0.5
"""Time limit for the end of a stream, behind its last event."""


class SdkStream(Protocol):
    """A stream as both SDKs give it."""

    async def __anext__(self) -> object: ...

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def close(self) -> None: ...


class Body:
    """The body of a response that says that it is JSON, where events were asked for: kept while the SDK reads it,
    until there is an event. ``is_page`` is true of a web page, as a server may have where a base URL lacks its path."""

    def __init__(self, response: Any) -> None:
        self._bytes: bytearray | None = None
        self.is_page = False
        headers: object = getattr(response, "headers", None)
        if isinstance(headers, Mapping) and hasattr(response, "aiter_bytes"):
            kind = str(cast("Mapping[str, str]", headers).get("content-type")).partition(";")[0].strip().lower()
            self.is_page = kind == "text/html"
            if kind == _JSON:
                self._bytes = bytearray()
                self._read: Callable[[], AsyncIterator[bytes]] = response.aiter_bytes
                response.aiter_bytes = self._kept  # the SDK asks for it when it is iterated

    async def _kept(self) -> AsyncGenerator[bytes, None]:
        async for piece in self._read():
            if self._bytes is not None:
                self._bytes += piece
            yield piece

    def drop(self) -> None:
        """Keep no more of it: there are events."""
        self._bytes = None
        self.is_page = False

    def objects(self) -> Iterable[WireObject]:
        """Return the JSON object that it is, if it is one."""
        with suppress(ValueError):
            found: object = json.loads(self._bytes or b"null")
            if isinstance(found, dict):
                return (cast("WireObject", found),)
        return ()


def guarded(stream: SdkStream, provider: str, stall_seconds: float | None) -> StallGuard[object]:
    """Return the events of a stream, with a limit on the silence between them."""
    response: Any = getattr(stream, "response", None)
    counts_bytes = isinstance(getattr(response, "num_bytes_downloaded", None), int)
    return StallGuard(
        stream,
        stall_seconds=stall_seconds,
        provider=provider,
        # Routers send comments while a model thinks; the SDK hides them, the number of bytes does not.
        received=(lambda: response.num_bytes_downloaded) if counts_bytes else None,
    )


async def read_to_end(stream: SdkStream) -> None:
    """Read what may come behind the last event, so that the connection can be used again."""
    with suppress(Exception):
        async with asyncio.timeout(_TAIL_SECONDS):
            async for _ in stream:
                pass


async def close_stream(stream: SdkStream) -> None:
    """Close a stream, and what reads for it."""
    # An SDK may close the response but leave its generator to the collector, which ends it in a task of its own.
    iterator = getattr(stream, "_iterator", None)
    if inspect.isasyncgen(iterator):
        await iterator.aclose()
    await stream.close()
