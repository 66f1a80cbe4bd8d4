"""Choices: edits, bound to the answer that was given under them."""

from __future__ import annotations

from typing import NamedTuple

from chatstack.context.records import Record
from chatstack.values.messages import Message

_LATEST_REMINDERS = 4


class Choice(NamedTuple):
    """The edits in force when an answer was given. ``reached_by`` are further links that it is forgotten with: those of
    the request without the answer, and the one that its own is noted under."""

    record: Record
    reached_by: tuple[bytes, ...]


class Bound(NamedTuple):
    """A choice and its key; ``messages`` are the part of the request that may come again, and its answer. ``under`` is
    the link of the history as it came that reaches it; its own, unless the history was edited or ends with what may
    not come again."""

    place: str
    who: str
    link: bytes
    record: Record
    messages: tuple[Message, ...]
    under: bytes


def lengths_before_answer(messages: tuple[Message, ...], length: int, record: Record) -> range:
    """Return the numbers of messages that may precede the answer when the history comes again: all of the request, or
    all but its last user messages, as reminders may not be repeated."""
    least = length
    while length - least < _LATEST_REMINDERS and least - 1 >= max(1, record.reach):
        if messages[least - 1].role != "user":
            break
        least -= 1
    return range(length, least - 1, -1)
