"""An MCP server of its own process, for tests: ``demo_server.py stdio`` or ``... streamable-http PORT [grown]``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import CONNECTION_CLOSED, ToolAnnotations

server = MCPServer("demo")


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def refuse() -> str:
    """Fail."""
    raise ValueError("no such note")


_asked = list[str]()


@server.tool(annotations=ToolAnnotations(idempotentHint=True))
def ration(note: str) -> str:
    """Answer with an error of the protocol."""
    _asked.append(note)
    raise MCPError(CONNECTION_CLOSED, f"used up, asked {len(_asked)} times")


@server.tool()
async def sleep(seconds: float, note: str) -> str:
    """Sleep, and leave a note if that was cancelled."""
    try:
        await anyio.sleep(seconds)
    except BaseException:
        leave(note, "cancelled")
        raise
    return "slept"


def leave(note: str, text: str) -> None:
    """Write a file for the test to find."""
    Path(note).write_text(text)


@server.tool()
def die_once(note: str) -> str:
    """Die in the first call; a file tells the next one."""
    return _died(note)


@server.tool(name="die/once.safely", annotations=ToolAnnotations(idempotentHint=True))
def die_once_safely(note: str) -> str:
    """Die in the first call, too."""
    return _died(note)


def _died(note: str) -> str:
    if Path(note).exists():
        return "alive again"
    Path(note).write_text("died")
    os._exit(3)


@server.tool(structured_output=False)
def picture() -> list[Any]:
    """A text and a picture."""
    return ["one pixel", Image(data=b"png", format="png")]


@server.tool()
async def grow(ctx: Context) -> str:
    """Add a tool."""
    _grow()
    await ctx.session.send_tool_list_changed()  # as it was told before 2026
    await ctx.notify_tools_changed()
    return "grown"


def _grow() -> None:
    server.add_tool(_grown, name="a_new_one", description="Is new.")


def _grown() -> str:
    return "new"


if __name__ == "__main__":
    if "grown" in sys.argv:
        _grow()
    server.run(transport=sys.argv[1], **({"port": int(sys.argv[2])} if len(sys.argv) > 2 else {}))  # type: ignore[call-overload]
