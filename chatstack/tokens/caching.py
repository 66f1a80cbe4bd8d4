"""Prompt caches, by the figures that most providers share.

Source: the price lists and documentation of Anthropic (5 minutes) and OpenAI (GPT-5.6 and later), November 2026.
"""

from __future__ import annotations

from typing import Final

CACHE_READ: Final = 0.1
CACHE_WRITE: Final = 1.25
"""What a token costs that the cache holds, or takes in; an uncached one costs 1."""
CACHED_FROM: Final = 1_024
"""Nothing shorter, in tokens, is cached."""
CACHE_SECONDS: Final = 300.0
"""How long a cache lives at least."""
LONG_CACHE_WRITE: Final = 2.0
LONG_CACHE_SECONDS: Final = 3_600.0
"""Of a cache that is paid for to live longer, as Anthropic has it."""
