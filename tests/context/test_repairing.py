"""Repairs: what a caller sends that does not pair is made to pair, and said."""

from __future__ import annotations

import asyncio

from hypothesis import given

from chatstack import ContextWindowGuard, Message, Text, ToolCall, ToolResult
from chatstack.context.repairing import NO_RESULT, repair_plan
from chatstack.context.units import units_of
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import is_subsequence, leftovers
from tests.histories import PROPERTY, histories, tidy_histories


def calls(*ids: str) -> Message:
    return Message.assistant(*(ToolCall(each, "look") for each in ids))


def repaired(messages: list[Message]) -> list[Message]:
    plan = repair_plan(messages)
    return messages if plan is None else list(plan.apply(messages))


def answer(call_id: str) -> Message:
    return Message("tool", (ToolResult(call_id, "look", NO_RESULT, is_error=True),), mark="repair")


def test_a_history_that_pairs_needs_no_repair() -> None:
    assert repair_plan([Message.user("hi"), calls("a"), Message.tool("a", "1"), Message.user("so?")]) is None


def test_the_calls_of_the_last_message_still_wait() -> None:
    assert repair_plan([Message.user("hi"), calls("a", "b")]) is None


def test_a_result_without_a_call_goes() -> None:
    assert repaired([Message.user("hi"), Message.tool("a", "1"), Message.user("so?")]) == [
        Message.user("hi"),
        Message.user("so?"),
    ]


def test_of_a_message_with_more_than_an_orphan_only_the_orphan_goes() -> None:
    both = Message("tool", (ToolResult("a", "look", "1"), ToolResult("nobody", "look", "2")))
    stray = Message("user", (ToolResult("nobody", "look", "3"), Text("and?")))
    after = repaired([calls("a"), both, stray])
    assert after == [calls("a"), Message("tool", (ToolResult("a", "look", "1"),)), Message.user("and?")]
    assert after[1].original is both


def test_equal_results_are_told_apart_by_which_of_them_pairs() -> None:
    same = Message.tool("a", "1")
    assert repaired([calls("a"), same, Message.tool("a", "1"), Message.user("so?")]) == [
        calls("a"),
        same,
        Message.user("so?"),
    ]


def test_a_call_without_a_result_is_answered_right_behind_it() -> None:
    assert repaired([calls("a"), Message.user("so?")]) == [calls("a"), answer("a"), Message.user("so?")]


def test_the_answer_comes_behind_the_results_that_are_there() -> None:
    asked = calls("a", "b", "c")
    assert repaired([asked, Message.tool("b", "2"), Message.user("so?")]) == [
        asked,
        Message.tool("b", "2"),
        answer("a"),
        answer("c"),
        Message.user("so?"),
    ]


def test_the_plan_says_what_was_wrong_in_numbers() -> None:
    plan = repair_plan([calls("a"), Message.user("secret"), Message.tool("x", "secret")])
    assert plan is not None
    assert plan.reason == "1 results without a call, 1 calls without a result"


def test_an_orphan_beside_the_text_of_the_latest_user_message_is_taken_out_of_it() -> None:
    model = ScriptedClient()
    stray = Message("user", (ToolResult("nobody", "look", "3"), Text("and?")))
    asyncio.run(ContextWindowGuard(model, max_context_tokens=1000).get_response([Message.user("hi"), stray]))
    assert model.requests[0].messages == (Message.user("hi"), Message.user("and?"))


def test_a_pinned_orphan_goes_too_for_no_provider_would_take_it() -> None:
    model = ScriptedClient()
    stray = Message("tool", (ToolResult("nobody", "look", "3"),), pinned=True)
    asyncio.run(ContextWindowGuard(model, max_context_tokens=1000).get_response([stray, Message.user("hi")]))
    assert model.requests[0].messages == (Message.user("hi"),)


def test_a_repair_is_said_once_for_a_conversation_and_again_when_there_is_more_of_it() -> None:
    capture = TelemetryCapture()
    guard = ContextWindowGuard(ScriptedClient(), max_context_tokens=1000, telemetry=capture.telemetry)
    history = [Message.user("hi"), calls("a"), Message.user("so?")]
    for _ in range(2):
        asyncio.run(guard.get_response(history, conversation_id="c"))
    assert capture.warnings == ("messages_repaired",)
    capture.clear()
    asyncio.run(guard.get_response([*history, calls("b"), Message.user("well?")], conversation_id="c"))
    assert capture.warnings == ("messages_repaired",)


@PROPERTY
@given(histories())
def test_after_a_repair_everything_pairs_and_nothing_is_left_to_repair(messages: list[Message]) -> None:
    after = repaired(messages)
    assert leftovers(after) == {}
    assert repair_plan(after) is None


@PROPERTY
@given(histories())
def test_a_repair_keeps_all_that_is_no_orphan_in_order(messages: list[Message]) -> None:
    after = repaired(messages)
    assert is_subsequence([each for each in messages if not each.results], after)
    ours = [message for message in after if message.mark == "repair"]
    open_before = sum(count for what, count in leftovers(messages).items() if what.startswith("call"))
    assert len(ours) == open_before


@PROPERTY
@given(histories())
def test_an_inserted_answer_stands_behind_its_call_with_nothing_but_results_between(messages: list[Message]) -> None:
    after = repaired(messages)
    for unit in units_of(after):
        for position in unit.positions:
            if after[position].mark == "repair":
                asked = max(each for each in unit.positions if after[each].calls and each < position)
                assert all(after[each].results for each in range(asked + 1, position))


@PROPERTY
@given(tidy_histories())
def test_a_tidy_history_is_not_touched(messages: list[Message]) -> None:
    assert repair_plan(messages) is None
