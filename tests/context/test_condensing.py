"""Condensing: what goes at the limit, what never does, and what is left of it."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import ClearThenDrop, Image, Message, Plan, Text, ToolCall, ToolResult, WiringError
from chatstack.context.edits.context import Context
from chatstack.context.edits.handles import handle_of
from chatstack.context.edits.verifier import problems
from chatstack.context.strategies.name_lists import without_list
from tests.context.strictness import context_of, is_subsequence, leftovers, size
from tests.histories import PROPERTY, tidy_histories

LONG = "sun and rain " * 40
TASK, NOW = Message.user("task"), Message.assistant("that was all")


def call(number: int, *, output: str = LONG, arguments: str = "{}", **fields: Any) -> list[Message]:
    call_id = f"c{number}"
    result = ToolResult(call_id, "look", f"{number} {output}" if output else "", **fields)
    return [Message("assistant", (ToolCall(call_id, "look", arguments),)), Message("tool", (result,))]


def rounds(count: int, **fields: Any) -> list[Message]:
    return [message for number in range(count) for message in call(number, **fields)]


def talk(count: int) -> list[Message]:
    """About 140 tokens each."""
    return [(Message.assistant if at % 2 else Message.user)(f"{at} {LONG}") for at in range(count)]


def planned(strategy: ClearThenDrop, messages: Sequence[Message], **about: Any) -> Plan | None:
    """The plan, which must be a good one."""
    context = msgspec.structs.replace(context_of(messages), **about)
    plan = strategy.plan(context)
    assert plan is None or problems(plan, context) == ()
    return plan


def condensed(strategy: ClearThenDrop, messages: Sequence[Message], **about: Any) -> list[Message]:
    plan = planned(strategy, messages, **about)
    return list(messages if plan is None else plan.apply(messages))


def plain(limit: int | None, **options: Any) -> ClearThenDrop:
    """Without a list of names."""
    return ClearThenDrop(limit, mentions=0, **options)


# Values


@pytest.mark.parametrize(
    ("options", "parameter", "said"),
    [
        (
            {"max_tokens": bad},
            "max_tokens",
            f"max_tokens={bad!r} must be a whole number, at least 1, or None",
        )
        for bad in (0, -1, 1.5, True, "8k")
    ]
    + [
        ({name: bad}, name, f"{name}={bad!r} must be a number{wanted}")
        for name, wanted in (
            ("target", " greater than 0, at most 1"),
            ("keep_recent", " from 0 to 1"),
            ("newest_result", " from 0 to 1"),
            ("mentions", ", at least 0, less than 1"),
        )
        for bad in (-0.1, 1.1, True, "0.5", None, math.nan)
    ]
    + [({"target": 0.05, "mentions": 0.05}, "target", "target=0.05 must be more than mentions=0.05")],
)
def test_a_bad_value_is_refused_with_parameter_and_value(options: dict[str, Any], parameter: str, said: str) -> None:
    with pytest.raises(WiringError) as caught:
        ClearThenDrop(**options)
    assert str(caught.value) == f"ClearThenDrop: {said}"
    assert (caught.value.layer, caught.value.parameter) == ("ClearThenDrop", parameter)


def test_up_to_the_limit_nothing_is_done() -> None:
    messages = [TASK, *rounds(5), NOW]
    tokens = size(messages)
    assert planned(ClearThenDrop(tokens), messages) is None
    assert planned(ClearThenDrop(tokens - 1), messages) is not None


def test_without_a_limit_it_is_the_window() -> None:
    messages = [TASK, *rounds(5), NOW]
    assert planned(ClearThenDrop(), messages) is None
    assert planned(ClearThenDrop(), messages, window_tokens=size(messages)) is None
    assert planned(ClearThenDrop(), messages, window_tokens=size(messages) - 1) is not None
    assert planned(ClearThenDrop(100_000), messages, window_tokens=10) is None


def test_the_reason_names_size_and_limit() -> None:
    plan = planned(ClearThenDrop(1_000), [TASK, *rounds(10), NOW])
    assert plan is not None
    assert (plan.strategy, plan.reason) == (
        "clear_then_drop",
        f"forced ({size([TASK, *rounds(10), NOW]):,} tokens, more than 1,000)",
    )


# Clearing, then dropping


def test_where_clearing_is_enough_nothing_is_dropped() -> None:
    messages = [TASK, *rounds(10), NOW]
    left = condensed(plain(1_400, target=0.5), messages)
    assert len(left) == len(messages)
    texts = [each.results[0].text for each in left if each.results]
    assert texts[0] == "[cleared]"
    assert texts.count("[cleared]") in (9, 10)


def test_the_newest_units_stay_as_they_are() -> None:
    messages = [TASK, *rounds(10), NOW]
    left = condensed(plain(1_400, target=0.6, keep_recent=0.25), messages)
    assert [each.results[0].text[:2] for each in left if each.results][-2:] == ["8 ", "9 "]
    assert condensed(plain(1_400, target=0.6, keep_recent=0), messages)[-1] is NOW


def test_where_clearing_is_not_enough_the_oldest_go_down_to_the_target() -> None:
    messages = [*talk(20), Message.user("go on")]
    left = condensed(plain(2_000), messages)
    assert size(left) <= ClearThenDrop().target * 2_000 < size(left) + 150
    assert left[0] is messages[0]
    assert left[1:] == messages[-len(left) + 1 :]
    assert is_subsequence(left, messages)


def test_a_plain_chat_without_tools_only_drops() -> None:
    plan = planned(ClearThenDrop(2_000), [*talk(20), Message.user("go on")])
    assert plan is not None
    assert plan.drop
    assert not plan.replace
    assert not plan.insert


def test_calls_go_with_their_results() -> None:
    left = condensed(ClearThenDrop(300), [TASK, *rounds(30), NOW])
    assert leftovers(left) == {}
    assert size(left) <= 300


def test_a_target_that_cannot_be_reached_is_come_as_near_to_as_may_be() -> None:
    rules = Message.system("x" * 2_000)
    messages = [rules, TASK, *rounds(10), NOW]
    left = condensed(plain(1_000), messages)
    assert [rules, TASK] == left[:2]
    assert 500 < size(left) <= 1_000


def test_where_nothing_may_go_nothing_is_planned() -> None:
    messages = [Message.system("x" * 4_000), Message.user("task", pinned=True), Message.user("now")]
    assert planned(ClearThenDrop(500), messages) is None


def test_of_a_request_without_a_user_message_something_is_left() -> None:
    left = condensed(ClearThenDrop(100), rounds(5))
    assert left == rounds(5)[-2:] or (len(left) == 2 and left[0] == rounds(5)[-2])
    assert leftovers(left) == {}
    alone = Message.assistant("x" * 4_000)
    assert planned(ClearThenDrop(100), [alone]) is None


def thinking(number: int, arguments: str = "{}", **fields: str) -> list[Message]:
    """A call with a text beside it, of about 140 tokens, and its result."""
    asked, answered = call(number, output="fine", arguments=arguments)
    return [Message("assistant", (Text(f"{number} {LONG}", **fields), *asked.parts)), answered]


def test_what_was_said_beside_old_calls_goes_before_the_calls() -> None:
    history = [message for number in range(20) for message in thinking(number, f'{{"path": "src/module_{number}.py"}}')]
    left = condensed(plain(2_000, target=0.5, keep_recent=0.1), [TASK, *history, NOW])
    asked = [each for each in left if each.calls]
    assert [each.calls for each in asked] == [each.calls for each in history if each.calls]
    assert [bool(each.text) for each in asked] == sorted(bool(each.text) for each in asked), "the oldest are without"
    assert not asked[0].text
    assert asked[-1].text.startswith("19 ")
    assert size(left) <= 0.5 * 2_000 < size(left) + 150, "no more than is needed"
    assert asked[0].original is history[0]


def test_a_text_with_fields_of_a_provider_stays_beside_its_call() -> None:
    signed = [message for number in range(20) for message in thinking(number, extra_json='{"signature": "x"}')]
    left = condensed(plain(1_500), [TASK, *signed, NOW])
    assert all(each.text for each in left if each.calls)
    assert any(each not in left for each in signed), "so the unit went"


def test_a_call_that_was_made_again_goes_before_one_that_was_made_once() -> None:
    once = thinking(0, '{"path": "src/only_here.py", "query": "widgets"}')
    again = [message for number in range(1, 60) for message in thinking(number, '{"path": "src/often.py"}')]
    left = condensed(plain(2_000), [TASK, *once, *again, NOW])
    assert once[0].calls in [each.calls for each in left]
    assert sum(bool(each.calls) for each in left) < 59
    assert again[-1] in left


# What is never touched


def test_system_pinned_summary_first_and_latest_user_messages_stay() -> None:
    keep = [
        Message.system(LONG),
        Message.user(f"task {LONG}"),
        Message.assistant(f"pinned {LONG}", pinned=True),
        Message("assistant", (Text(f"summary {LONG}"),), mark="summary"),
        Message.system(f"another {LONG}"),
        Message.user(f"now {LONG}"),
    ]
    messages = [*keep[:2], *rounds(3), *keep[2:4], *talk(5), keep[4], keep[5], *call(9), NOW]
    left = condensed(ClearThenDrop(300), messages)
    assert [each for each in left if any(each is other for other in keep)] == keep


def test_a_pinned_result_keeps_its_content() -> None:
    asked, result = call(0)
    pinned = Message("tool", result.parts, pinned=True)
    left = condensed(ClearThenDrop(300), [TASK, asked, pinned, *rounds(5)[2:], NOW])
    assert any(each is pinned for each in left)


def test_calls_that_wait_for_their_results_stay() -> None:
    waiting = Message.assistant(LONG, ToolCall("wait", "look"))
    left = condensed(ClearThenDrop(200), [TASK, *rounds(5), waiting])
    assert left[-1] is waiting
    both = Message.assistant(LONG, ToolCall("wait", "look"), ToolCall("c7", "look"))
    left = condensed(ClearThenDrop(400, newest_result=1.0), [TASK, *rounds(5), both, call(7)[1]])
    assert left[-2:] == [both, call(7)[1]]


@pytest.mark.parametrize("beside", [{"is_error": True}, {"name": "short"}], ids=str)
def test_the_list_stands_in_the_place_of_a_cleared_result_not_of_one_that_stays_beside_it(
    beside: dict[str, Any],
) -> None:
    asked = Message("assistant", (ToolCall("a", "look"), ToolCall("b", "look")))
    stays = ToolResult("b", output="no", **beside)
    both = Message("tool", (ToolResult("a", "look", f"setup.py {LONG}"), stays))
    left = condensed(ClearThenDrop(500, mentions=0.2), [TASK, *rounds(3), asked, both, NOW])
    (carrier,) = [message for message in left if message.original is both]
    assert "setup.py" in carrier.results[0].text
    assert carrier.results[1] == stays


def test_errors_are_not_cleared_but_may_be_dropped() -> None:
    messages = [TASK, *call(0, is_error=True), *rounds(6)[2:], NOW]
    left = condensed(plain(700, target=0.5), messages)
    assert left[2] is messages[2]
    assert messages[2] not in condensed(plain(200), messages)


# What the model has not seen yet


def test_a_new_result_that_is_too_large_is_shortened_in_its_middle() -> None:
    text = f"begin {'x' * 8_000} end"
    asked, result = call(9, output=text)
    left = condensed(ClearThenDrop(1_000, newest_result=1.0), [TASK, *rounds(5), asked, result])
    (shortened,) = left[-1].results
    assert shortened.text.startswith("9 begin xxx")
    assert shortened.text.endswith("xxx end")
    assert 0.6 * 1_000 < size(left) <= 1_000
    assert left[-1].original is result
    before, _, rest = shortened.text.partition("\n[")
    marker, _, after = rest.partition("]\n")
    cut, total = (int(word.replace(",", "")) for word in marker.split() if word[0].isdigit())
    assert marker.endswith(" bytes left out")
    assert len(before) + cut + len(after) == total == len(result.results[0].text)


@pytest.mark.parametrize("share", [0.1, 0.2, 0.5])
def test_a_new_result_beyond_its_share_makes_room_for_the_rest(share: float) -> None:
    asked, result = call(99, output="x" * 8_000)
    left = condensed(ClearThenDrop(2_000, newest_result=share, target=0.9), [TASK, *rounds(10), asked, result])
    assert share * 2_000 - 10 <= size([left[-1]]) <= share * 2_000 + 64 + 10
    assert len(left) > 3
    within = condensed(ClearThenDrop(1_000, newest_result=0.2), [TASK, *rounds(10), *call(99)])
    assert within[-1] == call(99)[1]


def test_it_is_not_shortened_below_the_limit_or_where_something_older_can_go() -> None:
    messages = [TASK, *rounds(10), *call(99)]
    assert planned(ClearThenDrop(size(messages), newest_result=0), messages) is None
    left = condensed(ClearThenDrop(400, newest_result=1.0), messages)
    assert left[-1] is messages[-1]


def test_a_late_new_result_of_an_old_call_is_not_cleared() -> None:
    late, other = call(0), call(1)
    between = [message for number in range(2, 6) for message in call(number)]
    messages = [TASK, *between, late[0], other[0], other[1], late[1]]
    left = condensed(plain(600, target=0.6, keep_recent=0, newest_result=1.0), messages)
    assert left[-1] is late[1]


def test_a_shortened_error_is_still_an_error() -> None:
    asked, result = call(9, output="x" * 8_000, is_error=True)
    left = condensed(ClearThenDrop(1_000), [TASK, asked, result])
    assert left[-1].results[0].is_error
    assert size(left) <= 1_000


def test_of_several_new_results_the_largest_is_shortened_first() -> None:
    asked = Message("assistant", tuple(ToolCall(each, "look") for each in "ab"))
    small, large = Message.tool("a", LONG), Message.tool("b", "x" * 8_000)
    left = condensed(ClearThenDrop(1_000, newest_result=1.0), [TASK, asked, small, large])
    assert left[2] is small
    assert len(left[3].results[0].text) < 4_000


def test_a_new_result_of_pictures_that_are_too_large_names_them() -> None:
    pictures = tuple(Image(url=f"https://example.org/{number}.png") for number in range(5))
    messages = [
        TASK,
        Message.assistant("", ToolCall("c", "look")),
        Message("tool", (ToolResult("c", "look", pictures),)),
    ]
    left = condensed(ClearThenDrop(1_000), messages)
    assert left[:2] == messages[:2]
    assert left[2].results[0].text == "\n".join(["[a picture left out: no type]"] * 5)


def test_a_result_from_whose_message_an_orphan_was_taken_is_condensed_too() -> None:
    came = Message("tool", (ToolResult("gone", "look", "orphan"), ToolResult("c0", "look", "x" * 8_000)))
    repaired = came.edited(parts=came.parts[1:])
    left = condensed(ClearThenDrop(1_000), [TASK, call(0)[0], repaired])
    assert size(left) <= 1_000
    assert left[-1].original is came
    assert left[-1].results[0].call_id == "c0"
    left = condensed(plain(1_000), [TASK, call(0)[0], repaired, *call(1), NOW])
    assert left[2].results[0].text == "[cleared]"


def test_a_tool_message_of_text_alone_does_no_harm() -> None:
    messages = [TASK, *rounds(4), Message("tool", (Text("x" * 8_000),))]
    assert size(condensed(ClearThenDrop(500), messages)) <= 500


# Several results in one message


def test_of_several_results_in_one_message_each_is_cleared() -> None:
    asked = Message("assistant", tuple(ToolCall(each, "look") for each in "abc"))
    together = Message(
        "tool",
        (
            ToolResult("a", "look", LONG),
            ToolResult("b", "look", f"failed {LONG}", is_error=True),
            ToolResult("c", "look", "ok"),
        ),
    )
    left = condensed(plain(700, target=0.9), [TASK, asked, together, *rounds(3), NOW])
    assert [each.text[:9] for each in left[2].results] == ["[cleared]", "failed su", "ok"]
    assert left[2].annotation is not None
    assert left[2].annotation.handles == (handle_of(together.results[0]),)


# The list of names


def names_in(messages: Sequence[Message]) -> list[str]:
    """The names in the one list, and the arguments in its labels."""
    lists = [rows for message in messages for each in message.results if (rows := without_list(each.text)[1])]
    assert len(lists) <= 1
    return [name for rows in lists for row in rows for name in (*row.names, *row.label.split()[1:])]


def test_the_names_in_what_is_gone_are_left_in_the_place_of_one_result() -> None:
    first = call(0, output=f"{LONG} src/app/main.py and user_settings")
    left = condensed(ClearThenDrop(1_500), [TASK, *first, *rounds(40)[2:], NOW])
    assert {"src/app/main.py", "user_settings"} <= set(names_in(left))
    assert size(left) <= ClearThenDrop().target * 1_500


def test_names_that_are_still_in_sight_are_not_listed() -> None:
    first = call(0, output=f"{LONG} src/app/main.py and user_settings")
    left = condensed(ClearThenDrop(1_500), [TASK, *first, *rounds(40)[2:], Message.assistant("see src/app/main.py")])
    assert "user_settings" in names_in(left)
    assert "src/app/main.py" not in names_in(left)


def test_without_room_for_it_there_is_no_list() -> None:
    first = call(0, output=f"{LONG} src/app/main.py")
    assert names_in(condensed(plain(1_500), [TASK, *first, *rounds(40)[2:], NOW])) == []


def test_the_list_is_no_longer_than_its_share() -> None:
    many = [
        message for number in range(60) for message in call(number, output=f"{LONG} module_{number}/file_{number}.py")
    ]
    for share in (0.01, 0.05, 0.1):
        left = condensed(ClearThenDrop(4_000, mentions=share), [TASK, *many, NOW])
        without = condensed(plain(4_000), [TASK, *many, NOW])
        names = names_in(left)
        assert 0 < size([Message.user(" ".join(names))]) <= share * 4_000 + 10
        assert size(left) <= ClearThenDrop().target * 4_000
        assert size(without) <= ClearThenDrop().target * 4_000


def test_data_that_the_model_has_written_does_not_take_the_room_of_the_names() -> None:
    data = "QUJD1" * 400
    written = [message for number in range(2) for message in call(number, arguments=f'{{"data": "{data}"}}')]
    left = condensed(ClearThenDrop(1_500), [TASK, *written, *call(2, output=f"{LONG} user_settings"), *rounds(40), NOW])
    assert names_in(left) == ["user_settings", "rain"]


def test_a_unit_is_not_spared_to_carry_nothing() -> None:
    failed = [message for number in range(2) for message in call(number, output="of to in " * 130, is_error=True)]
    messages = [TASK, *failed, NOW, Message.user("now")]
    left = condensed(ClearThenDrop(500), messages)
    assert left == condensed(plain(500), messages) == [TASK, NOW, Message.user("now")]


WITH_NAMES = [" ".join(f"name_{number}_{at}" for at in range(30)) for number in range(60)]


def grown(context: Context, more: Sequence[Message]) -> Context:
    """The context one call later: what was edited stays so."""
    came = len(context.request.messages)
    origins = (*context.origins, *range(came, came + len(more)))
    return msgspec.structs.replace(
        context,
        request=context.request.but(messages=(*context.request.messages, *more)),
        messages=(*context.messages, *more),
        messages_tokens=context.messages_tokens + size(more),
        find_origins=functools.partial(tuple[int | None, ...], origins),
    )


def going_on(strategy: ClearThenDrop, outputs: Sequence[str], before: Sequence[Message] = (TASK, NOW)) -> list[Context]:
    """What is left after each edit of a run that goes on, a call at a time, with these outputs."""
    context, left = context_of(before), list[Context]()
    for number, output in enumerate(outputs):
        context = grown(context, [*call(100 + number, output=output), NOW])
        plan = strategy.plan(context)
        if plan is not None:
            assert problems(plan, context) == ()
            context = context.after(plan)
            left.append(context)
    return left


def test_a_later_edit_keeps_the_list_and_what_stands_before_it() -> None:
    first, second, *_ = [list(context.messages) for context in going_on(ClearThenDrop(1_500), WITH_NAMES)]
    (at,) = [at for at, message in enumerate(first) if names_in([message])]
    assert second[: at + 1] == first[: at + 1]
    lists = [names_in([message]) for message in second if names_in([message])]
    assert len(lists) == 2
    assert not set(lists[0]) & set(lists[1])
    assert 0.45 * 1_500 < size(second) <= (0.45 + 0.09) * 1_500


def test_where_that_makes_too_little_room_everything_is_edited_again() -> None:
    left = [list(context.messages) for context in going_on(ClearThenDrop(1_500), WITH_NAMES)]
    whole = [messages for messages in left if size(messages) <= 0.45 * 1_500]
    assert 2 <= len(whole) < len(left)
    first, again = whole[:2]
    (at,) = [at for at, message in enumerate(first) if names_in([message])]
    assert first[at] not in again
    assert {name for message in first for name in names_in([message])} <= {
        name for message in again for name in names_in([message])
    }
    assert all(1_500 - size(messages) >= (1 - 0.45) * 1_500 / 2 for messages in left)


def test_the_placeholder_can_name_tool_size_and_handle() -> None:
    unnamed = [Message.assistant("", ToolCall("c0", "look")), Message.tool("c0", LONG)]
    left = condensed(
        plain(700, target=0.9, placeholder="{tool} {tokens} {handle} {}"),
        [TASK, *unnamed, *rounds(4)[2:], NOW, *call(8), NOW],
    )
    (result,) = unnamed[1].results
    assert left[2].results[0].text == f"look {size(unnamed[1:])} {handle_of(result)} {{}}"


def test_cleared_and_listing_messages_say_what_was_done_and_know_their_original() -> None:
    messages = [TASK, *rounds(10, output=f"{LONG} some_name"), NOW]
    left = condensed(ClearThenDrop(1_400, target=0.6), messages)
    edited = [each for each in left if each.original is not each]
    assert edited
    for each in edited:
        assert each.annotation is not None
        assert each.annotation.strategy == "clear_then_drop"
        assert each.annotation.tokens_before == size([each.original])
        assert each.annotation.handles == (handle_of(each.original.results[0]),)
        assert any(each.original is message for message in messages)


# Promises


@PROPERTY
@given(
    tidy_histories(min_size=3),
    st.sampled_from([20, 60, 120, 250]),
    st.sampled_from([0.2, 0.35, 1.0]),
    st.sampled_from([0, 0.1, 1.0]),
    st.sampled_from([0, 0.2, 1.0]),
    st.sampled_from([0, 0.05, 0.15]),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_every_plan_is_good_and_enough_or_nothing_more_may_go(
    messages: list[Message],
    limit: int,
    target: float,
    keep_recent: float,
    newest_result: float,
    mentions: float,
    scale: float,
) -> None:
    strategy = ClearThenDrop(
        limit, target=target, keep_recent=keep_recent, newest_result=newest_result, mentions=mentions
    )
    context = msgspec.structs.replace(context_of(messages), scale=scale, reserved_tokens=7)
    plan = strategy.plan(context)
    if context.tokens <= limit:
        assert plan is None
    if plan is not None:
        assert problems(plan, context) == ()
        after = context.after(plan)
        if after.tokens > limit:  # then it was all that could go
            assert strategy.plan(after) is None


@pytest.mark.slow
@given(
    tidy_histories(min_size=3),
    st.sampled_from([250, 600, 1_500]),
    st.sampled_from([0.2, 0.45, 0.9]),
    st.sampled_from([0.05, 0.15]),
    st.sampled_from([0.0, 0.05, 1.0]),
    st.integers(1, len(WITH_NAMES)),
)
@PROPERTY
def test_every_later_plan_is_good_and_enough_or_nothing_more_may_go(
    messages: list[Message], limit: int, target: float, mentions: float, keep_recent: float, calls: int
) -> None:
    strategy = ClearThenDrop(limit, target=target, mentions=mentions, keep_recent=keep_recent)
    for after in going_on(strategy, WITH_NAMES[:calls], messages):
        assert after.tokens <= limit or strategy.plan(after) is None
