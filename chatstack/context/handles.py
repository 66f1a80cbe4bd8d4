"""Handles: by what a cleared tool result is asked for again."""

from __future__ import annotations

import hashlib

import msgspec

from chatstack.values.parts import ToolResult

_encode = msgspec.msgpack.Encoder().encode


def handle_of(result: ToolResult) -> str:
    """A short name of that very result, content and call id included: the same in every process, and nobody else's."""
    return hashlib.blake2b(_encode(result), digest_size=5).hexdigest()


def filled(placeholder: str, tool: str, tokens: int, result: ToolResult) -> str:
    """A placeholder with ``{tool}``, ``{tokens}`` and ``{handle}`` filled in; all other braces are just braces."""
    if "{" not in placeholder:
        return placeholder
    text = placeholder.replace("{tool}", tool).replace("{tokens}", f"{tokens:,}")
    return text.replace("{handle}", handle_of(result)) if "{handle}" in text else text
