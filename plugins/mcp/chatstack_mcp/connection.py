"""One connection to an MCP server: a task that holds it open, as it must be opened and closed by the same one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from mcp import Client
from mcp.client.subscriptions import ListenNotSupportedError
from mcp_types import ToolListChangedNotification
from opentelemetry import context as otel

from chatstack_mcp.errors import McpServerError, reason_of

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 60.0
"""Seconds until it listens anew."""


class Connection:
    """An open connection; ``is_open`` until it is lost or closed. ``on_changed`` is called when the server says that
    it has other tools now."""

    def __init__(self, make_client: Callable[[], Client], on_changed: Callable[[], None]) -> None:
        self._on_changed = on_changed
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._holder = asyncio.create_task(self._hold(make_client), name="chatstack-mcp")

    @classmethod
    async def opened(
        cls, make_client: Callable[[], Client], on_changed: Callable[[], None], seconds: float
    ) -> Connection:
        """Open one. Raises ``McpServerError`` with the reason, or when it takes longer than that."""
        connection = cls(make_client, on_changed)
        try:
            async with asyncio.timeout(seconds):
                await asyncio.wait((connection._holder, connection._opened), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError as error:
            await connection.aclose()
            raise McpServerError(f"no answer within {seconds:g} s") from error
        except asyncio.CancelledError:
            await connection.aclose()
            raise
        if not connection._opened.done():
            failure = connection._failure()
            raise McpServerError(
                reason_of(failure) if failure is not None else "the connection was closed"
            ) from failure
        return connection

    @property
    def client(self) -> Client:
        """The client at the other end of it."""
        return self._opened.result()

    @property
    def is_open(self) -> bool:
        """True as long as it is not known to be lost."""
        return not self._closing.is_set() and not self._holder.done()

    async def aclose(self) -> None:
        """Close it, and wait until that is done."""
        self._closing.set()
        if not self._opened.done():
            self._holder.cancel()
        await asyncio.wait((self._holder,))
        self._failure()

    def _failure(self) -> BaseException | None:
        return None if self._holder.cancelled() else self._holder.exception()

    async def _hold(self, make_client: Callable[[], Client]) -> None:
        otel.attach(otel.Context())  # this task's own: the connection outlives the turn that opened it
        client = make_client()
        given = client.message_handler

        async def handler(message: object) -> None:
            if isinstance(message, ToolListChangedNotification):
                self._on_changed()
            if given is not None:
                await given(message)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

        client.message_handler = handler
        async with client:
            self._opened.set_result(client)
            listener = asyncio.create_task(self._listen(client))
            try:
                await self._closing.wait()
            finally:
                listener.cancel()
                await asyncio.wait((listener,))

    async def _listen(self, client: Client) -> None:
        """Hear of other tools, where the server tells on a stream of its own; anew when that stream ended."""
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        pause = _FIRST_PAUSE
        while True:
            try:
                async with client.listen(tools_list_changed=True) as events:
                    self._on_changed()  # nobody was told of what changed before
                    async for _ in events:
                        self._on_changed()
                        pause = _FIRST_PAUSE
            except ListenNotSupportedError:
                return
            except Exception:  # noqa: BLE001 - refused or lost, of which calls of tools tell: it listens anew
                pass
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
