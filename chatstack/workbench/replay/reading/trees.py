"""Trees of turns: each names the one before it, so that a conversation can have branches.

Every path from a root to an answer that no other follows is a context. An answer that several paths share was given
once: it is a call of the first of them, and copied in the others.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from chatstack.workbench.replay.reading.usages import RecordedCall

_MOST_COPIES = 1_000_000
"""Maximum number of turns that the branches of one file repeat: real ones are some dozens, of some hundreds each."""


class Turn(msgspec.Struct):
    """A turn: ``given`` before the answer, the pieces of the answer, and the results of its calls, as JSON.

    ``before`` is the position of the turn before it, -1 for none. ``call`` is None where there is no answer, or a
    copied one.
    """

    before: int
    line: int
    given: list[bytes] = []
    said: list[bytes] = []
    results: list[bytes] = []
    call: RecordedCall | None = None

    @property
    def size_bytes(self) -> int:
        """Size of its JSON."""
        return sum(sum(map(len, texts)) for texts in (self.given, self.said, self.results))


class Path(msgspec.Struct, frozen=True):
    """A path from a root to a last answer: positions of its turns. The first ``copied`` are in an earlier path, too."""

    turns: list[int]
    copied: int


class TurnTree:
    """The turns of one file, in the order in which they were first met."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._depths: list[int] = []

    def add(self, turn: Turn) -> int:
        """Add a turn whose predecessor is there already; return its position."""
        self.turns.append(turn)
        self._depths.append(1 + (self._depths[turn.before] if turn.before >= 0 else 0))
        return len(self.turns) - 1

    def up_to(self, position: int) -> list[int]:
        """Return the positions of all turns up to one, from the root."""
        path: list[int] = []
        while position >= 0:
            path.append(position)
            position = self.turns[position].before
        return path[::-1]

    def _last_answers(self) -> list[int]:
        """Return the positions of calls that no other call follows."""
        goes_on = bytearray(len(self.turns))
        found: list[int] = []
        for at in range(len(self.turns) - 1, -1, -1):  # whatever follows a turn has a higher position
            turn = self.turns[at]
            if turn.call is not None and not goes_on[at]:
                found.append(at)
            if turn.before >= 0 and (turn.call is not None or goes_on[at]):
                goes_on[turn.before] = 1
        return found[::-1]

    def paths(self) -> Iterator[Path | int]:
        """Yield the paths; at last the number of those that would repeat too much, if any would."""
        taken = bytearray(len(self.turns))
        left, left_out = _MOST_COPIES + len(self.turns), 0
        for leaf in self._last_answers():
            if self._depths[leaf] > left:
                left_out += 1
                continue
            left -= self._depths[leaf]
            path = self.up_to(leaf)
            copied = sum(taken[at] for at in path)  # what is taken is a beginning
            for at in path[copied:]:
                taken[at] = 1
            yield Path(path, copied)
        if left_out:
            yield left_out
