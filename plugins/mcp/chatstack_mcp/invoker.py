"""A tool loop over the tools of MCP servers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, TypeAlias, cast

from chatstack import ChatRequest, ChatStream, FunctionInvoker, Tool, WiringError
from chatstack.client.checks import wraps_a_client
from chatstack_mcp.server import McpServer

_Made: TypeAlias = tuple[tuple[tuple[Tool[..., Any], ...], ...], FunctionInvoker]
"""The tools that were listed, by server, and the loop over them."""


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class McpInvoker(FunctionInvoker):
    """Runs the tools of MCP servers, beside those in ``tools``, as ``FunctionInvoker`` does, with its options.

    ``servers`` are asked for their tools when the first request comes, and when they have others; a server that cannot
    be reached then raises ``McpServerError``.
    """

    _: KW_ONLY
    servers: Sequence[McpServer] = ()
    _made: list[_Made] = field(init=False, repr=False, default_factory=list["_Made"])

    def __post_init__(self) -> None:
        FunctionInvoker.__post_init__(self)
        given: object = self.servers
        servers = cast("Sequence[object]", given) if isinstance(given, list | tuple) else None
        wrong = [given] if servers is None else [each for each in servers if not isinstance(each, McpServer)]
        if wrong:
            remedy = "servers=[server]" if isinstance(given, McpServer) else "servers=[McpServer(...)]"
            told = f"McpInvoker: servers must be a list of McpServer, not {type(wrong[0]).__name__}; write {remedy}"
            raise WiringError(told, layer="McpInvoker", parameter="servers")

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await (await self._loop()).send(request)

    async def _loop(self) -> FunctionInvoker:
        """Return the tool loop with the tools of now; the last one, where these are the same."""
        listed = tuple([await each.tools() for each in self.servers])
        for known, loop in self._made:
            if all(before is now for before, now in zip(known, listed, strict=True)):
                return loop
        options = {each.name: getattr(self, each.name) for each in fields(FunctionInvoker) if each.init}
        offered = [tool for tools in listed for tool in tools]
        names = Counter([*(each.name for each in self._declared), *(each.name for each in offered)])
        twice = next((name for name, count in names.items() if count > 1), None)
        if twice is not None:
            told = f"McpInvoker: two tools are called {twice!r}; give a server a prefix, McpServer(..., prefix=...)"
            raise WiringError(told, layer="McpInvoker", parameter="servers")
        options["tools"] = [*self.tools, *offered]
        loop = FunctionInvoker(options.pop("inner"), **options)
        self._made[:] = [(listed, loop)]
        return loop
