"""What the schema says of the values of options beside their types; layers check the same when they are made."""

from __future__ import annotations

from collections.abc import Mapping

_FROM_1 = {"minimum": 1}
_SHARE = {"exclusiveMinimum": 0, "maximum": 1}
_SHARE_OR_NONE = {"minimum": 0, "maximum": 1}
_ABOVE_0 = {"exclusiveMinimum": 0}

BOUNDS: Mapping[str, Mapping[str, object]] = {
    "CharCounter.chars_per_token": {"exclusiveMinimum": 0},
    "ContextWindowGuard.chars_per_token": {"minimum": 0.1, "maximum": 100},
    "base_url": {"pattern": "^https?://[^/?#]"},
    "clear_at_least": {"minimum": 0},
    "compress_to": _SHARE,
    "keep.fraction": _SHARE_OR_NONE,
    "keep.messages": {"minimum": 0},
    "keep.tokens": {"minimum": 0},
    "keep_recent": _SHARE_OR_NONE,
    "keep_recent_turns": _FROM_1,
    "max_concurrency": _FROM_1,
    "max_consecutive_failures": _FROM_1,
    "max_context_items": _FROM_1,
    "max_context_tokens": _FROM_1,
    "max_cost": _ABOVE_0,
    "max_entries": _FROM_1,
    "max_megabytes": _ABOVE_0,
    "max_messages": _FROM_1,
    "max_records": _FROM_1,
    "max_retries": {"minimum": 0},
    "max_summary_tokens": _FROM_1,
    "max_tokens": _FROM_1,
    "max_tool_calls_per_turn": _FROM_1,
    "mentions": {"minimum": 0, "exclusiveMaximum": 1},
    "newest_result": _SHARE_OR_NONE,
    "path": {"minLength": 1, "not": {"const": ":memory:"}},
    "prune_to": _SHARE,
    "stall_seconds": _ABOVE_0,
    "summary_prompt": {"minLength": 1},
    "summary_timeout_seconds": _ABOVE_0,
    "target": _SHARE,
    "target_tokens": _FROM_1,
    "timeout_seconds": _ABOVE_0,
    "tool_timeout_seconds": _ABOVE_0,
    "trigger.fraction": _SHARE,
    "trigger.messages": _FROM_1,
    "trigger.tokens": _FROM_1,
    "truncate_to": _SHARE,
    "warning_threshold": _SHARE,
    "window_tokens": _FROM_1,
}
"""By option, or by what has it and option, where others of that name have other bounds."""

ONE_OF: Mapping[str, tuple[str, ...]] = {
    "Budget": ("max_tokens", "max_cost"),
    "Summarizer": ("max_tokens", "max_context_items"),
}
"""Options of which a layer needs one at least."""
