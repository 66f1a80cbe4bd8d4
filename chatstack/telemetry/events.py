"""Progress events for listeners in this process: the same facts as on the spans."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

import msgspec

ProgressKind: TypeAlias = Literal[
    "turn_started",
    "turn_ended",
    "iteration_started",
    "iteration_ended",
    "context_weighed",
    "model_call_started",
    "model_call_ended",
    "tool_started",
    "tool_ended",
    "warning",
    "edit_started",
    "edit_ended",
    "edit",
]


class ProgressEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One fact of a turn. ``name`` is the model, the tool, the warning's code or the edit's strategy.

    ``edit_started`` and ``edit_ended`` enclose an edit that takes time, a summary; its result is the ``edit`` or the
    ``warning`` between them. Other edits are an ``edit`` alone.

    ``message`` is for people, ``numbers`` for programs: tokens, counts, seconds; both never hold message text.
    ``error`` is the type of a failure, "cancelled" for a stop, "" otherwise. Events cannot be hashed, because
    ``numbers`` is a mapping.
    """

    kind: ProgressKind
    name: str
    at: float
    conversation_id: str | None = None
    round: int = 0
    message: str = ""
    error: str = ""
    numbers: Mapping[str, int | float] = {}


LISTENER: Final = "a plain function of one event"


def is_listener(value: object) -> bool:
    """Return True for what is called with an event at once; a coroutine or a generator would never run."""
    if not callable(value):
        return False
    kinds = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction
    return not any(is_kind(each) for is_kind in kinds for each in (value, type(value).__call__))
