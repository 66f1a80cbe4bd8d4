"""Handles: short names by which the model recalls a cleared tool result."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from difflib import get_close_matches

from chatstack.client.wiring import wrong
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
_LIKE_A_FIELD = re.compile(r"\{\s*(\w+)\s*(?:[:!][^{}]*)?\}")
_CLOSE = 0.75
"""Similarity from which on a word in braces is a misspelt field; all other braces are braces."""


def recall_name(tools: Iterable[DeclaredTool]) -> str:
    """Return the name of the recall tool among these; "" if it is not declared."""
    ours = (each for each in tools if isinstance(each, ToolDeclaration) and each.description == RECALL_DESCRIPTION)
    return next((each.name for each in ours), "")


def recall_call(recall: str, result: ToolResult) -> str:
    """Return the call of the recall tool that gives a result back."""
    return f"{recall}(handle={handle_of(result)!r})"


def check_placeholder(owner: str, placeholder: str) -> None:
    """Raise ``WiringError`` for a misspelt field, ``{tol}``, and for one with a format, ``{tokens:,}``."""
    for found in _LIKE_A_FIELD.finditer(_FIELD.sub("", placeholder)):
        for meant in get_close_matches(found[1].lower(), ("tool", "tokens", "handle"), 1, _CLOSE):
            told = f"text, whose fields are {{tool}}, {{tokens}} and {{handle}}: write {{{meant}}} for {found[0]}"
            raise wrong(owner, "placeholder", placeholder, told)


def filled(placeholder: str, tool: str, tokens: int, handle: Callable[[], str]) -> str:
    """Return a placeholder with ``{tool}``, ``{tokens}`` and ``{handle}`` filled in; other braces stay as they are."""

    def value(field: re.Match[str]) -> str:
        name = field.group(1)
        if name == "tool":
            return without_lone_surrogates(tool)
        return handle() if name == "handle" else f"{tokens:,}"

    return _FIELD.sub(value, placeholder)
