"""Choices: edits, bound to the answer that was given under them, and the keys that the memory keeps them under."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from chatstack.context.edits.records import Record
from chatstack.context.histories.last_words import MOST_WORDS
from chatstack.values.messages import Message

ChoiceKey: TypeAlias = tuple[str, str, bytes]
"""Place, name of the conversation, and link of the answer."""
ArtifactKey: TypeAlias = tuple[str, bytes]
EntryKey: TypeAlias = ChoiceKey | ArtifactKey


class Kept:
    """The keys of one conversation's entries, the oldest first, with the bytes that each was counted with."""

    __slots__ = ("held", "keys")

    def __init__(self) -> None:
        self.keys: list[EntryKey] = []
        self.held = array("q")

    def put(self, key: EntryKey, held: int, *, is_new: bool) -> None:
        """Add a key, or count it anew."""
        if is_new:
            self.keys.append(key)
            self.held.append(held)
        else:
            self.held[self.keys.index(key)] = held

    def of(self, key: EntryKey) -> int:
        """Return the bytes that a known key was counted with."""
        return self.held[self.keys.index(key)]

    def keep_only(self, is_kept: Callable[[EntryKey], bool]) -> int:
        """Drop all other keys; return the bytes that they were counted with."""
        before, rows = sum(self.held), [row for row in zip(self.keys, self.held, strict=True) if is_kept(row[0])]
        self.keys, self.held = [key for key, _ in rows], array("q", [held for _, held in rows])
        return before - sum(self.held)


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
    while length - least < MOST_WORDS and least - 1 >= max(1, record.reach):
        if messages[least - 1].role != "user":
            break
        least -= 1
    return range(length, least - 1, -1)
