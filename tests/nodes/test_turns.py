"""Which messages the newest turns are: every case by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chatstack import Message, Text, ToolCall, ToolResult, WiringError
from chatstack.nodes.turns import NewestTurns
from tests.context.strictness import context_of


def user(text: str, *, pinned: bool = False) -> Message:
    return Message.user(text, pinned=pinned)


def said(text: str) -> Message:
    return Message.assistant(text)


def call(*ids: str) -> Message:
    return Message.assistant(*(ToolCall(each, "look") for each in ids))


def result(call_id: str) -> Message:
    return Message.tool(call_id, f"result of {call_id}", name="look")


def loop(rounds: int) -> list[Message]:
    """A tool loop of so many rounds."""
    return [message for number in range(rounds) for message in (call(f"c{number}"), result(f"c{number}"))]


def kept(messages: Sequence[Message], *options: Any, **named: Any) -> list[int]:
    """The positions that are left."""
    plan = NewestTurns(*options, **named).plan(context_of(messages))
    return [at for at in range(len(messages)) if plan is None or at not in plan.drop]


def test_the_newest_user_messages_and_what_follows_them_stay() -> None:
    history = [user("1"), said("a"), user("2"), *loop(1), said("b"), user("3"), said("c"), user("4")]
    assert kept(history, 2) == [6, 7, 8]
    assert kept(history, 3) == [2, 3, 4, 5, 6, 7, 8]


def test_as_many_user_messages_as_allowed_are_not_too_many() -> None:
    history = [said("before"), user("1"), said("a"), user("2")]
    assert NewestTurns(2).plan(context_of(history)) is None


def test_without_a_user_message_nothing_is_too_old() -> None:
    assert kept([Message.system("s"), said("a"), said("b")], 1) == [0, 1, 2]


def test_system_and_pinned_messages_and_summaries_stay_however_old() -> None:
    summary = Message("assistant", (Text("earlier"),), mark="summary")
    history = [Message.system("s"), user("1", pinned=True), summary, said("a"), Message.system("t"), user("2")]
    assert kept(history, 1) == [0, 1, 2, 4, 5]


def test_a_pinned_result_keeps_its_call() -> None:
    pinned = Message("tool", (ToolResult("c", "look", "r"),), pinned=True)
    history = [user("1"), call("c", "d"), pinned, result("d"), said("a"), user("2")]
    assert kept(history, 1) == [1, 2, 3, 5]
    assert kept(history, 10, remove_tool_msgs=True) == [0, 1, 2, 3, 4, 5]


def test_tool_results_in_a_user_message_are_not_the_users() -> None:
    """One wire has them there; they must not count."""
    handed_in = Message("user", (ToolResult("c", "look", "r"),))
    history = [user("1"), call("c"), handed_in, said("a"), user("2")]
    assert kept(history, 2) == [0, 1, 2, 3, 4]
    assert kept(history, 1) == [4]


def test_a_late_result_behind_the_first_message_kept_keeps_its_call() -> None:
    """A human in the loop: the original leaves the result alone, without its call."""
    history = [user("1"), call("c"), user("2"), result("c"), said("a")]
    assert kept(history, 1) == [1, 2, 3, 4]


def test_a_user_message_between_calls_of_a_dropped_turn_goes_with_it() -> None:
    history = [user("1"), call("c"), user("2"), result("c"), said("a"), user("3")]
    assert kept(history, 1) == [5]


# Tool messages


def test_tool_calls_go_with_all_their_results() -> None:
    history = [user("1"), *loop(3), said("a"), user("2"), call("x", "y"), result("y"), result("x"), said("b")]
    assert kept(history, remove_tool_msgs=True) == [0, 7, 8, 12]


def test_tool_messages_go_even_if_the_user_spoke_before_they_were_read() -> None:
    assert kept([user("1"), *loop(1), user("2")], remove_tool_msgs=True) == [0, 3]


def test_the_loop_that_still_runs_keeps_its_results() -> None:
    """Without them the model would call the same tools again, for ever."""
    running = [user("2"), call("x"), result("x"), call("y"), result("y")]
    assert kept([user("1"), *loop(2), said("a"), *running], remove_tool_msgs=True) == [0, 5, 6, 7, 8, 9, 10]


def test_a_result_that_comes_after_the_model_went_on_talking_stays() -> None:
    history = [user("1"), call("x"), result("x"), call("y"), said("wait"), result("y")]
    assert kept(history, remove_tool_msgs=True) == [0, 3, 4, 5]


def test_a_reminder_at_the_end_does_not_end_a_loop() -> None:
    history = [user("1"), *loop(2), Message.system("be brief")]
    assert kept(history, remove_tool_msgs=True) == [0, 1, 2, 3, 4, 5]


def test_a_call_that_waits_for_its_result_stays() -> None:
    history = [user("1"), *loop(1), said("a"), user("2"), call("w")]
    assert kept(history, 1, True, 1) == [4, 5]
    assert kept([user("1"), call("w")], remove_tool_msgs=True) == [0, 1]
    assert kept([user("1"), call("w"), user("2")], 1) == [1, 2]


def test_what_the_user_said_beside_a_result_stays() -> None:
    both = Message("user", (ToolResult("c", "look", "r"), Text("and hurry")))
    history = [user("1"), call("c"), both, said("a"), user("2")]
    assert kept(history, remove_tool_msgs=True) == [0, 1, 2, 3, 4]
    assert kept(history, 1) == [4]


# Rounds


def test_a_long_loop_after_one_user_message_is_bounded() -> None:
    """The original never trims it."""
    history = [user("task"), *loop(50)]
    assert kept(history, 1, max_rounds=3) == [0, 95, 96, 97, 98, 99, 100]


def test_each_turn_keeps_its_own_newest_rounds() -> None:
    history = [user("1"), *loop(3), said("a"), user("2"), *loop(2)]
    assert kept(history, max_rounds=2) == [0, 5, 6, 7, 8, 9, 10, 11, 12]
    assert kept(history, max_rounds=1) == [0, 7, 8, 11, 12]


def test_parallel_calls_are_one_round() -> None:
    history = [user("1"), call("a", "b"), result("b"), result("a"), call("c"), result("c")]
    assert kept(history, max_rounds=2) == [0, 1, 2, 3, 4, 5]
    assert kept(history, max_rounds=1) == [0, 4, 5]


def test_late_results_that_the_model_is_about_to_read_stay() -> None:
    history = [user("1"), call("a"), call("b"), result("a"), result("b")]
    assert kept(history, max_rounds=1) == [0, 1, 2, 3, 4]


def test_rounds_without_a_user_message_are_bounded_too() -> None:
    assert kept([Message.system("s"), *loop(3)], max_rounds=1) == [0, 5, 6]


def test_summaries_are_no_rounds_and_pinned_rounds_stay() -> None:
    summary = Message("assistant", (Text("earlier"),), mark="summary")
    history = [user("1"), summary, Message.assistant("note", pinned=True), said("a"), said("b")]
    assert kept(history, max_rounds=1) == [0, 1, 2, 4]


def test_a_summary_does_not_push_a_round_out() -> None:
    summary = Message("assistant", (Text("earlier"),), mark="summary")
    assert kept([user("1"), said("a"), summary], max_rounds=1) == [0, 1, 2]


def test_what_reaches_into_the_window_from_older_turns_is_bounded_as_one_turn() -> None:
    history = [user("1"), call("a"), user("2"), call("b"), user("3"), result("a"), result("b"), said("so")]
    assert kept(history, 1) == [1, 3, 4, 5, 6, 7]
    assert kept(history, 1, max_rounds=1) == [3, 4, 6, 7]


def test_removed_tool_messages_were_rounds_all_the_same() -> None:
    """Or a message that went while a loop ran would come back when it has ended."""
    history = [user("1"), said("plan"), *loop(3), said("a"), user("2")]
    assert kept(history, max_rounds=2, remove_tool_msgs=True) == [0, 8, 9]


def test_the_reason_says_why() -> None:
    history = [user("1"), user("2"), *loop(2), said("a"), said("b"), user("3")]
    plan = NewestTurns(2, True, 1).plan(context_of(history))
    assert plan is not None
    assert plan.reason == "3 user messages, more than 2; finished tool calls; turns of more than 1 rounds"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_messages": 0}, "max_messages=0 must be a whole number, at least 1"),
        ({"max_messages": -1}, "max_messages=-1"),
        ({"max_messages": True}, "max_messages=True"),
        ({"max_messages": 2.0}, "max_messages=2.0"),
        ({"max_messages": None}, "max_messages=None"),
        ({"max_rounds": 0}, "max_rounds=0 must be a whole number, at least 1, or None"),
        ({"remove_tool_msgs": 1}, "remove_tool_msgs=1 must be True or False"),
    ],
)
def test_what_would_keep_nothing_is_refused_with_its_value(options: dict[str, Any], told: str) -> None:
    with pytest.raises(WiringError, match=told) as caught:
        NewestTurns(**options)
    assert caught.value.parameter == next(iter(options))
