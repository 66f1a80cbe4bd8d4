"""States: what is read from them, and copies with other messages."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from chatstack import InputError, Message, WiringError
from chatstack.nodes.state import AgentState, messages_of, state_with

OLD = [Message.user("secret one"), Message.assistant("two")]
NEW = [Message.user("three")]


@dataclass
class Plain:
    messages: list[Message]
    step: int = 0


@dataclass(frozen=True, slots=True)
class Frozen:
    messages: tuple[Message, ...]
    step: int = 0


@dataclass
class Counting:
    """Its constructor does something, and one field is not among its parameters."""

    messages: list[Message]
    seen: list[int] = field(init=False, default_factory=list[int])
    made: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.made += 1


class Bare:
    def __init__(self, messages: Sequence[Message], step: int) -> None:
        self.messages = messages
        self.step = step


class Struct(msgspec.Struct, frozen=True):
    messages: tuple[Message, ...]
    step: int = 0


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    messages: list[Any] = []
    step: int = 0


class FrozenModel(Model):
    model_config = pydantic.ConfigDict(frozen=True)


STATES = [
    AgentState(OLD, {"step": 7}),
    Plain(OLD, 7),
    Frozen(tuple(OLD), 7),
    Bare(OLD, 7),
    Struct(tuple(OLD), 7),
    Model(messages=OLD, step=7),
    FrozenModel(messages=OLD, step=7),
]


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
def test_a_state_of_any_class_is_copied_with_other_messages(state: Any) -> None:
    changed = state_with(state, NEW)
    assert type(changed) is type(state)
    assert list(changed.messages) == NEW
    assert list(state.messages) == OLD
    assert type(changed.messages) is type(state.messages)
    if isinstance(state, AgentState):
        assert changed.extra is state.extra
    else:
        assert changed.step == state.step == 7


def test_a_list_that_is_put_in_is_nobody_elses() -> None:
    given = list(NEW)
    changed = state_with(Plain(OLD), given)
    changed.messages.append(OLD[0])
    assert given == NEW


def test_a_copy_keeps_every_field_and_runs_no_constructor() -> None:
    state = Counting(OLD)
    state.seen.append(3)
    changed = state_with(state, NEW)
    assert (changed.seen, changed.made) == ([3], 1)


def test_a_pydantic_model_knows_that_its_messages_were_set() -> None:
    assert state_with(Model(), NEW).model_fields_set == {"messages"}


class Tuple(NamedTuple):
    messages: tuple[Message, ...]


class Computed:
    @property
    def messages(self) -> list[Message]:
        return list(OLD)


class ComputedModel(pydantic.BaseModel):
    @property
    def messages(self) -> list[Message]:
        return list(OLD)


class Unique(Bare):
    def __copy__(self) -> Unique:
        return self


@pytest.mark.parametrize(
    "state", [Tuple(tuple(OLD)), Computed(), ComputedModel(), Unique(OLD, 1)], ids=lambda state: type(state).__name__
)
def test_a_class_that_cannot_be_copied_like_that_is_told_what_to_override(state: Any) -> None:
    """Above all, no untrimmed state comes back as if it had been trimmed."""
    name = type(state).__name__
    with pytest.raises(WiringError, match=rf"{name}: .* override with_messages\(state, messages\)"):
        state_with(state, NEW)
    assert list(state.messages) == OLD


def test_a_copy_is_never_the_state_itself() -> None:
    with pytest.raises(WiringError, match="Unique: cannot be copied"):
        state_with(Unique(OLD, 1), OLD)


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (None, "NoneType: is no state"),
        ({"messages": OLD}, "dict: is no state"),
        (AgentState("secret"), r"AgentState.messages: expected a list or a tuple of Message, got str"),  # type: ignore[arg-type]
        (AgentState(OLD[0]), "AgentState.messages: expected a list or a tuple of Message, got Message"),  # type: ignore[arg-type]
        (AgentState([*OLD, {"secret": 1}]), r"messages\[2\]: expected Message, got dict"),  # type: ignore[list-item]
        (AgentState(None), "messages: .* got NoneType"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_state_is_refused_by_its_class_and_never_quoted(state: Any, told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        messages_of(state)
    assert "secret" not in str(caught.value)


def test_the_messages_of_a_state_may_be_none_yet() -> None:
    assert messages_of(AgentState()) == messages_of(AgentState([])) == ()


def test_the_plain_state_is_a_value_that_can_be_copied_compared_and_stored() -> None:
    """Checkpointers do all of that."""
    state = AgentState(OLD, {"step": 7})
    assert copy.deepcopy(state) == pickle.loads(pickle.dumps(state)) == state
    assert AgentState().extra is not AgentState().extra
    assert repr(AgentState()) == "AgentState(messages=(), extra={})"


def test_the_plain_state_can_be_subclassed_for_more_fields() -> None:
    @dataclass
    class Mine(AgentState):
        step: int = 0

    changed = state_with(Mine(OLD, step=3), NEW)
    assert (type(changed), changed.step) == (Mine, 3)
