"""The outcome of a replay, or of a part of it: parts are added up in any order."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from chatstack.tokens.prices import Price
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.recorded import Recorded
from chatstack.workbench.replay.reading.recordings import BrokenLine
from chatstack.workbench.replay.stories import Story

_ERRORS_KEPT = 1_000
"""Maximum number of broken lines kept with their reason; more are only counted."""
_PRICES_KEPT = 100
"""Maximum number of recorded models listed with their prices, and without: the first by name."""


@dataclass(slots=True)
class Outcome:
    """The figures of each policy, and those of sending everything.

    ``everything`` holds every request as recorded, whichever policies ran: the baseline. ``joined`` counts the recorded
    lines that are the beginning of another, and were not replayed; ``left_out`` says what else was not read, and how
    often. ``recorded`` is the usage that was recorded. ``stories`` are those of the conversations with the highest
    rank.
    """

    figures: list[PolicyFigures]
    everything: PolicyFigures = field(default_factory=lambda: PolicyFigures("everything"))
    conversations: int = 0
    joined: int = 0
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    recorded: Recorded = field(default_factory=Recorded)
    prices: dict[str, Price] = field(default_factory=dict[str, Price])
    unpriced: set[str] = field(default_factory=set[str])
    stories: list[Story] = field(default_factory=list[Story])
    broken_count: int = 0
    _broken: dict[int, BrokenLine] = field(default_factory=dict[int, BrokenLine])

    @property
    def broken(self) -> list[BrokenLine]:
        """The broken lines, in the order of the input; only the first if there are many."""
        return [broken for _, broken in sorted(self._broken.items())[:_ERRORS_KEPT]]

    def note(self, number: int, broken: BrokenLine) -> None:
        """Record that the item of that number could not be read."""
        self.broken_count += 1
        self._keep(number, broken)

    def priced(self, model: str, price: Price | None) -> None:
        """Record a conversation's model and its price."""
        if price is None:
            self.unpriced.add(model)
            if len(self.unpriced) > _PRICES_KEPT:
                self.unpriced.remove(max(self.unpriced))
        else:
            self.prices[model] = price
            if len(self.prices) > _PRICES_KEPT:
                del self.prices[max(self.prices)]

    def tell(self, stories: list[Story], most: int) -> None:
        """Keep the stories of the highest rank, at most ``most``."""
        self.stories = heapq.nsmallest(most, [*self.stories, *stories], key=lambda story: story.rank)

    def merge(self, other: Outcome, most_stories: int) -> None:
        """Add the outcome of other conversations."""
        for mine, theirs in zip(self.figures, other.figures, strict=True):
            mine.merge(theirs)
        self.everything.merge(other.everything)
        self.conversations += other.conversations
        self.recorded.merge(other.recorded)
        for model, price in other.prices.items():
            self.priced(model, price)
        for model in other.unpriced:
            self.priced(model, None)
        self.tell(other.stories, most_stories)
        self.broken_count += other.broken_count
        for number, broken in other._broken.items():
            self._keep(number, broken)

    def _keep(self, number: int, broken: BrokenLine) -> None:
        """Keep the first broken lines, in whatever order they come; the others are pruned now and then."""
        self._broken[number] = broken
        if len(self._broken) > 2 * _ERRORS_KEPT:
            self._broken = dict(sorted(self._broken.items())[:_ERRORS_KEPT])
