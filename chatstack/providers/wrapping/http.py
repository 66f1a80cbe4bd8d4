"""The parts of an HTTP library that are used here. httpx and httpx2 have them alike; neither is imported."""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol, cast

from chatstack.client.closing import close

RECODED = frozenset({"content-encoding", "content-length", "transfer-encoding"})
"""Headers that are about the bytes of a body: we pass on decoded ones, and edited ones."""

_CHUNK = 2**16


class Headers(Protocol):
    """Headers, a name more than once perhaps."""

    def __contains__(self, name: str, /) -> bool: ...

    def items(self) -> Iterable[tuple[str, str]]: ...

    def multi_items(self) -> list[tuple[str, str]]: ...

    def pop(self, name: str, /) -> str: ...


class HttpRequest(Protocol):
    """A request as the SDK has built it."""

    method: str
    url: Any
    headers: Headers
    extensions: Mapping[str, Any]

    def read(self) -> bytes: ...


class HttpResponse(Protocol):
    """A response as the SDK reads it."""

    request: HttpRequest
    status_code: int
    headers: Headers
    extensions: Mapping[str, Any]
    elapsed: timedelta

    @property
    def content(self) -> bytes: ...

    async def aread(self) -> bytes: ...

    def aiter_bytes(self) -> AsyncIterator[bytes]: ...

    async def aclose(self) -> None: ...


class HttpClient(Protocol):
    """The HTTP client of an SDK's client."""

    def send(self, request: HttpRequest, **options: Any) -> Awaitable[HttpResponse]: ...

    async def aclose(self) -> None: ...


def library(of: object) -> Any:
    """Return the HTTP library that an object is of."""
    return sys.modules[type(of).__module__.split(".")[0]]


def request_like(first: HttpRequest, body: bytes) -> HttpRequest:
    """Return a request that is another one with that body."""
    headers = [(name, value) for name, value in first.headers.multi_items() if name.lower() not in RECODED]
    make = cast("Callable[..., HttpRequest]", type(first))
    return make(first.method, first.url, headers=headers, content=body, extensions=first.extensions)


def response_like(
    first: HttpResponse,
    request: HttpRequest,
    body: AsyncIterator[bytes] | bytes,
    more: Iterable[tuple[str, str]] = (),
) -> HttpResponse:
    """Return a response that is not read yet, with the status and headers of another, and ``more``, and that body."""
    headers = [(name, value) for name, value in first.headers.multi_items() if name.lower() not in RECODED]
    headers += more
    stream = _stream_class(library(first))(body if not isinstance(body, bytes) else _once(body))
    make = cast("Callable[..., HttpResponse]", type(first))
    made = make(first.status_code, headers=headers, stream=stream, request=request, extensions=first.extensions)
    took(made, first)
    return made


def took(response: HttpResponse, first: HttpResponse) -> None:
    """Copy how long another response took, if that is over."""
    with suppress(RuntimeError):
        response.elapsed = first.elapsed


async def _once(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), _CHUNK):
        yield body[start : start + _CHUNK]


async def raising(error: Exception) -> AsyncIterator[bytes]:
    """Return a body that cannot be read."""
    raise error
    yield b""


class _Body:
    """A body as the HTTP library takes it."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._chunks

    async def aclose(self) -> None:
        await close(self._chunks)


@functools.cache
def _stream_class(module: Any) -> type[_Body]:
    return cast("type[_Body]", type("Body", (_Body, module.AsyncByteStream), {}))


def with_seam(
    http: HttpClient, send: Callable[..., Awaitable[HttpResponse]], closing: Callable[[], Awaitable[object]]
) -> HttpClient:
    """Return the same HTTP client, connections and state included, but with another ``send``, and with more to close.

    An object of the same class, as the SDKs ask for one.
    """

    async def sent(_: object, request: HttpRequest, **options: Any) -> HttpResponse:
        return await send(request, **options)

    async def aclose(_: object) -> None:
        await closing()
        await http.aclose()

    def kept_open(_: object) -> None:
        """Do nothing when collected: the SDK's class closes its connections then, which are the given client's."""

    members: dict[str, object] = {"send": sent, "aclose": aclose, "__del__": kept_open}
    members["__module__"] = type(http).__module__
    kind = type(type(http).__name__, (type(http),), members)
    made: Any = object.__new__(kind)
    made.__dict__ = http.__dict__
    return cast("HttpClient", made)
