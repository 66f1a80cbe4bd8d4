"""The state that goes from node to node of a graph: anything that has messages."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast

import msgspec

from chatstack.client.fronts import request_of
from chatstack.errors import InputError, WiringError
from chatstack.values.messages import Message


class HasMessages(Protocol):
    """A state: any class whose ``messages`` are a list or a tuple of ``Message``."""

    @property
    def messages(self) -> Sequence[Message]: ...


S = TypeVar("S", bound=HasMessages)


@dataclass
class AgentState:
    """The plain state of a graph: the whole conversation, and ``extra`` for whatever else the nodes share.

    Subclass it for fields of your own, or take any class that has ``messages``. Nothing here changes a state that it
    was given: managers and nodes return a new one, with the very same other fields. So ``extra`` is shared: branches
    that run side by side, and managers, must not write into it, but give a state another one.
    Source: Agentflow's context manager.
    """

    messages: Sequence[Message] = ()
    extra: dict[str, object] = field(default_factory=dict[str, object])


def messages_of(state: object) -> tuple[Message, ...]:
    """Return the messages of a state, checked. Raises ``InputError`` that names the class, never a text."""
    kind = type(state).__name__
    try:
        found = cast("object", cast("HasMessages", state).messages)
    except AttributeError as error:
        raise InputError(
            f"{kind}: is no state, or cannot tell its messages: {type(error).__name__}; pass an AgentState([...])"
        ) from error
    if isinstance(found, str | Message):
        raise InputError(f"{kind}.messages: expected a list or a tuple of Message, got {type(found).__name__}")
    return () if found in ([], ()) else request_of(found).messages


_OVERRIDE = "override with_messages(state, messages) of the context manager"


def state_with(state: S, messages: Sequence[Message], *, remedy: str = _OVERRIDE) -> S:
    """Return a copy of a state with other messages: a list if it had a list, else a tuple. Its constructor is not run.

    Raises ``WiringError`` with the remedy for a class that cannot be copied like that.
    """
    kept = list(messages) if isinstance(state.messages, list) else tuple(messages)
    kind = type(state).__name__
    try:
        changed = _changed(state, kept)
        is_changed = changed is not state and [*changed.messages] == [*kept]
    except (AttributeError, TypeError) as error:
        raise _unchangeable(kind, remedy) from error
    if not is_changed:
        raise _unchangeable(kind, remedy)
    return changed


def _changed(state: S, messages: Sequence[Message]) -> S:
    if isinstance(state, msgspec.Struct):
        return cast("S", msgspec.structs.replace(state, messages=messages))
    model_copy = getattr(state, "model_copy", None)
    if callable(model_copy):  # a pydantic model, which tracks the fields that were set
        return cast("S", model_copy(update={"messages": messages}))
    changed = copy.copy(state)
    if changed is not state:
        try:
            setattr(changed, "messages", messages)  # noqa: B010 - read-only, as far as the protocol knows
        except AttributeError:  # a frozen dataclass; nobody else has this copy yet
            object.__setattr__(changed, "messages", messages)
    return changed


def _unchangeable(kind: str, remedy: str) -> WiringError:
    told = f"{kind}: cannot be copied with other messages; {remedy}"
    return WiringError(told, layer=kind, parameter="messages")
