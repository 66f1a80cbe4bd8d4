"""A scripted API server, of raw bytes, so that it can do what no library would let it; and gateways in front of it."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace

import uvicorn
import uvicorn.server

from chatstack_gateway.app import make_app
from chatstack_gateway.gateway import Gateway
from chatstack_gateway.serving import config_of
from chatstack_gateway.settings import Settings
from chatstack_gateway.stacks import RecipeAround


@dataclass
class Seen:
    """A request as it arrived."""

    line: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        found = [value for each, value in self.headers if each.lower() == name]
        return found[-1] if found else None


class Wire:
    """What a script writes its answer with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def raw(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def whole(self, body: bytes, status: int = 200, headers: str = "content-type: application/json\r\n") -> None:
        await self.raw(f"HTTP/1.1 {status} X\r\n{headers}content-length: {len(body)}\r\n\r\n".encode() + body)

    async def stream(self, *pieces: bytes, headers: str = "content-type: text/event-stream\r\n") -> None:
        await self.raw(f"HTTP/1.1 200 OK\r\n{headers}transfer-encoding: chunked\r\n\r\n".encode())
        for piece in pieces:
            await self.chunk(piece)
            await asyncio.sleep(0)
        await self.raw(b"0\r\n\r\n")

    async def chunk(self, piece: bytes) -> None:
        await self.raw(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")


Script = Callable[[Seen, Wire], Awaitable[None]]


@dataclass
class Upstream:
    """The server; ``script`` answers each request."""

    script: Script
    port: int = 0
    requests: list[Seen] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *fields = head.decode("latin-1").strip().split("\r\n")
                headers = [(name, value.strip()) for name, _, value in (each.partition(":") for each in fields)]
                seen = Seen(line, headers, b"")
                if seen.header("transfer-encoding") == "chunked":
                    seen.body = await _chunked(reader)
                else:
                    seen.body = await reader.readexactly(int(seen.header("content-length") or 0))
                self.requests.append(seen)
                await self.script(seen, Wire(reader, writer))
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int(await reader.readline(), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(pieces)


@contextmanager
def upstream(script: Script) -> Iterator[Upstream]:
    server = Upstream(script)
    loop = asyncio.new_event_loop()
    started, over = threading.Event(), asyncio.Event()

    async def run() -> None:
        listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=2**26)
        server.port = listening.sockets[0].getsockname()[1]
        started.set()
        await over.wait()
        listening.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    started.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
        loop.close()


def none_left(*kinds: type) -> bool:
    """Return True once no object of these kinds is alive. Tasks end a little after their request, and the collector
    does nothing while it runs in another thread."""
    until = time.monotonic() + 10
    while time.monotonic() < until:
        gc.collect()
        if not any(isinstance(each, kinds) for each in gc.get_objects()):
            return True
        time.sleep(0.05)
    return False


# uvicorn looks ten times a second whether it is to end, and gives its connections as long to close: for each test anew.
uvicorn.server.asyncio = SimpleNamespace(**{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 20)})


class Server(uvicorn.Server):
    """A server in a thread of its own."""

    gateway: Gateway
    loop: asyncio.AbstractEventLoop

    def install_signal_handlers(self) -> None: ...

    def settled(self) -> None:
        """Wait until no request is open any more."""
        until = time.monotonic() + 20
        while self.gateway.open_requests:
            assert time.monotonic() < until, "requests are still open"
            time.sleep(0.01)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.servers[0].sockets[0].getsockname()[1]}"


@contextmanager
def serving(settings: Settings, recipe_around: RecipeAround | None = None) -> Iterator[Server]:
    app = make_app(settings, recipe_around)
    config = config_of(settings, app)
    config.port = 0
    server = Server(config)
    started = threading.Event()
    startup = server.startup

    async def told(sockets: object = None) -> None:
        await startup(sockets)  # type: ignore[arg-type]
        server.loop = asyncio.get_running_loop()
        started.set()

    server.startup = told  # type: ignore[method-assign,assignment]
    failed: list[BaseException] = []

    def run() -> None:
        try:
            asyncio.run(server.serve())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            failed.append(error)
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(20)
    if failed:
        raise failed[0]
    server.gateway = app.state.gateway
    try:
        yield server
    finally:
        server.should_exit = True
        thread.join(30)
