"""The sizes that a provider's refusal gives, and which of them are plausible."""

from __future__ import annotations

from chatstack.context.edits.context import Context
from chatstack.context.requests.opened import Opened
from chatstack.errors import ContextOverflowError, FallbackError

_FURTHEST = 4
"""Maximum factor between a plausible figure and the estimate: a limit that many times larger than the refused size, or
a size that many times smaller than the estimate, is not believed. The other way round there is no bound, as the counter
may underestimate some languages without limit."""


def overflow_in(error: ContextOverflowError | FallbackError) -> ContextOverflowError | None:
    """Return the overflow of the first client, if it had one; after it, the others get the smaller request too."""
    said = error.exceptions[0] if isinstance(error, FallbackError) else error
    return said if isinstance(said, ContextOverflowError) else None


def tells_nothing(refusal: ContextOverflowError) -> bool:
    """Tell whether a refusal names neither its size nor its limit."""
    return refusal.actual is None and refusal.limit is None


def limit_in(refusal: ContextOverflowError, context: Context) -> int | None:
    """Return the limit that a refusal gives, if it is plausible."""
    limit = refusal.limit
    highest = max(context.tokens * _FURTHEST, (refusal.actual or 0) - 1)
    return limit if limit is not None and 0 < limit <= highest else None


def is_quoted(refusal: ContextOverflowError, context: Context) -> bool:
    """Tell whether the size in a refusal is far below the estimate: the server has quoted what the request says of
    another one, whose limit is not this server's."""
    return refusal.actual is not None and refusal.actual * _FURTHEST < context.input_tokens


def is_size(actual: int, limit: int | None, context: Context) -> bool:
    """Tell whether the size in a refusal is plausible: above the limit, and not far below the estimate."""
    return actual > (limit or 0) and actual * _FURTHEST >= context.input_tokens > 0


def input_in(actual: int, context: Context) -> int:
    """Return the input tokens in the size that a refusal gives, which may include the room for the answer: the reading
    nearer to the estimate."""
    estimated = context.tokens - context.reserved_tokens
    without = actual - context.reserved_tokens
    return without if without > 0 and abs(without - estimated) < abs(actual - estimated) else actual


def taken_before(opened: Opened, refused: Context) -> int:
    """Return the reported input of the conversation's last call plus the room for this answer; 0 if that is not less
    than the refused size."""
    answered = opened.last_answer
    taken = answered.input_tokens + refused.reserved_tokens if answered is not None else 0
    return taken if taken < refused.tokens else 0
