"""Past requests: those that a history tells of, as each answer in it was given to all messages before it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from chatstack.context.edits.units import is_users
from chatstack.context.histories.recognised import Recognised


class PastRequests(NamedTuple):
    """The requests that a history tells of, after the first ``since`` messages: their lengths. ``users`` are the
    positions of the user messages from there on."""

    since: int
    lengths: Sequence[int]
    users: Sequence[int]

    @classmethod
    def of(cls, seen: Recognised, since: int) -> PastRequests:
        """Find all requests of more than ``since`` messages that contain a user message, in one pass over the rest."""
        messages, length = seen.history.messages, seen.length
        first = next((at for at in range(length) if is_users(messages[at])), length)
        lengths: list[int] = []
        users: list[int] = []
        for at in range(since, length):
            message = messages[at]
            role = message.role
            if role == "assistant":
                if first < at > since and not message.mark:
                    lengths.append(at)
            elif role == "user" and is_users(message):
                users.append(at)
        return cls(since, [*lengths, length], users)

    def asked_at(self, seen: Recognised, length: int) -> int:
        """Return the same as ``Recognised.asked_at``, without looking at each message."""
        length = seen.history.without_words(length)
        before = bisect_left(self.users, length)  # scanning back took a third of reconstructing
        return self.users[before - 1] if before else seen.history.latest_user_in(min(self.since, length))

    def next_user(self, length: int) -> int:
        """Return the position of the first user message behind that many messages; their number if there is none."""
        after = bisect_left(self.users, length)
        return self.users[after] if after < len(self.users) else self.lengths[-1]


def first_of(lengths: Sequence[int], low: int, holds: Callable[[int], bool], likely: int = -1) -> int:
    """Return the index of the first length, from ``low`` on, for which this holds, as then it does for all that follow;
    their number if there is none. Looks at the ``likely`` index first, then near ``low``: where edits follow one
    another closely, it is there."""
    high, ahead = len(lengths), 1
    for at in (likely - 1, likely):
        if low <= at < high:
            if holds(lengths[at]):
                high = at
            else:
                low = at + 1
    while low < high:
        middle = min((low + high) // 2, low + ahead - 1)
        if holds(lengths[middle]):
            high = middle
        else:
            low, ahead = middle + 1, 2 * ahead
    return low
