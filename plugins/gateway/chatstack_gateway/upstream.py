"""The connection to the API's server: bytes up, bytes down, nothing added, nothing followed, nothing tried twice."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import AsyncIterable, Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from chatstack_gateway.headers import Headers, as_mapping, downward, value_of
from chatstack_gateway.settings import Limits, Upstream

_OURS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
"""Headers that the library would add."""
_LONGEST_LINE = 64 * 1024


class Answer:
    """An answer of upstream's on its way. Read it by ``next``, which gives b"" at its end; close it in any case."""

    __slots__ = ("_closed", "_response", "headers", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
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
        """Return the next bytes, in whatever pieces they come."""
        return await self._response.content.readany()

    async def whole(self, most: int, before: bytes = b"") -> bytes:
        """Return what is left of the body, behind what was read ``before``; not much more than ``most`` bytes."""
        pieces, size = [before], len(before)
        while size <= most and (piece := await self.next()):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def close(self) -> None:
        """Give the connection up, unless the answer has been read to its end."""
        if self._closed is not None:
            self._closed.remove_done_callback(self._lost)
        self._response.close()

    def _lost(self, closed: asyncio.Future[None]) -> None:
        """End the answer with its connection: aiohttp leaves the reader waiting where a chunk was malformed."""
        if not closed.cancelled():
            closed.exception()  # retrieved, or asyncio would report it
        content = self._response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the connection was lost within the answer"))


class UpstreamRefusalError(Exception):
    """The cause of a ``ProviderError``: upstream's own answer, to be handed on as it came. Its text quotes nothing."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        super().__init__(f"upstream answered with {status}")
        self.status = status
        self.headers = downward([each for each in headers if each[0] != b"content-length"])
        self.body = body

    @classmethod
    def of(cls, error: BaseException) -> Self | None:
        """Return upstream's own answer among the causes of an error."""
        seen: set[int] = set()
        current: BaseException | None = error
        while current is not None and id(current) not in seen:
            if isinstance(current, cls):
                return current
            seen.add(id(current))
            current = current.__cause__
        return None

    @property
    def told(self) -> dict[str, str]:
        """Its headers by name."""
        return dict(as_mapping(self.headers))


@dataclass(slots=True)
class Connections:
    """The pool of connections to one server."""

    upstream: Upstream
    limits: Limits
    _session: aiohttp.ClientSession | None = None

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
        response = await self._opened().request(
            method,
            URL(url, encoded=True),
            data=body if body != b"" else None,
            headers=CIMultiDict([(name.decode("latin-1"), _text(value)) for name, value in headers]),
            skip_auto_headers=_OURS,
            allow_redirects=False,
            proxy=_proxy(url, self.upstream.host),
        )
        return Answer(response)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=self.limits.connect_seconds, sock_read=self.limits.stall_seconds
            )
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


def header_bytes(headers: Sequence[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    """Return headers as they are kept here."""
    return [(name.lower().encode("latin-1"), value.encode()) for name, value in headers]
