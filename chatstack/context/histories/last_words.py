"""Last words: messages of users at the end of a request, which may be reminders, and not come again."""

from __future__ import annotations

from collections.abc import Sequence

from chatstack.values.messages import Message
from chatstack.values.parts import Text

MOST_WORDS = 4
"""The most messages at the end of a request that are taken for reminders."""


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
    at += _parts_of_words(following[at:], words)
    return at + len(rounds) if following[at : at + len(rounds)] == rounds else -1


def _parts_of_words(messages: Sequence[Message], words: Sequence[Message]) -> int:
    """Return how many messages at the beginning are a part of these words of users: callers send what they looked up
    along with a question, and keep the question alone."""
    count, sent = 0, "\n".join([message.text for message in words])
    for message in messages[: len(words)]:
        text = message.text.strip()
        if message.role != "user" or not text or text not in sent:
            break
        count += 1
    return count
