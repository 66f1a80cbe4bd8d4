"""Beginnings that move: histories that come with another beginning than before, as callers slide windows over them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from chatstack.values.messages import Message

HEAD = 2
"""Number of messages that form a history's beginning: the task, and what follows it."""
ALIKE = 3
"""Minimum overlap, in messages, for treating a history as the same conversation with a rewritten head."""


def has_moved(before: tuple[Message, ...], now: tuple[Message, ...]) -> bool:
    """Return True if a history lost messages at its head, or behind it, and the rest is the same."""
    alike = len(now) - HEAD
    if before[:HEAD] != now[:HEAD]:
        return before[-alike:] == now[HEAD:]
    half = max(ALIKE, len(now) // 2)
    return len(before) > len(now) and before[-half:] == now[-half:] and not _lacks_rounds(before, now)


def asks(new: Sequence[Message]) -> bool:
    """Return True if a question follows an answer: rounds of one turn do not show that its beginning stays."""
    return any([one.role == "assistant" and other.role == "user" for one, other in pairwise(new)])


def _lacks_rounds(before: Sequence[Message], now: Sequence[Message]) -> bool:
    """Return True if no more is gone than rounds of turns, whose questions and answers are there: a caller that drops
    those of older turns moves no beginning."""
    at, is_gone = 0, False
    for message in before:
        if at < len(now) and (message is now[at] or message == now[at]):
            if is_gone and (message.role != "assistant" or message.calls):
                return False
            at, is_gone = at + 1, False
        elif not message.calls and not message.results:
            return False
        else:
            is_gone = True
    return at == len(now)
