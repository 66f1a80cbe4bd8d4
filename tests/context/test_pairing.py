"""Which results answer which calls."""

from __future__ import annotations

from collections import Counter

from hypothesis import given

from chatstack import Message, Text, ToolCall, ToolResult
from chatstack.context.edits.pairing import pair, places_of
from tests.context.strictness import leftovers
from tests.histories import PROPERTY, histories, tidy_histories


def calls(*ids: str) -> Message:
    return Message.assistant(*(ToolCall(each, "look") for each in ids))


def answers(messages: list[Message]) -> tuple[tuple[int, int], ...]:
    """Positions of results, each with that of its call."""
    return tuple((position, call_position) for position, _, call_position, _, _ in places_of(messages)[1])


def test_a_result_answers_the_call_of_its_id() -> None:
    messages = [Message.user("hi"), calls("a", "b"), Message.tool("b", "2"), Message.tool("a", "1")]
    assert answers(messages) == ((2, 1), (3, 1))
    assert (pair(messages).orphans, pair(messages).open_calls()) == ([], [])


def test_an_id_used_again_is_another_call() -> None:
    messages = [calls("a"), Message.tool("a", "1"), calls("a"), Message.tool("a", "2")]
    assert answers(messages) == ((1, 0), (3, 2))


def test_of_two_unanswered_calls_of_one_id_the_newest_is_answered_first() -> None:
    messages = [calls("a"), calls("a"), Message.tool("a", "1"), Message.tool("a", "2")]
    assert answers(messages) == ((2, 1), (3, 0))


def test_a_result_before_its_call_is_an_orphan_and_the_call_is_open() -> None:
    pairing = pair([Message.tool("a", "1"), calls("a")])
    assert [(position, result.call_id) for position, _, result in pairing.orphans] == [(0, "a")]
    assert [(position, call.id) for position, _, call in pairing.open_calls()] == [(1, "a")]


def test_a_second_result_for_one_call_is_an_orphan() -> None:
    messages = [calls("a"), Message.tool("a", "1"), Message.tool("a", "again")]
    assert answers(messages) == ((1, 0),)
    assert [position for position, _, _ in pair(messages).orphans] == [2]


def test_results_in_one_message_answer_calls_of_several() -> None:
    both = Message("tool", (ToolResult("a", "look", "1"), ToolResult("b", "look", "2")))
    assert answers([calls("a"), calls("b"), both]) == ((2, 0), (2, 1))


def test_results_in_a_message_of_the_user_answer_too() -> None:
    assert answers([calls("a"), Message("user", (ToolResult("a", "look", "1"), Text("and?")))]) == ((1, 0),)


def test_a_call_that_the_user_wrote_is_not_one() -> None:
    pairing = pair([Message("user", (ToolCall("a", "look"),)), Message.tool("a", "1")])
    assert pairing.open_calls() == []
    assert [position for position, _, _ in pairing.orphans] == [1]


def test_open_calls_come_in_the_order_of_their_messages() -> None:
    pairing = pair([calls("b"), calls("a"), calls("b")])
    assert [position for position, _, _ in pairing.open_calls()] == [0, 1, 2]


def test_the_calls_of_the_last_message_still_wait_and_are_not_left_over() -> None:
    pairing = pair([calls("a"), calls("b")])
    assert pairing.leftovers(1) == Counter({"call without result: a": 1})
    assert pairing.waiting_in(1) == Counter({"b": 1})
    assert pairing.leftovers(-1) == Counter({"call without result: a": 1, "call without result: b": 1})


@PROPERTY
@given(histories())
def test_what_is_left_over_is_what_counting_finds(messages: list[Message]) -> None:
    found = pair(messages).leftovers(len(messages) - 1)
    counted = leftovers(messages)
    assert found.total() == counted.total()
    assert sum(count for what, count in found.items() if what.startswith("result")) == sum(
        count for what, count in counted.items() if what.startswith("result")
    )


@PROPERTY
@given(tidy_histories())
def test_in_a_tidy_history_everything_pairs_with_the_call_before_it(messages: list[Message]) -> None:
    pairing = pair(messages)
    assert (pairing.orphans, pairing.open_calls()) == ([], [])
    assert len(answers(messages)) == sum(len(message.results) for message in messages)
    for answer, call in answers(messages):
        assert call < answer
        assert {each.call_id for each in messages[answer].results} & {each.id for each in messages[call].calls}
