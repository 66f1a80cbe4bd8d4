"""Handles: short names by which the model recalls a cleared tool result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from chatstack.values.handles import handle_of as handle_of
from chatstack.values.parts import ToolResult
from chatstack.values.requests import DeclaredTool, ToolDeclaration
from chatstack.values.surrogates import without_lone_surrogates

PLACEHOLDER = "[cleared]"
"""The text in the place of a cleared tool result, unless another one was chosen."""
RECALL_DESCRIPTION = (
    "Gives back the content of an earlier tool result that was cleared from this conversation to make "
    "room. Use it only if you need that content; long content comes in pages."
)
"""The description of the recall tool for the model. The tool is recognised by it, whatever its name is."""
_FIELD = re.compile(r"\{(tool|tokens|handle)\}")


def recall_name(tools: Iterable[DeclaredTool]) -> str:
    """Return the name of the recall tool among these; "" if it is not declared."""
    ours = (each for each in tools if isinstance(each, ToolDeclaration) and each.description == RECALL_DESCRIPTION)
    return next((each.name for each in ours), "")


def recall_call(recall: str, result: ToolResult) -> str:
    """Return the call of the recall tool that gives a result back."""
    return f"{recall}(handle={handle_of(result)!r})"


def filled(placeholder: str, tool: str, tokens: int, handle: Callable[[], str]) -> str:
    """Return a placeholder with ``{tool}``, ``{tokens}`` and ``{handle}`` filled in; other braces stay as they are."""

    def value(field: re.Match[str]) -> str:
        name = field.group(1)
        if name == "tool":
            return without_lone_surrogates(tool)
        return handle() if name == "handle" else f"{tokens:,}"

    return _FIELD.sub(value, placeholder)
