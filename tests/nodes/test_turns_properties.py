"""What trimming to the newest turns promises for every conversation, through a real manager."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chatstack import Message, ToolResult
from chatstack.context.edits.units import units_of
from chatstack.nodes.managers import MessageContextManager
from chatstack.nodes.state import AgentState
from chatstack.testing import TelemetryCapture
from tests.context.strictness import is_subsequence, leftovers
from tests.histories import PROPERTY, decoded_again, histories, tidy_histories

MOST = st.integers(1, 4)
ROUNDS = st.sampled_from([None, None, 1, 2])


def trimmed(messages: Sequence[Message], most: int, remove: bool = False, rounds: int | None = None) -> list[Message]:
    return list(MessageContextManager(most, remove, rounds).trim_context(AgentState(messages)).messages)


def users_in(messages: Sequence[Message]) -> list[Message]:
    """Where the user speaks: not where one wire puts tool results."""
    users = [each for each in messages if each.role == "user"]
    return [each for each in users if not each.parts or any(type(part) is not ToolResult for part in each.parts)]


def after_systems(messages: Sequence[Message]) -> list[Message]:
    """The messages with the system messages first, as a trimmed window has them."""
    systems = [each for each in messages if each.role == "system"]
    return [*systems, *(each for each in messages if each.role != "system")]


@PROPERTY
@given(histories(), MOST, st.booleans(), ROUNDS)
def test_no_call_and_no_result_is_ever_left_alone(
    messages: list[Message], most: int, remove: bool, rounds: int | None
) -> None:
    assume(users_in(messages))  # of nothing but orphans, nothing could be left
    assert leftovers(trimmed(messages, most, remove, rounds)) == {}


@PROPERTY
@given(tidy_histories(), MOST, st.booleans(), ROUNDS)
def test_all_system_and_pinned_messages_and_summaries_stay_and_systems_are_first(
    messages: list[Message], most: int, remove: bool, rounds: int | None
) -> None:
    left = trimmed(messages, most, remove, rounds)
    here = set(map(id, left))
    assert all(id(each) in here for each in messages if each.role == "system" or each.pinned or each.mark == "summary")
    if len(left) < len(messages):
        assert left == after_systems(left)


@PROPERTY
@given(tidy_histories(), MOST, st.booleans(), ROUNDS)
def test_the_newest_user_messages_stay_and_no_older_one_unless_pinned(
    messages: list[Message], most: int, remove: bool, rounds: int | None
) -> None:
    users = users_in(messages)
    expected = [each for each in users if each.pinned or any(each is other for other in users[-most:])]
    assert [*map(id, users_in(trimmed(messages, most, remove, rounds)))] == [*map(id, expected)]


@PROPERTY
@given(tidy_histories(), MOST)
def test_all_that_follows_the_first_user_message_kept_stays(messages: list[Message], most: int) -> None:
    users = users_in(messages)
    first = users[-most:][0]
    start = next(at for at, each in enumerate(messages) if each is first)
    if len(users) > most:
        follows = after_systems(messages[start:])
        assert is_subsequence([each for each in follows if each.role != "system"], trimmed(messages, most))
    else:
        assert trimmed(messages, most) == messages


@PROPERTY
@given(tidy_histories(), MOST, st.booleans(), ROUNDS)
def test_whole_units_go_and_what_stays_are_the_same_objects_in_order(
    messages: list[Message], most: int, remove: bool, rounds: int | None
) -> None:
    left = trimmed(messages, most, remove, rounds)
    assert is_subsequence(left, after_systems(messages)) or is_subsequence(left, messages)
    here = set(map(id, left))
    for unit in units_of(messages):
        members = {id(messages[position]) for position in unit.positions}
        assert members <= here or not members & here


@PROPERTY
@given(tidy_histories(), st.integers(1, 3))
def test_no_more_rounds_than_allowed_are_left_of_a_turn_unless_they_must_stay(
    messages: list[Message], most: int
) -> None:
    left = trimmed(messages, 100, rounds=most)
    units = [[left[position] for position in unit.positions] for unit in units_of(left)]
    unread = max((at for at, each in enumerate(left) if each.role == "assistant"), default=-1)
    about_to_read = set(map(id, left[unread + 1 :]))
    rounds = 0
    for unit in units:
        if users_in(unit):
            rounds = 0
        elif unit[0].role == "assistant" and not any(
            each.pinned or each.mark == "summary" or id(each) in about_to_read for each in unit
        ):
            rounds += 1
        assert rounds <= most


@PROPERTY
@given(histories(), MOST, st.booleans(), ROUNDS)
def test_the_state_that_goes_in_stays_as_it_is(
    messages: list[Message], most: int, remove: bool, rounds: int | None
) -> None:
    extra: dict[str, object] = {"step": 1}
    state = AgentState(list(messages), extra)
    left = MessageContextManager(most, remove, rounds).trim_context(state)
    assert [*map(id, state.messages)] == [*map(id, messages)]
    assert left.extra is extra
    assert (left is state) == ([*map(id, left.messages)] == [*map(id, messages)])


@PROPERTY
@given(histories(), MOST, st.booleans(), ROUNDS)
def test_what_was_trimmed_needs_no_further_trimming(
    messages: list[Message], most: int, remove: bool, rounds: int | None
) -> None:
    once = trimmed(messages, most, remove, rounds)
    if not any(each.pinned for each in messages):  # pinned user messages stay, and count
        assert trimmed(once, most, remove, rounds) == once


@pytest.mark.slow
@PROPERTY
@given(tidy_histories(min_size=5), MOST, st.booleans(), ROUNDS, st.booleans())
def test_what_a_manager_has_decided_before_makes_no_difference(
    messages: list[Message], most: int, remove: bool, rounds: int | None, fresh: bool
) -> None:
    """One manager sees a conversation grow, also in fresh objects; what it leaves is what one made for it leaves.

    Save where results come late: a round that went because newer ones of its turn were there stays away when the
    window has moved past them, as every decision that was made once.
    """
    manager = MessageContextManager(most, remove, rounds)
    comes_late = any(unit.positions[-1] - unit.positions[0] >= len(unit.positions) for unit in units_of(messages))
    for end in range(1, len(messages) + 1):
        history = decoded_again(messages[:end]) if fresh else messages[:end]
        left = list(manager.trim_context(AgentState(history)).messages)
        assert leftovers(left) == {}
        assert history[-1] in left
        if not comes_late and (end % 3 == 0 or end == len(messages)):
            assert left == trimmed(history, most, remove, rounds)


@PROPERTY
@given(histories(), MOST, st.booleans(), ROUNDS)
def test_no_plan_is_ever_rejected(messages: list[Message], most: int, remove: bool, rounds: int | None) -> None:
    assume(users_in(messages))  # of nothing but orphans, nothing could be left
    capture = TelemetryCapture()
    MessageContextManager(most, remove, rounds, telemetry=capture.telemetry).trim_context(AgentState(messages))
    assert set(capture.warnings) <= {"messages_repaired"}
