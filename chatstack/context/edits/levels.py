"""Levels of how full a context is, with hysteresis for warnings."""

from __future__ import annotations

from enum import IntEnum

from chatstack.context.edits.context import Context

_REARM = 0.95
"""Hysteresis: a warning is repeated only after the context had shrunk to this share of the threshold it had crossed."""
_MOST_NAMED = 3


class Level(IntEnum):
    """The level of a context's size relative to its limit."""

    FINE = 0
    NEAR = 1
    EXCEEDED = 2
    IRREDUCIBLE = 3


def level_of(tokens: int, limit: int, threshold: float) -> Level:
    """Return the level of a size: ``NEAR`` from the threshold on, ``EXCEEDED`` only above the limit."""
    if tokens > limit:
        return Level.EXCEEDED
    # Divided, not multiplied: as floats, 100 * 0.55 is more than 55, so 55 of 100 would be below the threshold.
    return Level.NEAR if tokens / limit >= threshold else Level.FINE


def held_level(last: int, tokens: int, limit: int, threshold: float) -> Level:
    """Return the level that a conversation keeps, by hysteresis, while its size is near a threshold it crossed."""
    if last >= Level.EXCEEDED and tokens > limit * _REARM:
        return Level(last)
    if last >= Level.NEAR and tokens >= limit * threshold * _REARM:
        return Level.NEAR
    return Level.FINE


def largest(context: Context) -> str:
    """Describe the largest parts of a context by role, position and size; never by their text."""
    ranked = sorted(range(len(context.sizes)), key=context.sizes.__getitem__, reverse=True)[:_MOST_NAMED]
    said = [
        f"{context.messages[each].role} message at {context.origins[each]} ({context.sizes[each]:,} tokens)"
        for each in ranked
    ]
    if context.fixed_tokens:
        said.append(f"instructions and tools ({context.fixed_tokens:,} tokens)")
    if context.reserved_tokens:
        said.append(f"room reserved for the answer ({context.reserved_tokens:,} tokens)")
    return ", ".join(said)
