"""Units: what an edit may not split."""

from __future__ import annotations

from hypothesis import given

from chatstack import Message, ToolCall, ToolResult
from chatstack.context.edits.pairing import pair, places_of
from chatstack.context.edits.units import Unit, units_of
from tests.histories import PROPERTY, histories


def calls(*ids: str) -> Message:
    return Message.assistant(*(ToolCall(each, "look") for each in ids))


def test_a_plain_message_is_a_unit_by_itself() -> None:
    assert units_of([Message.system("s"), Message.user("u"), Message.assistant("a")]) == (
        Unit((0,)),
        Unit((1,)),
        Unit((2,)),
    )


def test_calls_and_their_results_are_one_unit() -> None:
    messages = [Message.user("u"), calls("a", "b"), Message.tool("a", "1"), Message.tool("b", "2"), Message.user("u")]
    assert units_of(messages) == (Unit((0,)), Unit((1, 2, 3)), Unit((4,)))


def test_a_late_result_belongs_to_its_call_and_what_stands_between_does_not() -> None:
    messages = [calls("a"), Message.user("hurry"), Message.tool("a", "1")]
    assert units_of(messages) == (Unit((0, 2)), Unit((1,)))


def test_interleaved_results_belong_to_their_own_calls() -> None:
    messages = [calls("a"), calls("b"), Message.tool("b", "2"), Message.tool("a", "1")]
    assert units_of(messages) == (Unit((0, 3)), Unit((1, 2)))


def test_a_message_that_answers_two_joins_them() -> None:
    both = Message("tool", (ToolResult("a", "look", "1"), ToolResult("b", "look", "2")))
    assert units_of([calls("a"), calls("b"), Message.user("u"), both]) == (Unit((0, 1, 3)), Unit((2,)))


def test_a_unit_that_waits_for_a_result_is_open() -> None:
    messages = [calls("a", "b"), Message.tool("a", "1"), Message.user("u"), calls("c")]
    assert units_of(messages) == (Unit((0, 1), is_open=True), Unit((2,)), Unit((3,), is_open=True))


def test_an_orphan_result_is_a_unit_by_itself() -> None:
    assert units_of([Message.user("u"), Message.tool("nobody", "1")]) == (Unit((0,)), Unit((1,)))


def test_no_messages_make_no_units() -> None:
    assert units_of([]) == ()


@PROPERTY
@given(histories())
def test_every_message_is_in_one_unit_and_units_come_in_order(messages: list[Message]) -> None:
    units = units_of(messages)
    assert sorted(position for unit in units for position in unit.positions) == [*range(len(messages))]
    assert [unit.positions[0] for unit in units] == sorted(unit.positions[0] for unit in units)
    assert all(list(unit.positions) == sorted(unit.positions) for unit in units)


@PROPERTY
@given(histories())
def test_no_pair_is_split_and_only_what_pairs_is_joined(messages: list[Message]) -> None:
    answers = [(position, call_position) for position, _, call_position, _, _ in places_of(messages)[1]]
    home = {position: number for number, unit in enumerate(units_of(messages)) for position in unit.positions}
    assert all(home[answer] == home[call] for answer, call in answers)
    paired = {position for answer in answers for position in answer}
    assert all(
        position in paired for unit in units_of(messages) for position in unit.positions if len(unit.positions) > 1
    )


@PROPERTY
@given(histories())
def test_a_unit_is_open_if_one_of_its_calls_is(messages: list[Message]) -> None:
    waiting = {position for position, _, _ in pair(messages).open_calls()}
    for unit in units_of(messages):
        assert unit.is_open == bool(waiting & set(unit.positions))
