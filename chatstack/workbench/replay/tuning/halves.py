"""Recordings in two halves: one to choose settings on, and one, unseen by the search, to report on.

The half of a conversation depends on its first user message alone: on the lowest bit of that text's digest. So it does
not depend on the order of files, or on other recordings; and copies of a conversation, longer recordings of it, and
other runs of the same task are all in one half; otherwise the report would cover conversations that were tuned on.
System messages do not count: many hold the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from chatstack.errors import InputError
from chatstack.values.messages import Message
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.reading.forms import conversation_of
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
from chatstack.workbench.replay.talks import task_digest

FEWEST = 4
"""Minimum number of conversations in each half; fewer are not significant."""
RULE = (
    "Which half a conversation is in is decided by a digest of its first user message, so that copies of it, and "
    "recordings of it that go on longer, are in one half."
)
_LARGE = 0.5
"""Share of the window: smaller conversations are hardly edited, and tell a sample nothing."""
_SAMPLE = 4
"""A sample is one in this many."""
_SMALLEST_SAMPLE = 8
_CHARACTERS = 4
"""Characters per token, accurate enough here."""

Part: TypeAlias = Literal["sample", "tuning", "other"]


@dataclass(slots=True)
class Halves:
    """The numbers of the items, from 1, in each half, and in the sample of the first; unusable items are in none.

    ``unread`` holds the broken lines; ``silent`` counts the conversations that have no answer to ask for again.
    """

    tuning: frozenset[int] = frozenset()
    other: frozenset[int] = frozenset()
    sample: frozenset[int] = frozenset()
    silent: int = 0
    unread: Outcome = field(default_factory=lambda: Outcome([]))

    @property
    def has_sample(self) -> bool:
        """True if there is a sample that is smaller than the half."""
        return self.sample < self.tuning

    def part(self, name: Part) -> frozenset[int]:
        """Return the numbers of that part."""
        return {"sample": self.sample, "tuning": self.tuning, "other": self.other}[name]

    def check(self) -> None:
        """Raise ``InputError`` if a half is too small to be significant."""
        sizes = (len(self.tuning), len(self.other))
        if not any(sizes) and self.unread.broken_count:
            raise InputError(f"no conversation could be read; {self.unread.broken[0]}")
        if min(sizes) < FEWEST:
            raise InputError(
                f"Too few recordings: {sizes[0]:,} and {sizes[1]:,} in the two halves, {FEWEST} needed in each. "
                "Conversations that begin with the same user message are in the same half, and one without an answer "
                "is in none."
            )


def halves_of(items: Iterable[Recording | BrokenLine], window: int) -> Halves:
    """Read through all items, and keep of each conversation only its number, its digest and its size."""
    halves = Halves()
    sides: tuple[set[int], set[int]] = (set(), set())
    large: dict[bytes, list[int]] = {}
    for number, item in enumerate(items, 1):
        if isinstance(item, BrokenLine):
            halves.unread.note(number, item)
            continue
        try:
            messages = conversation_of(item).messages
        except InputError as error:
            halves.unread.note(number, item.broken(error))
            continue
        if not any(message.role == "assistant" for message in messages[1:]):
            halves.silent += 1
            continue
        digest = task_digest(messages)
        sides[digest[-1] & 1].add(number)
        if not digest[-1] & 1 and _characters(messages) > _LARGE * _CHARACTERS * window:
            large.setdefault(digest, []).append(number)
    halves.tuning, halves.other = frozenset(sides[0]), frozenset(sides[1])
    halves.sample = _sample(large) or halves.tuning
    return halves


def of_part(items: Iterable[Recording | BrokenLine], part: frozenset[int]) -> Iterator[Recording | BrokenLine]:
    """Yield the items that have these numbers."""
    return (item for number, item in enumerate(items, 1) if number in part)


def _sample(large: dict[bytes, list[int]]) -> frozenset[int]:
    """Return some of the large conversations, ordered by digest: the order of files has no effect."""
    wanted = max(_SMALLEST_SAMPLE, sum(map(len, large.values())) // _SAMPLE)
    sample: set[int] = set()
    for digest in sorted(large):
        if len(sample) >= wanted:
            break
        sample.update(large[digest])
    return frozenset(sample)


def _characters(messages: tuple[Message, ...]) -> int:
    return sum(
        len(message.text)
        + sum(len(result.text) for result in message.results)
        + sum(len(call.arguments) for call in message.calls)
        for message in messages
    )
