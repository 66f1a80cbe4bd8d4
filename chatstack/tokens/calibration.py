"""Calibration of estimates by the providers' reports: a factor for each model, and anchors for earlier requests.

Pure values and arithmetic; nothing is sent or stored from here. Only input tokens count: the size of an answer says
nothing about the size of its request.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import ClassVar

import msgspec

from chatstack.client.checks import OwnCopy
from chatstack.lru import Lru
from chatstack.tokens.counter import TokenCounter

_MOST_KEYS = 256
_REMEMBERED = 15
_FURTHEST = 4.0
"""Maximum ratio between report and estimate. Beyond it, the report is about something else: a compaction, a sum of
several calls."""
_FRAME = 2_000
"""Tokens at the start of a request that carry no weight: they may be the server's own instructions and tools, which no
estimate can know, and which stay constant while a conversation grows. The weight of a report is the rest."""
_HEAVIEST = 4_000
"""Maximum weight of a report, or one long request would outvote all others."""
_DOUBT = 2_000
"""Weight of the prior, a factor of 1."""


def is_plausible(estimated: int, reported: int) -> bool:
    """Return True if a report can be about the estimated request."""
    return estimated > 0 and 1 / _FURTHEST <= reported / estimated <= _FURTHEST


class Calibration(OwnCopy):
    """The corrections learnt so far, shared by all layers of a stack. Thread-safe.

    A correction is for the estimates of one counter for one model; counters are told apart by their repr. It is the
    median of the last 15 reports, weighted by size, and the fewer tokens were reported, the nearer to 1: requests of up
    to 2,000 tokens teach nothing, a single one of 4,000 moves the correction half the way to its own, one of 6,000 or
    more two thirds. An LRU of 256 corrections.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._learnt: Lru[tuple[str, str], _Learnt] = Lru(_MOST_KEYS)

    def learn(self, model: str, counter: TokenCounter, estimated: int, reported: int) -> None:
        """Learn from a call of that model: the counter's uncorrected estimate, and the input tokens reported.

        Ignores implausible pairs (either is zero, or one is more than four times the other), and requests too short to
        tell.
        """
        if estimated <= _FRAME or not is_plausible(estimated, reported):
            return
        key = (model, repr(counter))
        with self._lock:
            learnt = self._learnt.get(key)
            if learnt is None:
                learnt = _Learnt()
                self._learnt.put(key, learnt)
            learnt.add(estimated, reported)

    def factor(self, model: str, counter: TokenCounter) -> float:
        """Return the factor for that counter's estimates for that model, from 1/4 to 4; 1.0 while nothing is known."""
        if not self._learnt:
            return 1.0
        key = (model, repr(counter))
        with self._lock:
            learnt = self._learnt.get(key)
            return 1.0 if learnt is None else learnt.factor

    def __repr__(self) -> str:
        return f"Calibration({len(self._learnt)} learnt)"


class Anchor(msgspec.Struct, frozen=True, gc=False):
    """An earlier request with its reported size and its uncorrected estimate.

    For a request that starts with that one, only the messages added since need an estimate.
    """

    estimated: int
    reported: int

    @property
    def factor(self) -> float:
        """Correction by this report alone; near to 1 for a short request."""
        if self.estimated <= _FRAME or self.reported <= 0:
            return 1.0
        return _factor(math.log(self.reported / self.estimated), _weight(self.estimated))

    def corrected(self, estimated_now: int, factor: float) -> int:
        """Return the size of a request that starts with this one: the report, and the tail's estimate times ``factor``.

        Never negative, and never less than the report. A request estimated at less than the anchor does not start with
        it; then it is only multiplied by ``factor``.
        """
        tail = estimated_now - self.estimated
        if tail < 0:
            return max(0, round(estimated_now * factor))
        return max(0, self.reported) + max(0, round(tail * factor))


class _Learnt:
    """The last reports about one counter and model, and their factor."""

    __slots__ = ("_factor", "reports")

    def __init__(self) -> None:
        self._factor: float | None = 1.0
        self.reports: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def add(self, estimated: int, reported: int) -> None:
        self.reports.append((math.log(reported / estimated), _weight(estimated)))
        self._factor = None

    @property
    def factor(self) -> float:
        """Factor of the reports; computed on demand, as several layers report the same call."""
        if self._factor is None:
            weight = sum([each for _, each in self.reports])
            self._factor = _factor(_median(self.reports, weight), weight)
        return self._factor


def _weight(estimated: int) -> int:
    return min(estimated - _FRAME, _HEAVIEST)


def _factor(logarithm: float, weight: int) -> float:
    return math.exp(logarithm * weight / (weight + _DOUBT))


def _median(reports: deque[tuple[float, int]], weight: int) -> float:
    """Return the weighted median of the values: of two that meet in the middle, their mean."""
    passed, ordered = 0, sorted(reports)
    for position, (value, each) in enumerate(ordered):
        passed += each
        if 2 * passed == weight:
            return (value + ordered[position + 1][0]) / 2
        if 2 * passed > weight:
            return value
    return 0.0
