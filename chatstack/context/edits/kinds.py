"""Kinds of tokens in a context: system, tools, text, reasoning, calls, results."""

from __future__ import annotations

from typing import Final

from chatstack.context.edits.context import Context
from chatstack.tokens.counter import char_counter
from chatstack.values.messages import Message
from chatstack.values.parts import Part, Reasoning, ToolCall, ToolResult
from chatstack.values.requests import ChatOptions

KINDS: Final[tuple[str, ...]] = ("system", "tools", "text", "reasoning", "calls", "results")


def tokens_by_kind(context: Context) -> dict[str, int]:
    """Return the tokens of a context by kind, scaled; kinds without tokens are left out.

    No message is counted again: the known size of a message of several kinds is divided by their characters. Pictures
    and files count as text, an output schema as a tool.
    """
    found: dict[str, int] = dict.fromkeys(KINDS, 0)
    _share_out(found, context.fixed_tokens, _of_options(context.request.options))
    for message, size in zip(context.messages, context.sizes, strict=True):
        kind = _only_kind(message)
        if kind:
            found[kind] += size
        else:
            _share_out(found, size, _weights(message))
    scaled = {kind: round(found[kind] * context.scale) for kind in KINDS}
    return {kind: tokens for kind, tokens in scaled.items() if tokens}


def _share_out(found: dict[str, int], tokens: int, weights: dict[str, int]) -> None:
    """Add whole tokens to each kind, by weight; the last kind gets what is left."""
    total, left = sum(weights.values()), tokens
    for kind, weight in list(weights.items())[:-1]:
        share = tokens * weight // total
        found[kind] += share
        left -= share
    found[next(reversed(weights), "text")] += left


def _only_kind(message: Message) -> str:
    """Return the one kind of a message's parts; "" if there are several."""
    if message.role == "system":
        return "system"
    found = ""
    for part in message.parts:
        kind = _KIND.get(type(part), "text")
        if found and kind != found:
            return ""
        found = kind
    return found or "text"


def _weights(message: Message) -> dict[str, int]:
    weights: dict[str, int] = {}
    for part in message.parts:
        kind = _KIND.get(type(part), "text")
        weights[kind] = weights.get(kind, 0) + 1 + _COUNTER.count_part(part)
    return weights


def _of_options(options: ChatOptions) -> dict[str, int]:
    size = _COUNTER.count_options
    instructions = size(ChatOptions(instructions=options.instructions)) if options.instructions else 0
    rest = size(options) - instructions
    return {kind: weight for kind, weight in (("system", instructions), ("tools", rest)) if weight}


_COUNTER = char_counter(4)
_KIND: Final[dict[type[Part], str]] = {Reasoning: "reasoning", ToolCall: "calls", ToolResult: "results"}
