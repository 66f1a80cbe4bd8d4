"""Repairs: what a caller sends that does not pair is made to pair, and said."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import (
    ContextMemory,
    ContextWindowGuard,
    InputError,
    Message,
    Plan,
    ProviderItem,
    Text,
    ToolCall,
    ToolResult,
)
from chatstack.context.edits.repairing import NO_RESULT, repair_plan
from chatstack.context.edits.units import units_of
from chatstack.context.edits.verifier import problems
from chatstack.context.requests.services import ContextServices
from chatstack.testing import ScriptedClient, TelemetryCapture
from tests.context.strictness import context_of, is_subsequence, leftovers, refusals
from tests.histories import PROPERTY, histories, tidy_histories
from tests.steps import Name, grows_linearly


def calls(*ids: str) -> Message:
    return Message.assistant(*(ToolCall(each, "look") for each in ids))


def repaired(messages: list[Message]) -> list[Message]:
    plan = repair_plan(messages)
    return messages if plan is None else list(plan.apply(messages))


def words(messages: list[Message]) -> list[tuple[object, ...]]:
    return [
        (each.role, said) for each in messages if (said := [p for p in each.parts if not isinstance(p, ToolResult)])
    ]


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
    assert after[1].original is after[1], "what is left stands for itself: nobody further in may meet the orphan again"


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
    guard = ContextWindowGuard(
        ScriptedClient(), max_context_tokens=1000, services=ContextServices(telemetry=capture.telemetry)
    )
    history = [Message.user("hi"), calls("a"), Message.user("so?")]
    for _ in range(2):
        asyncio.run(guard.get_response(history, conversation_id="c"))
    assert capture.warnings == ("messages_repaired",)
    capture.clear()
    asyncio.run(guard.get_response([*history, calls("b"), Message.user("well?")], conversation_id="c"))
    assert capture.warnings == ("messages_repaired",)


def results(call_id: str, text: str) -> Message:
    return Message("tool", (ToolResult(call_id, "look", text),))


def test_a_result_behind_a_word_of_the_user_is_put_before_it() -> None:
    late = Message.tool("a", "1")
    after = repaired([calls("a"), Message.user("wait"), late, Message.user("so?")])
    assert after == [calls("a"), late, Message.user("wait"), Message.user("so?")]
    assert after[1] is late


def test_whatever_stands_between_comes_behind_in_its_order() -> None:
    between = [
        Message.user("one"),
        Message.system("two"),
        Message.assistant("three"),
        Message("user", (Text("four"),), pinned=True),
        Message("user", (ToolResult("nobody", "look", "5"), Text("five"))),
    ]
    late = Message("tool", (ToolResult("a", "look", "1"),), pinned=True)
    assert repaired([calls("a"), *between, late]) == [calls("a"), late, *between[:4], Message.user("five")]


def test_of_parallel_calls_the_late_results_come_behind_those_that_are_there_and_missing_ones_are_answered() -> None:
    asked = calls("a", "b", "c")
    assert repaired([asked, Message.tool("b", "2"), Message.user("so?"), Message.tool("c", "3")]) == [
        asked,
        Message.tool("b", "2"),
        answer("a"),
        Message.tool("c", "3"),
        Message.user("so?"),
    ]


def test_results_of_two_messages_calls_in_one_message_are_told_apart() -> None:
    both = Message("tool", (ToolResult("a", "look", "1"), ToolResult("b", "look", "2")))
    assert repaired([calls("a"), calls("b"), both]) == [calls("a"), results("a", "1"), calls("b"), results("b", "2")]


def test_a_late_result_in_a_message_of_the_user_leaves_the_words_where_they_are() -> None:
    mixed = Message("user", (ToolResult("a", "look", "1"), Text("and?")))
    assert repaired([calls("a"), Message.user("wait"), mixed]) == [
        calls("a"),
        results("a", "1"),
        Message.user("wait"),
        Message.user("and?"),
    ]


def test_a_result_behind_words_in_the_same_message_comes_before_them() -> None:
    mixed = Message("user", (Text("here:"), ToolResult("a", "look", "1")))
    assert repaired([calls("a"), mixed]) == [calls("a"), results("a", "1"), Message.user("here:")]


def test_results_before_words_in_one_message_stay_unless_there_are_more_of_them() -> None:
    mixed = Message("user", (ToolResult("a", "look", "1"), Text("and?")))
    assert repair_plan([calls("a"), mixed]) is None
    assert repaired([calls("a", "b"), mixed]) == [calls("a", "b"), results("a", "1"), answer("b"), Message.user("and?")]
    assert repaired([calls("a", "b"), mixed, Message.tool("b", "2")]) == [
        calls("a", "b"),
        results("a", "1"),
        Message.tool("b", "2"),
        Message.user("and?"),
    ]


def test_an_id_used_again_leaves_each_result_with_its_own_call() -> None:
    history = [calls("a"), Message.user("wait"), Message.tool("a", "1"), calls("a"), Message.tool("a", "2")]
    assert repaired(history) == [calls("a"), Message.tool("a", "1"), Message.user("wait"), *history[3:]]


def test_a_result_in_the_middle_of_another_round_leaves_that_round_whole() -> None:
    history = [calls("a"), calls("b", "c"), Message.tool("b", "2"), Message.tool("a", "1"), Message.tool("c", "3")]
    assert repaired(history) == [history[0], history[3], history[1], history[2], history[4]]


def test_the_same_result_object_twice_is_kept_once() -> None:
    part = ToolResult("a", "look", "1")
    assert repaired([calls("a"), Message("tool", (part, part))]) == [calls("a"), results("a", "1")]


def test_a_result_inside_of_the_message_that_asks_goes_behind_it_and_then_nothing_waits() -> None:
    asked = Message("assistant", (ToolCall("a", "look"), ToolResult("a", "look", "1"), ToolCall("b", "look")))
    assert repaired([Message.user("hi"), asked]) == [
        Message.user("hi"),
        calls("a", "b"),
        results("a", "1"),
        answer("b"),
    ]


def test_items_of_a_provider_among_results_are_no_words_between() -> None:
    item = Message("tool", (ProviderItem("openai", '{"type":"computer_call_output"}'),))
    assert repair_plan([calls("a"), item, Message.tool("a", "1")]) is None


def test_the_plan_says_how_many_results_stood_elsewhere() -> None:
    plan = repair_plan([calls("a"), Message.user("secret"), Message.tool("a", "secret")])
    assert plan is not None
    assert plan.reason == "0 results without a call, 0 calls without a result, 1 results away from their call"


def test_a_result_that_arrives_for_a_call_that_was_answered_by_us_takes_that_place_and_is_said() -> None:
    model, capture = ScriptedClient(), TelemetryCapture()
    guard = ContextWindowGuard(model, max_context_tokens=1000, services=ContextServices(telemetry=capture.telemetry))
    begun = [Message.user("hi"), calls("a", "b"), Message.user("wait")]
    late = [*begun, Message.assistant("fine"), Message("tool", (ToolResult("a", "look"), ToolResult("b", "look")))]
    for history in (begun, late, [*late, Message.user("so?")]):
        asyncio.run(guard.get_response(history, conversation_id="c"))
    sent = [request.messages for request in model.requests]
    assert sent[0] == (*begun[:2], answer("a"), answer("b"), begun[2])
    assert sent[1] == (*begun[:2], late[4], begun[2], late[3])
    assert sent[2][: len(sent[1])] == sent[1], "the prefix holds again"
    assert capture.warnings == ("messages_repaired", "messages_repaired")


def test_a_result_that_comes_where_it_belongs_after_it_was_answered_by_us_is_said_too() -> None:
    model, capture = ScriptedClient(), TelemetryCapture()
    guard = ContextWindowGuard(model, max_context_tokens=1000, services=ContextServices(telemetry=capture.telemetry))
    begun = [Message.user("hi"), calls("a", "b"), Message.tool("a", "1")]
    for history in (begun, [*begun, Message.tool("b", "2")], [*begun, Message.tool("b", "2"), Message.user("so?")]):
        asyncio.run(guard.get_response(history))
    assert [len(request.messages) for request in model.requests] == [4, 4, 5]
    assert model.requests[0].messages[3] == answer("b")
    assert capture.warnings == ("messages_repaired", "messages_repaired")
    assert capture.logs[-1].body == "the history had no result of a call, and has it now"


def test_a_system_message_between_a_call_and_its_result_is_repaired_on_every_call() -> None:
    model = ScriptedClient()
    guard = ContextWindowGuard(model, max_context_tokens=1000)
    history = [Message.user("hi"), calls("a"), Message.system("be kind"), Message.tool("a", "1")]
    for more in ([], [Message.user("so?")]):
        asyncio.run(guard.get_response([*history, *more]))
    good = (history[0], history[1], history[3], history[2])
    assert [request.messages for request in model.requests] == [good, (*good, Message.user("so?"))]


@pytest.mark.slow
def test_a_repair_takes_as_many_steps_as_there_are_messages() -> None:
    def repair(many: int) -> None:
        ids = [Name(number) for number in range(many)]
        orphans = Message("tool", tuple(ToolResult(Name(f"no {each}"), "look") for each in ids))
        history = [Message.user("hi"), orphans, calls(*ids), Message.user("and?")]
        history += [Message.tool(Name(each), "late") for each in reversed(ids[: many // 2])]
        after = repaired(history)
        assert [len(message.parts) for message in after[:3]] == [1, many, 1]
        assert after[-1] == Message.user("and?")
        assert refusals(after) == []
        assert problems(repair_plan(history) or Plan(strategy="", reason=""), context_of(history), is_repair=True) == ()

    assert grows_linearly(repair)


@PROPERTY
@given(histories())
def test_after_a_repair_everything_pairs_and_nothing_is_left_to_repair(messages: list[Message]) -> None:
    after = repaired(messages)
    assert leftovers(after) == {}
    assert repair_plan(after) is None


@PROPERTY
@given(histories())
def test_after_a_repair_no_wire_refuses_the_messages(messages: list[Message]) -> None:
    assert refusals(repaired(messages)) == []


@PROPERTY
@given(histories())
def test_a_repair_is_needed_exactly_where_the_history_says_so(messages: list[Message]) -> None:
    memory = ContextMemory()
    for length in (len(messages) // 2, len(messages)):
        seen = memory.recognise(messages[:length])
        assert seen.needs_repair == (repair_plan(messages[:length]) is not None)


@PROPERTY
@given(histories())
def test_a_repair_keeps_all_words_in_order_and_every_answer(messages: list[Message]) -> None:
    after = repaired(messages)
    assert is_subsequence([each for each in messages if not each.results], after)
    assert words(after) == words(messages)
    ours = [message for message in after if message.mark == "repair"]
    open_before = sum(count for what, count in leftovers(messages).items() if what.startswith("call"))
    orphans = sum(count for what, count in leftovers(messages).items() if what.startswith("result"))
    assert len(ours) == open_before
    assert sum(len(each.results) for each in after) == sum(len(each.results) for each in messages) - orphans + len(ours)


@PROPERTY
@given(histories())
def test_a_repair_passes_the_verifier(messages: list[Message]) -> None:
    plan = repair_plan(messages)
    assert plan is None or problems(plan, context_of(messages), is_repair=True) == ()


@PROPERTY
@given(histories(), st.data())
def test_whenever_a_longer_history_begins_otherwise_than_it_was_sent_that_is_said(
    messages: list[Message], data: st.DataObject
) -> None:
    model, capture = ScriptedClient(), TelemetryCapture()
    guard = ContextWindowGuard(model, max_context_tokens=100_000, services=ContextServices(telemetry=capture.telemetry))
    sent: tuple[Message, ...] = ()
    for length in sorted({*data.draw(st.lists(st.integers(1, len(messages)), max_size=4)), len(messages)}):
        if not repaired(messages[:length]):
            continue  # nothing but results, which is refused
        capture.clear()
        asyncio.run(guard.get_response(messages[:length], conversation_id="c"))
        waits = bool(sent) and bool(sent[-1].calls)
        before, sent = sent, model.requests[-1].messages
        assert sent[: len(before)] == before or "messages_repaired" in capture.warnings or waits
        capture.clear()
        asyncio.run(guard.get_response(messages[:length], conversation_id="c"))
        assert model.requests[-1].messages == sent
        assert capture.warnings == (), "the same again is no news"


@PROPERTY
@given(histories())
def test_an_answer_or_result_stands_behind_its_call_with_nothing_but_results_between(messages: list[Message]) -> None:
    after = repaired(messages)
    for unit in units_of(after):
        for position in unit.positions:
            if after[position].results:
                asked = max(each for each in unit.positions if after[each].calls and each < position)
                assert all(after[each].results for each in range(asked + 1, position))


@PROPERTY
@given(tidy_histories())
def test_a_tidy_history_is_not_touched(messages: list[Message]) -> None:
    assert repair_plan(messages) is None


def test_results_without_any_call_are_refused_before_anything_is_sent() -> None:
    provider = ScriptedClient()
    guard = ContextWindowGuard(provider, max_context_tokens=100)
    with pytest.raises(InputError, match="nothing but tool results"):
        asyncio.run(guard.get_response([Message.tool("a", "1"), Message.tool("b", "2")]))
    assert provider.requests == []
