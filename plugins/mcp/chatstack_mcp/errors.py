"""Errors of MCP servers, and what is made of the exceptions of their connections."""

from __future__ import annotations

from typing import cast

from chatstack import ChatStackError


class McpServerError(ChatStackError):
    """An MCP server cannot be reached, or says what cannot be used; the cause is chained."""


def reason_of(error: BaseException) -> str:
    """Return the first real reason: connections fail with groups of exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return reason_of(cast("BaseExceptionGroup[BaseException]", error).exceptions[0])
    return str(error) or type(error).__name__
