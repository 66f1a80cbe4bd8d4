"""Prompt caches, by the figures that most providers share.

Source: the price lists and documentation of Anthropic (5 minutes) and OpenAI (GPT-5.6 and later), November 2026.
"""

from __future__ import annotations

import time
from typing import Final

CACHE_READ: Final = 0.1
CACHE_WRITE: Final = 1.25
"""Price of a token read from, or written to, a cache, relative to an uncached one."""
CACHED_FROM: Final = 1_024
"""Minimum length of a cached prefix, in tokens."""
CACHE_SECONDS: Final = 300.0
"""Minimum lifetime of a cache, in seconds."""
LONG_CACHE_WRITE: Final = 2.0
LONG_CACHE_SECONDS: Final = 3_600.0
"""Lifetime of a cache that is paid for to live longer, as Anthropic offers it."""

_CLOCK: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def seconds_since_boot() -> float:
    """Return the seconds that have passed, those included in which the machine slept: a cache expires in these, too.

    ``time.monotonic`` stands still while Linux or macOS sleep. On macOS, ``CLOCK_MONOTONIC`` does not.
    """
    return time.monotonic() if _CLOCK is None else time.clock_gettime(_CLOCK)
