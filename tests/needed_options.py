"""The options without which a layer or a strategy cannot be made, as a config says them."""

from __future__ import annotations

NEEDED: dict[str, dict[str, object]] = {
    "ContextWindowGuard": {"max_context_tokens": 900},
    "Budget": {"max_tokens": 10},
    "Fallback": {"clients": [{"use": "openai", "model": "m"}]},
    "OldestFirst": {"max_tokens": 10, "target_tokens": 1},
    "Summarizer": {"max_tokens": 10},
}
