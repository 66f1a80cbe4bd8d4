"""Messages that a turn had added before an error ended it."""

from __future__ import annotations

from contextlib import suppress

from chatstack.errors import BudgetExceeded, ChatStackError, ToolLoopError
from chatstack.values.responses import ChatResponse


def tell_what_was_done(error: Exception, so_far: ChatResponse | None) -> None:
    """Put on the error what the turn had added before: tools may have done what must not be done twice."""
    so_far = so_far or ChatResponse(messages=())
    if isinstance(error, ToolLoopError | BudgetExceeded) and not so_far.messages:
        return  # raised where a layer had read the answer by itself: only the error knows
    open_calls: set[str] = set()
    whole = 0
    for at, message in enumerate(so_far.messages, 1):
        open_calls.update(call.id for call in message.calls)
        open_calls.difference_update(result.call_id for result in message.results)
        whole = whole if open_calls else at
    if not isinstance(error, ChatStackError):
        # Another library's error may have messages of its own, or take no attributes.
        with suppress(Exception):
            if isinstance(getattr(error, "messages", ()), tuple):
                error.messages = so_far.messages[:whole]  # type: ignore[attr-defined]
        return
    error.messages = so_far.messages[:whole]
    if not isinstance(error, BudgetExceeded):  # which says what its budget has paid for
        error.usage, error.overhead_usage = so_far.usage, so_far.overhead_usage
