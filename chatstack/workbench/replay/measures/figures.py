"""The figures of one policy, which a replay adds up, in one process or in several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from chatstack.workbench.replay.measures.costs import Charge, Spending, summed
from chatstack.workbench.replay.measures.grounding import Grounding
from chatstack.workbench.replay.measures.measuring import Measured

_LONGEST_CURVE = 5_000
"""Maximum number of calls of one conversation in the curve; later ones count everywhere else."""


@dataclass(slots=True)
class Curve:
    """The size of requests by call: the first of each conversation, the second, and so on.

    For each, the number of requests, their total tokens, and the largest.
    """

    calls: list[int] = field(default_factory=list[int])
    tokens: list[int] = field(default_factory=list[int])
    peak: list[int] = field(default_factory=list[int])

    def add(self, at: int, tokens: int, peak: int, calls: int = 1) -> None:
        """Add requests for the call ``at`` (from 0): their total tokens, and the largest."""
        if at >= _LONGEST_CURVE:
            return
        for figures in (self.calls, self.tokens, self.peak):
            figures.extend([0] * (at + 1 - len(figures)))
        self.calls[at] += calls
        self.tokens[at] += tokens
        self.peak[at] = max(self.peak[at], peak)

    def merge(self, other: Curve) -> None:
        """Add the curve of other conversations."""
        for at, (calls, tokens, peak) in enumerate(zip(other.calls, other.tokens, other.peak, strict=True)):
            self.add(at, tokens, peak, calls)


class Dearest(NamedTuple):
    """A conversation, by its number and id, and its cost as a multiple of what sending everything of it costs."""

    cost_relative: float
    number: int
    id: str


@dataclass(slots=True)
class GroupFigures:
    """Grounding in some of the conversations, and cost: in hundredths of an uncached input token, and in dollars."""

    grounding: Grounding = field(default_factory=Grounding)
    cost: int = 0
    usd: Decimal | None = Decimal(0)

    def merge(self, other: GroupFigures) -> None:
        """Add the figures of other conversations."""
        self.grounding.merge(other.grounding)
        self.cost += other.cost
        self.usd = summed(self.usd, other.usd)


@dataclass(slots=True)
class PolicyFigures:
    """The figures of one policy.

    ``requests`` counts all that it sent, ``peak_tokens`` is its largest request; ``over_limit`` counts the calls that
    were larger than the window, ``refused`` those for which the stack raised instead of sending, ``latest_user_lost``
    those whose request lacks the latest user message. ``dearest`` is the conversation with the highest relative cost,
    the first by its id if there are several.
    """

    name: str
    conversations: int = 0
    calls: int = 0
    requests: int = 0
    tokens_sent: int = 0
    peak_tokens: int = 0
    over_limit: int = 0
    invalid_requests: int = 0
    edits: int = 0
    refused: int = 0
    latest_user_lost: int = 0
    dearest: Dearest | None = None
    cpu_seconds: float = 0.0
    spending: Spending = field(default_factory=Spending)
    grounding: Grounding = field(default_factory=Grounding)
    curve: Curve = field(default_factory=Curve)
    faults: dict[str, int] = field(default_factory=dict[str, int])
    """Reasons why requests were invalid or calls refused, and how often."""
    groups: dict[int, GroupFigures] = field(default_factory=dict[int, GroupFigures])
    """The figures of groups of conversations, if they are kept apart."""

    @property
    def cpu_ms_per_call(self) -> float:
        """CPU time of the stack per call, in milliseconds, without that of the recording that answers."""
        return 1_000 * self.cpu_seconds / self.calls if self.calls else 0.0

    def add(self, requests: Sequence[Measured], window: int, at: int) -> Charge:
        """Add all requests of one call, in order; it is the call ``at`` of its conversation, from 0."""
        self.calls += 1
        self.requests += len(requests)
        largest = 0
        for request in requests:
            self.tokens_sent += request.tokens
            largest = max(largest, request.tokens)
            if request.fault:
                self.invalid_requests += 1
                self.note(request.fault)
        self.peak_tokens = max(self.peak_tokens, largest)
        self.over_limit += largest > window
        if requests:
            self.curve.add(at, requests[-1].tokens, largest)
        return self.spending.add(requests)

    def compare(self, everything: Spending, number: int, id: str) -> None:
        """Note that these are the figures of that conversation, of which sending everything costs this much."""
        cost = self.cost_relative(everything)
        self.dearest = None if cost is None else Dearest(cost, number, id)

    def group(self, group: int) -> None:
        """Note that these are figures of that group."""
        self.groups[group] = GroupFigures(self.grounding, self.spending.cost, self.spending.usd)

    def note(self, fault: str, times: int = 1) -> None:
        """Count a reason why a request was invalid, or a call refused."""
        self.faults[fault] = self.faults.get(fault, 0) + times

    def merge(self, other: PolicyFigures) -> None:
        """Add the figures of the same policy for other conversations."""
        self.conversations += other.conversations
        self.calls += other.calls
        self.requests += other.requests
        self.tokens_sent += other.tokens_sent
        self.peak_tokens = max(self.peak_tokens, other.peak_tokens)
        self.over_limit += other.over_limit
        self.invalid_requests += other.invalid_requests
        self.edits += other.edits
        self.refused += other.refused
        self.latest_user_lost += other.latest_user_lost
        known = [each for each in (self.dearest, other.dearest) if each is not None]
        self.dearest = min(known, key=lambda each: (-each.cost_relative, each.id, each.number), default=None)
        self.cpu_seconds += other.cpu_seconds
        self.spending.merge(other.spending)
        self.grounding.merge(other.grounding)
        self.curve.merge(other.curve)
        for fault, times in other.faults.items():
            self.note(fault, times)
        for group, part in other.groups.items():
            self.groups.setdefault(group, GroupFigures()).merge(part)

    def cost_relative(self, everything: Spending) -> float | None:
        """Return the cost relative to sending everything; None if calls were refused, as those cost nothing."""
        return self.spending.cost / everything.cost if everything.cost and not self.refused else None
