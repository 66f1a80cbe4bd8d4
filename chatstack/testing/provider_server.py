"""A scripted HTTP server on loopback, in the event loop of its test, with nothing but the standard library.

It answers each request by a script, can stop in the middle of an answer, and keeps what arrived.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self, cast

import msgspec


@dataclass(frozen=True, slots=True)
class ServerReply:
    """One reply of a server: its body in the pieces that are sent one after the other, each of which may be the last.

    Made by ``json`` for a whole body, by ``events`` for server-sent events, by ``lines`` for a JSON value per line, or
    from the bytes of any other form. Text goes out as it is, in UTF-8; JSON escapes stand only for lone surrogates.
    """

    pieces: tuple[bytes, ...]
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def json(cls, body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> ServerReply:
        """Return a reply in one piece, a JSON value."""
        return cls((_encoded(body),), status, headers=headers or {})

    @classmethod
    def events(cls, *events: object, is_named: bool = False) -> ServerReply:
        """Return server-sent events, a piece each: JSON values, or text that goes out as it is (``"[DONE]"``).

        With ``is_named`` every event is called what its field ``type`` says.
        """
        return cls(tuple(event_bytes(each, is_named=is_named) for each in events), content_type="text/event-stream")

    @classmethod
    def lines(cls, *values: object) -> ServerReply:
        """Return newline-delimited JSON, a line and a piece for each value."""
        return cls(tuple(map(line_bytes, values)), content_type="application/x-ndjson")


def event_bytes(event: object, *, is_named: bool = False) -> bytes:
    """Return one server-sent event: a JSON value, or text as it is."""
    data = event.encode() if isinstance(event, str) else _encoded(event)
    name = cast("Mapping[str, object]", event).get("type") if is_named and isinstance(event, Mapping) else None
    head = f"event: {name}\n" if name else ""
    return b"%bdata: %b\n\n" % (head.encode(), data)


def line_bytes(value: object) -> bytes:
    """Return one line of newline-delimited JSON."""
    return _encoded(value) + b"\n"


def _encoded(value: object) -> bytes:
    """Return the value as JSON in UTF-8. ASCII alone would hide a client that cuts text within a character or at a
    separator that ends no line; a lone surrogate, which UTF-8 cannot hold, is escaped as JSON does it."""
    return json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Delivery:
    """The delivered part of a reply, and what follows it: the body ends in good order, the connection is cut, or
    nothing more comes until the server is released. ``reply=None`` sends nothing at all."""

    reply: ServerReply | None
    pieces: int | None = None
    then: Literal["end", "cut", "hold"] = "end"


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """A request as it arrived."""

    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def words(self) -> str:
        """All texts, names and numbers in the body, in order, a line each; the body itself if it is no JSON."""
        try:
            return "\n".join(_words(msgspec.json.decode(self.body)))
        except msgspec.DecodeError:
            return self.body.decode(errors="replace")


def _words(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
        if value.startswith(("{", "[")):  # JSON in JSON, as arguments often are
            with suppress(msgspec.DecodeError):
                yield from _words(msgspec.json.decode(value))
    elif isinstance(value, dict):
        for name, each in cast("dict[str, object]", value).items():
            yield name
            yield from _words(each)
    elif isinstance(value, list):
        for each in cast("list[object]", value):
            yield from _words(each)
    else:
        yield str(value)


class ScriptedServer:
    """A server on a free port of 127.0.0.1 while it is entered: ``async with ScriptedServer(script) as server``.

    ``script`` returns the delivery for each request, and may be replaced. ``requests`` are those that arrived,
    ``open_connections`` counts the connections that are open now. ``release()`` ends the silence of held replies.
    """

    def __init__(self, script: Callable[[ReceivedRequest], Delivery]) -> None:
        self.requests: list[ReceivedRequest] = []
        self.port = 0
        self.script = script
        self._released = asyncio.Event()
        self._writers: set[StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def base_url(self) -> str:
        """The address that a client is given."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def open_connections(self) -> int:
        """Number of connections that clients have open now."""
        return len(self._writers)

    def release(self) -> None:
        """Let held replies go on to their end."""
        self._released.set()

    async def until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition is true, for so many seconds at most; False if it never was."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not is_so():  # noqa: ASYNC110 - no event announces the condition
                    await asyncio.sleep(0.005)
        return is_so()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self.until(lambda: not self._writers, 5.0)
        await self._server.wait_closed()

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answered(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answered(self, reader: StreamReader, writer: StreamWriter) -> bool:
        """Answer one request; False if the connection must not be used again."""
        request = await _received(reader)
        self.requests.append(request)
        delivery = self.script(request)
        reply = delivery.reply
        pieces = reply.pieces[: delivery.pieces] if reply is not None else ()
        if reply is not None:
            writer.write(_head(reply))
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await writer.drain()
            await asyncio.sleep(0)  # so that pieces arrive one by one
        if delivery.then == "hold" and not await self._was_released(reader):
            return False
        if reply is None or delivery.then == "cut":
            await asyncio.sleep(0.01)  # lets the written bytes go out before the connection closes
            return False
        for piece in reply.pieces[len(pieces) :] if delivery.then == "hold" else ():
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _was_released(self, reader: StreamReader) -> bool:
        """Wait for the release; False if the client went away before it."""
        gone, released = asyncio.create_task(reader.read(1)), asyncio.create_task(self._released.wait())
        await asyncio.wait((gone, released), return_when=asyncio.FIRST_COMPLETED)
        for each in (gone, released):
            each.cancel()
        await asyncio.gather(gone, released, return_exceptions=True)
        return self._released.is_set()


async def _received(reader: StreamReader) -> ReceivedRequest:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = b""
    if headers.get("transfer-encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return ReceivedRequest(first.split(" ")[1], headers, body)


def _head(reply: ServerReply) -> bytes:
    headers = {"content-type": reply.content_type, "transfer-encoding": "chunked", **reply.headers}
    lines = [f"HTTP/1.1 {reply.status} Scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
