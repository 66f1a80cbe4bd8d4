"""What one policy did: the figures that a replay adds up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chatstack.replay.costs import Spending
from chatstack.replay.grounding import Grounding
from chatstack.replay.measuring import Measured


@dataclass(slots=True)
class PolicyFigures:
    """What one policy did. ``requests`` is all that it sent, ``peak_tokens`` its largest request; ``over_limit`` counts
    the calls that were larger than the window, ``refused`` those for which the stack itself raised instead of
    sending."""

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
    cpu_seconds: float = 0.0
    spending: Spending = field(default_factory=Spending)
    grounding: Grounding = field(default_factory=Grounding)
    faults: dict[str, int] = field(default_factory=dict[str, int])
    """Why requests were invalid, or calls refused, and how often."""

    @property
    def cpu_ms_per_call(self) -> float:
        """CPU time of the stack per call, in milliseconds, without that of the recording that answers."""
        return 1_000 * self.cpu_seconds / self.calls if self.calls else 0.0

    def add(self, requests: Sequence[Measured], window: int) -> None:
        """All that was sent for one call, in order."""
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
        self.spending.add(requests)

    def note(self, fault: str) -> None:
        """Count why a request was invalid, or a call refused."""
        self.faults[fault] = self.faults.get(fault, 0) + 1

    def cost_relative(self, everything: Spending) -> float | None:
        """The cost beside that of sending everything; None where calls were refused: what was not sent cost nothing,
        and answered nothing."""
        return self.spending.cost / everything.cost if everything.cost and not self.refused else None
