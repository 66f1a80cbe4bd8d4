"""The sizes that a refusal tells, and which of them can be true."""

from __future__ import annotations

from chatstack.context.context import Context
from chatstack.context.opened import Opened
from chatstack.errors import ContextOverflowError, FallbackError

_FURTHEST = 4
"""A limit so many times larger than what was refused is not what it failed at, and a size so many times smaller than
its estimate not its own. The other way round both may be: nobody can tell a language that the counter cannot count."""


def overflow_in(error: ContextOverflowError | FallbackError) -> ContextOverflowError | None:
    """Return what the client that is asked first said of the size; the others are asked again with less, too."""
    said = error.exceptions[0] if isinstance(error, FallbackError) else error
    return said if isinstance(said, ContextOverflowError) else None


def tells_nothing(refusal: ContextOverflowError) -> bool:
    """Tell whether a refusal names neither its size nor its limit."""
    return refusal.actual is None and refusal.limit is None


def limit_in(refusal: ContextOverflowError, context: Context) -> int | None:
    """Return the limit that a refusal tells, if it can be one."""
    limit = refusal.limit
    highest = max(context.tokens * _FURTHEST, (refusal.actual or 0) - 1)
    return limit if limit is not None and 0 < limit <= highest else None


def is_size(actual: int, limit: int | None, context: Context) -> bool:
    """Tell whether a refusal can be right about the size: above the limit, and not far below the estimate."""
    return actual > (limit or 0) and actual * _FURTHEST >= context.input_tokens > 0


def input_in(actual: int, context: Context) -> int:
    """Return the input in what a refusal calls the size: whichever comes nearer to the estimate, with the room for the
    answer or without."""
    estimated = context.tokens - context.reserved_tokens
    without = actual - context.reserved_tokens
    return without if without > 0 and abs(without - estimated) < abs(actual - estimated) else actual


def taken_before(opened: Opened, refused: Context) -> int:
    """Return the size that the conversation's last call was reported to have, with the room for this answer; 0 if it
    was no less than what is refused now."""
    answered = opened.last_answer
    taken = answered.input_tokens + refused.reserved_tokens if answered is not None else 0
    return taken if taken < refused.tokens else 0
