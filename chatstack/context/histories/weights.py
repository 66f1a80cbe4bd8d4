"""Weights: the estimated size in bytes of messages and of what is kept for them."""

from __future__ import annotations

from typing import cast

from chatstack.values.messages import Message
from chatstack.values.parts import Text, ToolCall, ToolResult

HISTORY_BYTES = 4_000
"""Estimated bytes of a history, without its messages."""
_PART_BYTES = 50
_CALL_BYTES = 4 * _PART_BYTES
_MESSAGE_BYTES = 350
"""Estimated bytes of a message with one part, without its text but with what is kept for it: sizes, digests, place."""


def weight_of(message: Message) -> int:
    """Estimate the size of a message in bytes: its text, and what is kept beside it."""
    weight = _MESSAGE_BYTES + len(message.extra_json)
    for part in message.parts:
        if type(part) is Text:  # nearly all of them are texts, calls and results
            weight += _PART_BYTES + part.text.__sizeof__()
        elif type(part) is ToolCall:
            weight += _CALL_BYTES + part.arguments.__sizeof__()
        elif type(part) is ToolResult and type(part.output) is str:
            weight += _CALL_BYTES + part.output.__sizeof__()
        else:
            weight += _PART_BYTES + weight_of_fields(part)
    return weight


def weight_of_fields(part: object) -> int:
    """Estimate the size of a part's text in bytes."""
    if type(part) is ToolResult and type(part.output) is str:  # nearly all that edits put in
        return part.call_id.__sizeof__() + part.name.__sizeof__() + part.output.__sizeof__()
    weight = 0
    for name in getattr(part, "__struct_fields__", ()):  # not properties: some repeat a field, as a result's text
        value = getattr(part, name)
        if type(value) is str:
            weight += value.__sizeof__()
        elif type(value) is tuple:
            values = cast("tuple[object, ...]", value)
            weight += _PART_BYTES * len(values) + sum(map(weight_of_fields, values))
    return weight
