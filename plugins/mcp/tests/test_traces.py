"""A connection is of no trace: the turn that opened it ends long before it does."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters
from opentelemetry import context as otel

from chatstack_mcp import McpServer

DEMO = StdioServerParameters(command=sys.executable, args=[str(Path(__file__).with_name("demo_server.py")), "stdio"])


def test_what_a_server_says_later_is_no_part_of_the_turn_that_connected() -> None:
    found: list[object] = []

    async def run() -> None:
        has_heard = asyncio.Event()

        async def heard(message: object) -> None:
            found.append(otel.get_value("turn"))
            has_heard.set()

        async with McpServer(lambda: Client(DEMO, message_handler=heard)) as server:
            token = otel.attach(otel.set_value("turn", "first"))
            tools = {each.name: each for each in await server.tools()}
            otel.detach(token)
            await tools["grow"]()
            async with asyncio.timeout(20):
                await has_heard.wait()

    asyncio.run(run())
    assert set(found) == {None}
