"""Recognised requests: the history and the conversation that one is known by."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chatstack.context.histories.conversations import Conversation
from chatstack.context.histories.history import History
from chatstack.values.messages import Message

_LONG = 8


class Recognised(msgspec.Struct, frozen=True):
    """The history and the conversation that a request was recognised as.

    ``positions`` are those of the history's messages in the request: a range if all system messages are at its head.
    """

    history: History
    conversation: Conversation
    length: int
    positions: Sequence[int]
    needs_repair: bool
    who: str = ""
    came: Recognised | None = None
    """The same request as it came, if this is about an edited form of its history under links of its own."""

    @property
    def links(self) -> Sequence[bytes]:
        """The hash chain of the conversation: the digests of its beginnings."""
        return self.history.links(self.length)

    def head_of(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the system messages at the head of the request."""
        return messages[: self.positions[0] if self.positions else len(messages)]

    def systems_in(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the system messages of the request; if all are at its head, the rest is not searched."""
        if isinstance(self.positions, range):
            return messages[: self.positions.start]
        return tuple(message for message in messages if message.role == "system")

    def asked_at(self, length: int) -> int:
        """Return the position of the user message that began the turn of the first ``length`` messages; -1 if there is
        none. Words of users at their end, behind the result of a tool, may be a reminder, and begin none."""
        return self.history.latest_user_in(self.history.without_words(length))

    def without_rounds(self, length: int) -> int:
        """Return how many of the first ``length`` messages there are up to the one that began their turn, which is all
        that many callers keep of a turn before its last answer."""
        return self.asked_at(length) + 1

    @property
    def is_unstable(self) -> bool:
        """True if a long history came with another beginning twice in a row: no edit can be replayed."""
        return self.history.moves > 1 and self.length >= _LONG
