"""The messages that any policy is expected to keep: what a call took from them alone is no test of one."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from chatstack.context.edits.pairing import Pairs, Place
from chatstack.values.messages import Message

NEAR_UNITS = 3


class Near:
    """The positions of system messages, the first and the latest user message, and the last three units.

    Positions are asked for in the order of the calls; each message is looked at once.
    """

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._users = [at for at, message in enumerate(messages) if message.role == "user"]
        self._systems = [at for at, message in enumerate(messages) if message.role == "system"]
        self._units = GrowingUnits()

    def before(self, position: int) -> set[int]:
        """Return the positions of these messages among those before a position."""
        if self._units.length > position:
            self._units = GrowingUnits()
        self._units.extend(self._messages[self._units.length : position])
        users = self._users[: bisect_left(self._users, position)]
        near = set(self._systems[: bisect_left(self._systems, position)])
        return near.union(users[:1], users[-1:], *itertools.islice(self._units.newest(), NEAR_UNITS))


class GrowingUnits:
    """Units as in ``units_of``, of messages that come one after the other."""

    def __init__(self) -> None:
        self.length = 0
        self._places: list[Place] = []
        self._pairs = Pairs(self._places)
        self._homes: list[int] = []
        """For each message the first position of its unit, or one on the way to it."""
        self._members: dict[int, list[int]] = {}

    def extend(self, messages: Sequence[Message]) -> None:
        """Add messages."""
        for message in messages:
            at = self.length
            self.length += 1
            self._homes.append(at)
            self._members[at] = [at]
            self._pairs.add(at, message)
            for _, _, call, _, _ in self._places:
                self._join(self._home(at), self._home(call))
            self._places.clear()
            if self._pairs.items is not None:
                for _, call in self._pairs.items.joined:
                    self._join(self._home(at), self._home(call))
                self._pairs.items.joined.clear()

    def newest(self) -> Iterator[list[int]]:
        """Yield the positions in each unit, the one whose first message is the latest first."""
        return (self._members[first] for first in reversed(self._members))

    def _join(self, one: int, other: int) -> None:
        if one != other:
            first, second = sorted((one, other))
            self._homes[second] = first
            self._members[first] += self._members.pop(second)

    def _home(self, position: int) -> int:
        homes = self._homes
        while homes[position] != position:
            homes[position] = homes[homes[position]]
            position = homes[position]
        return position
