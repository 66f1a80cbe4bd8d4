"""What a model call shares with the graph that it is made in: the thread, and LangChain's exceptions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from langchain_core.exceptions import ContextOverflowError as TheirOverflowError
from langchain_core.runnables.config import ensure_config

from chatstack import ContextOverflowError


def thread_id() -> str | None:
    """Return the id of the graph's thread; None for a call that is in none."""
    thread = ensure_config().get("configurable", {}).get("thread_id")
    return str(thread) if thread not in (None, "") else None


@contextmanager
def overflow_as_theirs() -> Generator[None]:
    """Raise LangChain's exception for an overflow, which its middlewares know."""
    try:
        yield
    except ContextOverflowError as error:
        raise TheirOverflowError(str(error)) from error
