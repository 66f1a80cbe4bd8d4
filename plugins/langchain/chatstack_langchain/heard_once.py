"""What LangChain's callbacks hear of a model below a stack: nothing, where a model or node of ours tells them all."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.runnables.config import (
    ensure_config,
    get_async_callback_manager_for_config,
    var_child_runnable_config,
)
from langchain_core.tracers import context as tracers
from langchain_core.tracers.langchain import LangChainTracer
from langgraph.errors import GraphBubbleUp

from chatstack.tools.execution import graph_signals


@contextmanager
def heard_once() -> Generator[None]:
    """Have the run of a model begin in this block: below a ``ChatStackModel`` or a ``GraphChatNode``, which set the
    graph's signals, only LangSmith hears it, as callbacks would be told tokens, events and usage twice.

    When it begins, a run takes its handlers from the configuration around it, which one that is passed does not
    replace, and from context variables (``get_usage_metadata_callback``).
    """
    if GraphBubbleUp not in graph_signals.get():
        yield
        return
    config = ensure_config()
    callbacks = get_async_callback_manager_for_config(config)
    callbacks.set_handlers([each for each in callbacks.handlers if isinstance(each, LangChainTracer)])
    hooks = getattr(tracers, "_configure_hooks", ())  # private: without it, such handlers hear the model twice again
    handlers: list[ContextVar[Any]] = [var for var, _, kind, _ in hooks if kind is None]
    tokens = [(var, var.set(None)) for var in handlers if var.get() is not None]
    around = var_child_runnable_config.set({**config, "callbacks": callbacks})
    try:
        yield
    finally:
        var_child_runnable_config.reset(around)
        for var, token in tokens:
            var.reset(token)
