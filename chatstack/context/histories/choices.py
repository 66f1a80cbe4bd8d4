"""Choices: edits, bound to the answer that was given under them, and the keys that the memory keeps them under."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from chatstack.context.edits.records import Record
from chatstack.values.messages import Message
from chatstack.values.parts import Text

MOST_WORDS = 4
"""The most messages at the end of a request that are taken for reminders."""

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


def common_length(these: Sequence[Message], those: Sequence[Message]) -> int:
    """Return how many messages both begin with."""
    pairs = enumerate(zip(these, those, strict=False))
    shorter = min(len(these), len(those))
    return next((at for at, (one, other) in pairs if one is not other and one != other), shorter)


def is_words(message: Message) -> bool:
    """Return True if a message is words of a user alone."""
    return message.role == "user" and all([type(part) is Text for part in message.parts])


def words_of_users(messages: tuple[Message, ...]) -> int:
    """Return how many messages at the end are words of users alone, of which some may not come again; 0 if they are too
    many to be reminders."""
    count = 0
    for message in reversed(messages):
        if not is_words(message):
            break
        count += 1
        if count > MOST_WORDS:
            return 0
    return count


def stand_for(following: Sequence[Message], left: Sequence[Message]) -> int:
    """Return how many of these messages stand for what was sent behind their place: last words of users, of which some
    may come again, or a part of them, and the calls and results behind those, as they were; -1 if they do not."""
    count = next((at for at, message in enumerate(left) if not is_words(message)), len(left))
    words, rounds = left[:count], left[count:]
    at = common_length(following, words)
    at += parts_of_words(following[at:], words)
    return at + len(rounds) if following[at : at + len(rounds)] == rounds else -1


def parts_of_words(messages: Sequence[Message], words: Sequence[Message]) -> int:
    """Return how many messages at the beginning are a part of these words of users: callers send what they looked up
    along with a question, and keep the question alone."""
    count, sent = 0, "\n".join([message.text for message in words])
    for message in messages[: len(words)]:
        text = message.text.strip()
        if message.role != "user" or not text or text not in sent:
            break
        count += 1
    return count


def stand_in_place(now: Sequence[Message], then: Sequence[Message]) -> bool:
    """Return True if each of these messages but the first may be one that was sent, in its place, with less in it:
    callers take pictures out later, cut old results, or strip what they had looked up. Of words, a part has to be there
    still."""
    if len(now) != len(then) or now[0] != then[0]:
        return False
    return all(one is other or one == other or _has_less(one, other) for one, other in zip(now, then, strict=True))


def _has_less(now: Message, then: Message) -> bool:
    """Return True if a message may be the other one with less in it: with its calls and results, but not all of these,
    and a part of its words."""
    if now.role != then.role or _ids(now) != _ids(then):
        return False
    text = now.text.strip()
    return text in then.text if text else not then.text.strip()


def _ids(message: Message) -> list[str]:
    return [*[call.id for call in message.calls], *[result.call_id for result in message.results]]
