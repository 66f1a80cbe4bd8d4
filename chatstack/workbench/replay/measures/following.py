"""Requests followed from one to the next: what they share at their beginning is not looked at again.

Most requests of a conversation begin with the whole request before. What is kept of each message is a stack, which goes
down to the end of that beginning and grows again from there; so the work follows what is new, and does not grow with
the conversation. Only the beginning itself is compared, object by object, in one pass without a step of Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_

from chatstack.values.messages import Message


def shared_start(before: Sequence[object], now: Sequence[object]) -> int:
    """Return how many items two sequences share from their start: the very same objects."""
    alike = bytes(map(is_, before, now))
    differs = alike.find(0)
    return len(alike) if differs < 0 else differs


class Following:
    """The messages of the last request: ``take`` is called for each that comes behind, ``drop`` for each that goes.

    Those that go do so from the end, and before others come.
    """

    def __init__(self, take: Callable[[Message], None], drop: Callable[[Message], None]) -> None:
        self._take = take
        self._drop = drop
        self._messages: tuple[Message, ...] = ()

    def follow(self, messages: tuple[Message, ...], *, most: int | None = None) -> None:
        """Go on to these messages; ``most`` of the beginning stay, if it is given."""
        shared = shared_start(self._messages, messages)
        if most is not None:
            shared = min(shared, most)
        for message in reversed(self._messages[shared:]):
            self._drop(message)
        for message in messages[shared:]:
            self._take(message)
        self._messages = messages
