"""The connection to the API's server: bytes up, bytes down, nothing added, nothing followed, nothing tried twice."""

from __future__ import annotations

import asyncio
import io
import urllib.request
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from chatstack.providers.failures import causes
from chatstack.telemetry.propagation import trace_headers
from chatstack_gateway.apart import Apart
from chatstack_gateway.headers import Headers, downward, upward, value_of
from chatstack_gateway.settings import Limits, Upstream

_OURS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that the library would add."""
_LONGEST_LINE = 64 * 1024
_LARGE_BYTES = 1024 * 1024


class Answer:
    """An answer of upstream's on its way. Read it by ``next``, which gives b"" at its end; close it in any case."""

    __slots__ = ("_alarm", "_closed", "_response", "_stall_seconds", "_waiting_since", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse, stall_seconds: float, context: Context) -> None:
        self._response = response
        self._stall_seconds = stall_seconds
        self._waiting_since: float | None = None
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(stall_seconds, self._look, loop, context, context=context)
        connection = response.connection
        protocol = connection.protocol if connection is not None else None
        self._closed = protocol.closed if protocol is not None else None
        if self._closed is not None:
            self._closed.add_done_callback(self._lost)
        self.status = response.status if 200 <= response.status <= 599 else 502
        self.headers: Headers = [(name.lower(), value) for name, value in response.raw_headers]

    @property
    def is_stream(self) -> bool:
        """True for server-sent events."""
        return value_of(self.headers, b"content-type").lower().startswith("text/event-stream")

    @property
    def has_length(self) -> bool:
        """True if its headers tell how long it is."""
        return bool(value_of(self.headers, b"content-length"))

    @property
    def encoding(self) -> str:
        """Encoding of its body; "" for plain."""
        return value_of(self.headers, b"content-encoding")

    async def next(self) -> bytes:
        """Return the next bytes, in whatever pieces they come. Raises what aiohttp does, after a silence, too."""
        self._waiting_since = asyncio.get_running_loop().time()
        try:
            return await self._response.content.readany()
        finally:
            self._waiting_since = None

    async def whole(self, most: int) -> bytes:
        """Return what is left of the body; not much more than ``most`` bytes."""
        pieces, size = list[bytes](), 0
        while size <= most and (piece := await self.next()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Give the connection up, unless the answer has been read to its end."""
        self._alarm.cancel()
        if self._closed is not None:
            self._closed.remove_done_callback(self._lost)
        self._response.close()

    def _look(self, loop: asyncio.AbstractEventLoop, context: Context) -> None:
        """End the answer if nothing has come for too long; a caller that reads slowly is not upstream's silence. It is
        one timer for the whole answer, as one for each piece is slow."""
        now = loop.time()
        left = (now if self._waiting_since is None else self._waiting_since) + self._stall_seconds - now
        if left > 0:
            self._alarm = loop.call_later(left, self._look, loop, context, context=context)
        elif self._response.content.exception() is None:
            self._response.content.set_exception(aiohttp.SocketTimeoutError("nothing has come for too long"))

    def _lost(self, closed: asyncio.Future[None]) -> None:
        """End the answer with its connection: aiohttp leaves the reader waiting where a chunk was malformed."""
        if not closed.cancelled():
            closed.exception()  # retrieved, or asyncio would report it
        content = self._response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was lost within the answer"))


class UpstreamRefusalError(Exception):
    """The cause of a ``ProviderError``: upstream's own answer, to be handed on as it came. Its text quotes nothing."""

    def __init__(self, status: int, headers: Headers, body: bytes, reason: str = "") -> None:
        super().__init__(f"upstream answered with {status}")
        self.reason = reason
        """What it says in words: for its caller, and nobody else."""
        self.status = status
        self.headers = downward([each for each in headers if each[0] != b"content-length"])
        self.body = body

    @classmethod
    def of(cls, error: BaseException) -> Self | None:
        """Return upstream's own answer among the causes of an error."""
        return next((each for each in causes(error) if isinstance(each, cls)), None)


@dataclass(slots=True)
class Connections:
    """The pool of connections to one server."""

    upstream: Upstream
    limits: Limits
    _session: aiohttp.ClientSession | None = None
    _context: Context = field(default_factory=Context)
    _proxy: str | None = field(init=False)

    def __post_init__(self) -> None:
        self._proxy = _proxy(self.upstream.base_url, self.upstream.host)  # which reads the whole environment

    async def open(
        self,
        method: str,
        path: str,
        query: str,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes | AsyncIterable[bytes],
    ) -> Answer:
        """Send a request and return its answer, once the headers have come. Raises what aiohttp does."""
        url = self.upstream.url(path, query)
        asked = {
            "headers": CIMultiDict([(name.decode("latin-1"), _text(value)) for name, value in headers]),
            "skip_auto_headers": _OURS,
            "allow_redirects": False,
            "proxy": self._proxy,
        }
        response = await Apart(self._response(method, URL(url, encoded=True), body, asked), self._context)
        return Answer(response, self.limits.stall_seconds, self._context)

    async def _response(
        self, method: str, url: URL, body: bytes | AsyncIterable[bytes], asked: dict[str, Any]
    ) -> aiohttp.ClientResponse:
        stall_seconds = self.limits.stall_seconds
        async with asyncio.timeout(stall_seconds) as limit:
            data: object = body or None
            if not isinstance(body, bytes):
                data = _patiently(body, limit, stall_seconds)
            elif len(body) > _LARGE_BYTES:
                data = io.BytesIO(body)  # written in pieces, so that other requests have the event loop
            return await self._opened().request(method, url, data=data, **asked)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.limits.connect_seconds)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30),
                timeout=timeout,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                max_line_size=_LONGEST_LINE,
                max_field_size=_LONGEST_LINE,
            )
        return self._session

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


async def _patiently(body: AsyncIterable[bytes], limit: asyncio.Timeout, seconds: float) -> AsyncIterator[bytes]:
    """Yield the body's pieces; the limit on upstream's silence begins anew with each of them."""
    async for piece in body:
        yield piece
        with suppress(RuntimeError):  # upstream has answered meanwhile
            limit.reschedule(asyncio.get_running_loop().time() + seconds)


def _text(value: bytes) -> str:
    """Return a header's value; what is no UTF-8, which is how it goes out again, is read as Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _proxy(url: str, host: str) -> str | None:
    """Return the proxy that the environment names for that server, as the SDKs would use it."""
    if urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(url.partition(":")[0])


def within_trace(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return the headers of a request that go on, with those of the current trace in the place of the caller's."""
    trace = header_bytes(list(trace_headers().items()))
    names = {name for name, _ in trace}
    return [*(each for each in upward(headers) if each[0] not in names), *trace]


def header_bytes(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Return headers as they are kept here."""
    return [(name.lower().encode("latin-1"), value.encode()) for name, value in headers]
