"""How full a context is, and when that is news."""

from __future__ import annotations

from enum import IntEnum

from chatstack.context.context import Context

_REARM = 0.95
"""A warning is given again only after the context had shrunk to this share of the line that it had crossed."""


class Level(IntEnum):
    """How near a context is to its limit."""

    FINE = 0
    NEAR = 1
    EXCEEDED = 2
    IRREDUCIBLE = 3


def level_of(tokens: int, limit: int, threshold: float) -> Level:
    """The level of a context of that size; at the threshold is near, at the limit is not yet above it."""
    if tokens > limit:
        return Level.EXCEEDED
    # Divided, not multiplied: 100 * 0.55 is more than 55, and 55 of 100 would not be at the threshold.
    return Level.NEAR if tokens / limit >= threshold else Level.FINE


def held_level(last: int, tokens: int, limit: int, threshold: float) -> Level:
    """The level at which a conversation stays that hovers around a line it had crossed before."""
    if last >= Level.EXCEEDED and tokens > limit * _REARM:
        return Level(last)
    if last >= Level.NEAR and tokens >= limit * threshold * _REARM:
        return Level.NEAR
    return Level.FINE


def largest(context: Context, most: int = 3) -> str:
    """The largest parts of a context by role, position and size; never their text."""
    ranked = sorted(range(len(context.sizes)), key=context.sizes.__getitem__, reverse=True)[:most]
    said = [
        f"{context.messages[each].role} message at {context.origins[each]} ({context.sizes[each]:,} tokens)"
        for each in ranked
    ]
    if context.fixed_tokens:
        said.append(f"instructions and tools ({context.fixed_tokens:,} tokens)")
    if context.reserved_tokens:
        said.append(f"room reserved for the answer ({context.reserved_tokens:,} tokens)")
    return ", ".join(said)
