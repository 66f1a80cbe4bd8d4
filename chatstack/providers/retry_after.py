"""Wait times behind a rate limit, as providers tell them in headers or in words."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

_SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}
_TIME = r"(\d{1,9}(?:\.\d{1,12})?) ?(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)(?![a-z])"
_TIMES = re.compile(_TIME, re.IGNORECASE)
_IN_WORDS = re.compile(rf"\b(?:again|retry|wait)(?: in| after| for)?:? (?:{_TIME}[, ]*(?:and )?)+", re.IGNORECASE)


def retry_after_seconds(headers: Mapping[str, str], text: str = "", *, now: float | None = None) -> float | None:
    """Return the delay from ``retry-after-ms`` or ``Retry-After`` (seconds, or an HTTP date), else from the words of
    the error ("Please try again in 2m59.5s"), which is all that Gemini tells, and OpenAI within a stream; else None."""
    lowered = {name.lower(): value for name, value in headers.items()}
    milliseconds = _number(lowered.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = lowered.get("retry-after")
    seconds = _number(value)
    if seconds is not None:
        return seconds
    try:
        then = parsedate_to_datetime(value or "")
        then = then.replace(tzinfo=then.tzinfo or UTC)  # "-0000" (RFC 5322) is UTC, not the zone of this machine
        return max(0.0, then.timestamp() - (time.time() if now is None else now))
    except (ValueError, OverflowError):
        return _seconds_in(text)


def _seconds_in(text: str) -> float | None:
    found = _IN_WORDS.search(text)
    if found is None:
        return None
    return sum(float(number) * _seconds_of(unit.lower()) for number, unit in _TIMES.findall(found[0]))


def _seconds_of(unit: str) -> float:
    return 0.001 if unit.startswith(("ms", "mil")) else _SECONDS[unit[0]]


def _number(value: str | None) -> float | None:
    try:
        number = float(value) if value is not None else None
    except ValueError:
        return None
    return max(0.0, number) if number is not None and math.isfinite(number) else None
