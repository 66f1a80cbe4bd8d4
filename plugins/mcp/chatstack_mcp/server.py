"""An MCP server, and its tools."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection
from textwrap import shorten
from typing import Any

from mcp import Client, MCPError, StdioServerParameters
from mcp_types import Tool as McpTool

from chatstack import Tool, ToolError, WiringError
from chatstack.client.closing import Closing
from chatstack.client.options import PositiveFloat, check_arguments
from chatstack.forks import renewed_in_child
from chatstack_mcp.connection import Connection
from chatstack_mcp.contents import output_of, part_of, text_of
from chatstack_mcp.errors import McpServerError, is_lost, reason_of, was_not_run
from chatstack_mcp.parameters import renamed

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME = 64
_MOST_PAGES = 100
_LOST = "The connection to the server was lost during the call, so it is not known whether the tool has run."

_of_parents: list[object] = []
"""Connections of the processes that this one was forked from: collected here, they would end the servers there."""


class McpServer(Closing):
    """An MCP server: its URL (streamable HTTP), ``StdioServerParameters`` of a command to start, or a function that
    makes an ``mcp.Client``, for transports, credentials and callbacks of your own.

    It is connected to when its tools are needed first, so that neither a container nor ``build()`` waits for it, and
    anew when the connection was lost. While it is connected it belongs to one event loop, and other loops raise
    ``McpServerError``; when that loop ends, so does the connection. ``aclose`` works from any loop.

    ``prefix`` stands before the name of each tool; ``only`` names those that are offered, all where it is None.
    ``timeout_seconds`` bounds each call, ``connect_seconds`` connecting and listing. A call is made once more where the
    server no longer knew the session. With ``trust_hints``, so is one that met a lost connection where the server says
    that its tool is idempotent, or only reads; else the model is told that it may have run.
    """

    def __init__(
        self,
        server: str | StdioServerParameters | Callable[[], Client],
        *,
        prefix: str = "",
        only: Collection[str] | None = None,
        timeout_seconds: PositiveFloat | None = 60.0,
        connect_seconds: PositiveFloat = 30.0,
        trust_hints: bool = False,
    ) -> None:
        if isinstance(server, str) and not server.startswith(("http://", "https://")):
            told = (
                f"{server!r} is no http or https address; a command is StdioServerParameters(command=..., args=[...])"
            )
            raise WiringError(f"McpServer: {told}", parameter="server")
        if isinstance(only, str):
            raise WiringError(
                f"McpServer: only={only!r} must be a list of names; write only=[{only!r}]", parameter="only"
            )
        if not isinstance(server, str | StdioServerParameters) and not callable(server):
            told = f"server={type(server).__name__} must be a URL, StdioServerParameters, or a function"
            raise WiringError(f"McpServer: {told} that makes a Client", parameter="server")
        seconds = {"timeout_seconds": timeout_seconds, "connect_seconds": connect_seconds}
        check_arguments(McpServer, prefix=prefix, only=only, trust_hints=trust_hints, **seconds)
        self._server = server
        self._prefix = prefix
        self._only = None if only is None else frozenset(only)
        self._timeout_seconds = timeout_seconds
        self._connect_seconds = connect_seconds
        self._trust_hints = trust_hints
        self._connection: Connection | None = None
        self._listed: tuple[Tool[..., Any], ...] | None = None
        self._changes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._busy = asyncio.Lock()
        self._is_closed = False
        renewed_in_child(self)

    def after_fork(self) -> None:
        """Leave the connection of the parent to it: the next call in this process connects anew."""
        _of_parents.append((self._connection, self._loop))
        self._connection = self._loop = None
        self._busy = asyncio.Lock()

    def __repr__(self) -> str:
        return f"McpServer({self._told})"

    async def aclose(self) -> None:
        """Close the connection, and end a server that was started. Raises ``McpServerError`` where another event loop,
        which is not running, has it open."""
        self._is_closed = True
        home = self._loop
        if home is None or home.is_closed():
            self._connection = None
        elif home is asyncio.get_running_loop():
            await self._close()
        elif home.is_running():  # in another thread, as that of synchronous clients
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._close(), home))
        elif self._is_in_use:
            raise McpServerError(f"{self!r} is connected on another event loop, which is not running; close it there")

    async def _close(self) -> None:
        async with self._busy:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.aclose()

    async def tools(self) -> tuple[Tool[..., Any], ...]:
        """Return its tools, by name; listed once, and again after the server said that they have changed, or has been
        connected to anew. Raises ``McpServerError``."""
        connection = await self._connected()
        try:
            return await self._tools_over(connection)
        except McpServerError as error:
            if connection.is_open and not is_lost(error.__cause__):
                raise
        await connection.aclose()
        return await self._tools_over(await self._connected())

    async def _tools_over(self, connection: Connection) -> tuple[Tool[..., Any], ...]:
        listed = self._listed
        if listed is None:
            async with self._busy:
                listed, changes = self._listed, self._changes
                if listed is None:
                    listed = await self._list(connection.client)
                    if self._changes == changes:
                        self._listed = listed
        return listed

    @property
    def _is_in_use(self) -> bool:
        return self._busy.locked() or (self._connection is not None and self._connection.is_open)

    def _move_in(self) -> None:
        """Belong to the running event loop from now on. A connection of a loop that was closed has ended with it."""
        home, running = self._loop, asyncio.get_running_loop()
        if home is running:
            return
        if home is not None and not home.is_closed() and self._is_in_use:
            raise McpServerError(f"{self!r} is in use on another event loop; make an McpServer for each loop")
        self._loop, self._busy, self._connection = running, asyncio.Lock(), None

    async def _connected(self) -> Connection:
        self._move_in()
        if self._connection is not None and self._connection.is_open:
            return self._connection
        async with self._busy:
            if self._is_closed:
                raise McpServerError(f"{self!r} was closed")
            if self._connection is not None and self._connection.is_open:
                return self._connection
            if self._connection is not None:
                await self._connection.aclose()
                self._connection = None
            try:
                self._connection = await Connection.opened(self._client, self._changed, self._connect_seconds)
            except McpServerError as error:
                raise McpServerError(f"{self!r} cannot be reached: {error}") from error
            self._changed()
            return self._connection

    def _client(self) -> Client:
        return self._server() if callable(self._server) else Client(self._server)

    def _changed(self) -> None:
        self._listed = None
        self._changes += 1

    @property
    def _told(self) -> str:
        if isinstance(self._server, StdioServerParameters):
            return repr(self._server.command)  # its arguments may hold secrets
        return repr(self._server.partition("?")[0].rpartition("@")[2]) if isinstance(self._server, str) else "..."

    async def _list(self, client: Client) -> tuple[Tool[..., Any], ...]:
        try:
            async with asyncio.timeout(self._connect_seconds):
                listed = await _pages(client)
        except Exception as error:
            raise McpServerError(f"{self!r}: its tools cannot be listed: {reason_of(error)}") from error
        offered = [each for each in listed if self._only is None or each.name in self._only]
        missing = sorted((self._only or frozenset()) - {each.name for each in offered})
        if missing:
            known = ", ".join(each.name for each in listed)
            raise McpServerError(f"{self!r}: only={missing[0]!r} is not among its tools: {known}")
        named: dict[str, McpTool] = {}
        for each in offered:
            if not each.name:
                raise McpServerError(f"{self!r}: one of its tools has no name; name the others in only=")
            name = _NOT_IN_NAMES.sub("_", self._prefix + each.name)[:_LONGEST_NAME]
            other = named.setdefault(name, each)
            if other.name != each.name:
                raise McpServerError(f"{self!r}: two of its tools would be called {name!r}; name one of them in only=")
            if other != each:
                raise McpServerError(f"{self!r} lists two different tools named {name!r}; name the others in only=")
        return tuple(
            self._tool(name, named[name]) for name in sorted(named)
        )  # another order would cost the prompt cache

    def _tool(self, name: str, listed: McpTool) -> Tool[..., object]:
        hints = listed.annotations if self._trust_hints else None
        may_repeat = hints is not None and bool(hints.idempotent_hint or hints.read_only_hint)
        schema, own = renamed(listed.input_schema)

        async def call(**arguments: object) -> object:
            given = {own.get(each, each): value for each, value in arguments.items()}
            return await self._call(listed.name, given, may_repeat=may_repeat)

        return Tool.from_schema(
            call,
            name=name,
            description=listed.description or listed.title or "",
            parameters={"type": "object", **schema},
            timeout_seconds=self._timeout_seconds,
            idempotent=may_repeat,
        )

    async def _call(
        self, name: str, arguments: dict[str, object], *, may_repeat: bool, is_repeated: bool = False
    ) -> object:
        try:
            connection = await self._connected()
        except McpServerError as error:
            raise ToolError(
                f"The server of this tool cannot be reached: {reason_of(error.__cause__ or error)}"
            ) from error
        try:
            result = await connection.client.call_tool(name, arguments)
        except MCPError as error:
            if is_lost(error):
                await connection.aclose()
                if not is_repeated and (may_repeat or was_not_run(error)):
                    return await self._call(name, arguments, may_repeat=may_repeat, is_repeated=True)
                if not was_not_run(error):
                    raise ToolError(_LOST) from error
            raise ToolError(f"The server refused the call: {error}") from error
        except (RuntimeError, ValueError) as error:  # of a result that is not what the server or the protocol declares
            raise ToolError(f"The server's answer cannot be used: {shorten(reason_of(error), 400)}") from error
        if result.is_error:
            raise ToolError(text_of([part_of(each) for each in result.content]) or "The tool failed.")
        return output_of(result)


async def _pages(client: Client) -> list[McpTool]:
    found: list[McpTool] = []
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        found += page.tools
        if not page.next_cursor or page.next_cursor == cursor:
            return found
        cursor = page.next_cursor
    raise McpServerError(f"more than {_MOST_PAGES} pages")
