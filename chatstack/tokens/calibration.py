"""What the providers' reports teach about estimates: a factor for each model, and anchors for what was sent before.

Pure values and arithmetic; nothing is sent or stored from here. Only input tokens are ever looked at: what a model
wrote says nothing about what it was sent.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import ClassVar

import msgspec

from chatstack.lru import Lru
from chatstack.tokens.counter import TokenCounter

_MOST_KEYS = 256
_REMEMBERED = 15
_FURTHEST = 4.0
"""A report four times above or below its estimate is about something else: a compaction, a sum of several calls."""
_FRAME = 2_000
"""The first tokens of a request say nothing: they may be instructions and tools of the server's that no estimate can
know, and these stay as they are while a conversation grows. What weighs is what a request has beyond them."""
_HEAVIEST = 4_000
"""From that weight on every report weighs the same, or one long request would outvote all others."""
_DOUBT = 2_000
"""The weight of knowing nothing."""


def is_plausible(estimated: int, reported: int) -> bool:
    """Whether a report can be about what was estimated."""
    return estimated > 0 and 1 / _FURTHEST <= reported / estimated <= _FURTHEST


class Calibration:
    """The corrections learnt so far, shared by all layers of a stack: may be used from any thread.

    A correction is for the estimates of one counter for one model; counters are told apart by their repr. It is the
    median of the last 15 reports, weighed by their size, and nearer to 1 the less was reported: requests of up to 2,000
    tokens teach nothing, a single one of 4,000 moves the correction half the way to its own, one of 6,000 or more two
    thirds. The least recently used of more than 256 corrections is forgotten.
    """

    shared_by_stack: ClassVar[bool] = True

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._learnt: Lru[tuple[str, str], _Learnt] = Lru(_MOST_KEYS)

    def learn(self, model: str, counter: TokenCounter, estimated: int, reported: int) -> None:
        """A call of that model was estimated by that counter, uncorrected, and its input tokens were reported.

        What cannot be true is ignored: nothing estimated or reported, or the one more than four times the other. So is
        a request too short to tell.
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
        """By what to multiply that counter's estimates for that model; 1.0 while nothing is known. From 1/4 to 4."""
        if not self._learnt:
            return 1.0
        key = (model, repr(counter))
        with self._lock:
            learnt = self._learnt.get(key)
            return 1.0 if learnt is None else learnt.factor

    def __repr__(self) -> str:
        return f"Calibration({len(self._learnt)} learnt)"


class Anchor(msgspec.Struct, frozen=True):
    """An earlier request whose size was reported, and what it had been estimated at, uncorrected.

    For a request that starts with that one, only what was added since needs an estimate.
    """

    estimated: int
    reported: int

    @property
    def factor(self) -> float:
        """What this report alone says of estimates; near to 1 where it is of a short request."""
        if self.estimated <= _FRAME or self.reported <= 0:
            return 1.0
        return _factor(math.log(self.reported / self.estimated), _weight(self.estimated))

    def corrected(self, estimated_now: int, factor: float) -> int:
        """The size of a request that starts with this one: the report, and the tail's estimate times ``factor``.

        Never negative, and never less than the report. A request estimated at less than the anchor does not start with
        it; it gets no more than ``factor`` then.
        """
        tail = estimated_now - self.estimated
        if tail < 0:
            return max(0, round(estimated_now * factor))
        return max(0, self.reported) + max(0, round(tail * factor))


class _Learnt:
    """The last reports about one counter and model, and the factor that they make."""

    __slots__ = ("_factor", "reports")

    def __init__(self) -> None:
        self._factor: float | None = 1.0
        self.reports: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def add(self, estimated: int, reported: int) -> None:
        self.reports.append((math.log(reported / estimated), _weight(estimated)))
        self._factor = None

    @property
    def factor(self) -> float:
        """What they make; worked out when it is asked for, as several layers report the same call."""
        if self._factor is None:
            weight = sum([each for _, each in self.reports])
            self._factor = _factor(_median(self.reports, weight), weight)
        return self._factor


def _weight(estimated: int) -> int:
    return min(estimated - _FRAME, _HEAVIEST)


def _factor(logarithm: float, weight: int) -> float:
    return math.exp(logarithm * weight / (weight + _DOUBT))


def _median(reports: deque[tuple[float, int]], weight: int) -> float:
    """The middle of the values by weight: of two that meet in the middle, their mean."""
    passed, ordered = 0, sorted(reports)
    for position, (value, each) in enumerate(ordered):
        passed += each
        if 2 * passed == weight:
            return (value + ordered[position + 1][0]) / 2
        if 2 * passed > weight:
            return value
    return 0.0
