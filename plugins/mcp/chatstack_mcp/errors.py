"""Errors of MCP servers, and what is made of the exceptions of their connections."""

from __future__ import annotations

import re
from typing import cast

from mcp import MCPError
from mcp_types import CONNECTION_CLOSED, INTERNAL_ERROR

from chatstack import ChatStackError


class McpServerError(ChatStackError):
    """An MCP server cannot be reached, or says what cannot be used; the cause is chained."""


def reason_of(error: BaseException) -> str:
    """Return the first real reason: connections fail with groups of exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return reason_of(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return str(error) or type(error).__name__


_CLOSED = re.compile(
    r"connection closed|SSE stream (ended|failed)\b.*|(bad request: )?(invalid|unknown)( or expired)? session( id)?\.?",
    re.IGNORECASE | re.DOTALL,
)
"""A lost connection in the words of ``mcp``, which gives it a code that servers have for errors of their own; and what
servers say with that code of a session that they do not know."""
_NO_SESSION = re.compile(
    r"(bad request: |not found: )?"
    r"(session (terminated|not found|expired|not found or expired)|no valid session( id( provided)?)?"
    r"|server not initialized)\.?",
    re.IGNORECASE,
)
"""An HTTP 404 or 400 for the session of a connection, in the words of ``mcp`` and of servers: no code tells it. A tool
may speak of sessions of its own in a longer text: it has run."""


def is_lost(error: BaseException | None) -> bool:
    """True for what a call meets whose connection was lost, or its session at the server: another one is needed."""
    if not isinstance(error, MCPError):
        return False
    is_closed = error.code == CONNECTION_CLOSED and _CLOSED.fullmatch(error.message) is not None
    return is_closed or _NO_SESSION.fullmatch(error.message) is not None


def was_not_run(error: MCPError) -> bool:
    """True if the server knew no session for the call, so that nothing has run."""
    return error.code != INTERNAL_ERROR and _NO_SESSION.fullmatch(error.message) is not None
