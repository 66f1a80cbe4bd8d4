"""What a model call shares with the graph that it is made in: the thread."""

from __future__ import annotations

from langchain_core.runnables.config import ensure_config


def thread_id() -> str | None:
    """Return the id of the graph's thread; None for a call that is in none."""
    thread = ensure_config().get("configurable", {}).get("thread_id")
    return str(thread) if thread not in (None, "") else None
