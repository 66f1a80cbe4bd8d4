"""Short descriptions of edits, to fit the about twenty characters that lists of traces show."""

from __future__ import annotations

from chatstack import semconv
from chatstack.telemetry.spans import Attributes


def what_was_done(strategy: str, attributes: Attributes) -> str:
    """Return a description of an edit, the essential first."""

    def count(name: str) -> int:
        value = attributes.get(name, 0)
        return value if isinstance(value, int) else 0

    fewer = count(semconv.COMPACTION_MESSAGES_BEFORE) - count(semconv.COMPACTION_MESSAGES_AFTER)
    cleared, shortened = count(semconv.COMPACTION_RESULTS_CLEARED), count(semconv.COMPACTION_RESULTS_SHORTENED)
    deduplicated = count(semconv.COMPACTION_RESULTS_DEDUPLICATED)
    if strategy == "summarize":
        return f"summarized {fewer + 1} messages"
    done = [f"pruned {_counted(fewer, 'message')}"] if fewer > 0 else []
    done += [f"cleared {_counted(cleared, 'result')}"] if cleared else []
    done += [f"shortened {_counted(shortened, 'result')}"] if shortened else []
    done += [f"deduplicated {_counted(deduplicated, 'result')}"] if deduplicated else []
    return ", ".join(done) or "edited"


def _counted(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"
