"""Tools of MCP servers as tools of chatstack.

    async with McpServer("http://127.0.0.1:8000/mcp") as files:
        client = ChatStack(provider).use(McpInvoker, servers=[files]).build()
        response = await client.get_response("What is in the notes?")

A server is connected to when its tools are needed first, and again after the connection was lost.
"""

from chatstack_mcp.errors import McpServerError as McpServerError
from chatstack_mcp.invoker import McpInvoker as McpInvoker
from chatstack_mcp.server import McpServer as McpServer

__all__ = ("McpInvoker", "McpServer", "McpServerError")
