"""New tool results that do not fit lose their middle: what each becomes, and which of them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from chatstack import (
    ChatOptions,
    Context,
    File,
    Image,
    Message,
    OldestFirst,
    Plan,
    Text,
    ToolCall,
    ToolResult,
    Truncate,
)
from chatstack.context.edits.handles import handle_of
from chatstack.context.edits.summaries import OPENING
from chatstack.context.edits.verifier import problems
from chatstack.context.strategy import Strategy
from chatstack.tools.recall import recall_tool
from tests.context.strictness import context_of, size

TASK = Message.user("task")
LINES = "".join(f"line {number} of the log\n" for number in range(20_000))


def calls(*ids: str) -> Message:
    return Message.assistant(*(ToolCall(each, "look") for each in ids))


def old(rounds: int) -> list[Message]:
    """Rounds of about 100 tokens, answered."""
    made = [(calls(f"o{number}"), Message.tool(f"o{number}", "old " * 90)) for number in range(rounds)]
    return [message for pair in made for message in pair]


def plan_of(context: Context, strategy: Strategy | None = None) -> Plan:
    plan = (strategy or OldestFirst(4_000, 2_800)).plan(context)
    assert plan is not None
    assert problems(plan, context) == ()
    return plan


def shortened(messages: Sequence[Message], limit: int = 4_000) -> list[Message]:
    """What is sent, which must fit."""
    left = plan_of(context_of(messages), OldestFirst(limit, limit * 7 // 10)).apply(messages)
    assert size(left) <= limit
    return list(left)


def test_a_result_larger_than_the_limit_is_shortened_and_nothing_else_goes() -> None:
    messages = [TASK, *old(5), calls("a"), Message.tool("a", LINES, name="look")]
    left = shortened(messages)
    assert left[:-1] == messages[:-1]
    (result,) = left[-1].results
    assert (result.call_id, result.name) == ("a", "look")
    assert result.text.startswith("line 0 of the log\nline 1 ")
    assert result.text.endswith("line 19999 of the log\n")
    assert f" of {len(LINES):,} bytes left out]" in result.text
    assert left[-1].original is messages[-1]


def test_what_it_becomes_does_not_depend_on_what_stands_before_it() -> None:
    new = [calls("a"), Message.tool("a", LINES)]
    assert len({shortened([TASK, *old(rounds), *new])[-1] for rounds in (0, 3, 10, 50)}) == 1


def test_nor_on_what_was_reported_of_other_requests() -> None:
    came = context_of([TASK, calls("a"), Message.tool("a", LINES)])
    made = [plan_of(msgspec.structs.replace(came, scale=scale)).replace for scale in (0.7, 1.0, 1.3)]
    assert made[0] == made[1] == made[2]


def test_where_old_messages_leave_no_room_for_half_of_it_they_go_down_to_the_low_water() -> None:
    messages = [TASK, *old(30), calls("a"), Message.tool("a", LINES)]
    left = shortened(messages)
    assert left[0] == TASK
    assert 2_600 < size(left) <= 2_800


def test_a_result_that_fits_without_what_is_old_stays_whole() -> None:
    messages = [TASK, *old(30), calls("a"), Message.tool("a", "x" * 14_000)]
    assert shortened(messages)[-1] is messages[-1]


def test_of_several_each_gets_a_fair_share_and_small_ones_stay_whole() -> None:
    small, large = Message.tool("a", "tiny"), [Message.tool(each, LINES + each) for each in "bcd"]
    left = shortened([TASK, *old(5), calls(*"abcd"), small, *large])
    assert left[-4] is small
    sizes = [size([message]) for message in left[-3:]]
    assert max(sizes) - min(sizes) <= 20
    assert sum(sizes) > 2_000


def test_many_small_ones_that_do_not_fit_together_are_all_shortened() -> None:
    ids = [f"c{number}" for number in range(40)]
    left = shortened([TASK, calls(*ids), *(Message.tool(each, f"{each} " * 150) for each in ids)])
    assert [message.results[0].call_id for message in left[2:]] == ids
    assert all("bytes left out]" in message.results[0].text for message in left[2:])


def test_several_in_one_message_are_shortened_each() -> None:
    together = Message("tool", tuple(ToolResult(each, "look", LINES) for each in "ab"))
    left = shortened([TASK, calls(*"ab"), together])
    assert [each.call_id for each in left[-1].results] == ["a", "b"]
    assert all("bytes left out]" in each.text for each in left[-1].results)


def test_an_error_stays_one_and_what_rides_along_stays() -> None:
    result = ToolResult("a", "look", LINES, is_error=True, extra_json='{"anthropic": {}}')
    (left,) = shortened([TASK, calls("a"), Message("tool", (result,))])[-1].results
    assert (left.is_error, left.extra_json) == (True, '{"anthropic": {}}')


def test_a_picture_beside_a_long_text_stays_and_pictures_that_do_not_fit_are_named() -> None:
    picture = Image(url="https://example.org/a.png", media_type="image/png")
    one = Message("tool", (ToolResult("a", "look", (Text(LINES), picture)),))
    (left,) = shortened([TASK, calls("a"), one], limit=8_000)[-1].results
    assert isinstance(left.output, tuple)
    assert left.output[1:] == (picture,)
    many = Message("tool", (ToolResult("a", "look", (picture, File(text=LINES), *[picture] * 9)),))
    (left,) = shortened([TASK, calls("a"), many])[-1].results
    assert left.text.startswith("[a picture left out: image/png]\nline 0 of the log\n")


def test_recall_is_named_only_where_it_is_declared_and_by_its_own_name() -> None:
    messages = [TASK, calls("a"), Message.tool("a", LINES)]
    handle = handle_of(messages[-1].results[0])
    named = recall_tool(name="look_again").declaration()
    unrelated = msgspec.structs.replace(named, name="recall", description="Searches the memory.")
    for tools, said in (((), ""), ((unrelated,), ""), ((unrelated, named), f"; look_again(handle='{handle}') gives")):
        context = context_of(messages)
        request = context.request.but(options=ChatOptions(tools=tools))
        ((_, left),) = plan_of(msgspec.structs.replace(context, request=request)).replace
        assert ("gives them back" in left.results[0].text) == bool(said)
        assert said in left.results[0].text
        assert left.annotation is not None
        assert left.annotation.handles == (handle,)


def test_shortened_again_it_is_what_it_would_have_been_at_once() -> None:
    messages = [TASK, calls("a"), Message.tool("a", LINES)]
    twice = shortened(shortened(messages, 8_000), 2_000)
    assert twice == shortened(messages, 2_000)
    assert twice[-1].original is messages[-1]


def test_so_is_each_of_two_results_of_one_id_in_one_message() -> None:
    both = Message("tool", (ToolResult("a", "look", LINES), ToolResult("a", "look", LINES[::-1])))
    messages = [TASK, calls("a", "a"), both]
    at_once = shortened(messages, 2_000)
    assert shortened(shortened(messages), 2_000) == at_once


def test_what_a_layer_has_taken_out_of_a_result_does_not_come_back() -> None:
    came = Message.tool("a", LINES + "secret")
    redacted = came.edited(parts=(ToolResult("a", "", LINES + "******"),))
    context = context_of([TASK, calls("a"), redacted])
    request = context.request.but(options=ChatOptions(tools=(recall_tool().declaration(),)))
    ((_, left),) = plan_of(msgspec.structs.replace(context, request=request)).replace
    assert left.results[0].text.endswith("******")
    assert "recall" not in left.results[0].text


def test_pinned_results_stay_whole_and_keep_the_shares_of_the_others_small() -> None:
    pinned = Message("tool", (ToolResult("a", "look", "x" * 12_000),), pinned=True)
    left = shortened([TASK, calls("a", "b"), pinned, Message.tool("b", LINES)])
    assert left[2] is pinned
    assert size([left[3]]) < 1_000


def test_what_cannot_have_been_sent_whole_is_made_again_where_nobody_has_kept_it() -> None:
    new = [calls("a", "b"), Message.tool("a", LINES), Message.tool("b", LINES + "b")]
    then = shortened([TASK, *old(5), *new])
    seen = [TASK, *old(5), *new, Message.assistant("I see."), Message.user("And?")]
    assert shortened(seen) == [*then, *seen[-2:]]


def test_items_are_not_made_fewer_by_shortening_and_new_results_stay() -> None:
    messages = [TASK, *old(3), calls("a", "b"), Message.tool("a", LINES), Message.tool("b", LINES)]
    plan = plan_of(context_of(messages), Truncate(max_context_items=3))
    assert plan.apply(messages) == (TASK, *messages[-3:])


def test_a_summary_gives_way_only_where_nothing_else_is_left() -> None:
    summary = Message("assistant", (Text(f"{OPENING}\n{'what was done. ' * 100}"),), mark="summary")
    messages = [Message.user("x" * 2_000), summary, *old(20), Message.assistant("so"), Message.user("y" * 1_200)]
    limit = size([messages[0], summary, messages[-1]])
    assert shortened(messages, limit) == [messages[0], summary, messages[-1]]
    left = shortened(messages, limit - 100)
    assert left[1].mark == "summary"
    assert left[1].text.startswith(f"{OPENING}\nwhat was done.")
    assert "of 1,500 bytes left out]" in left[1].text
    assert shortened(messages, size([messages[0], messages[-1]]) + 20)[1].mark == "summary"


def test_a_plan_for_what_has_been_shortened_is_none() -> None:
    for limit in (10, 30, 60, 100, 4_000):
        messages = [TASK, *old(2), calls("a"), Message.tool("a", LINES)]
        strategy = OldestFirst(limit, limit)
        left = plan_of(context_of(messages), strategy).apply(messages)
        assert strategy.plan(context_of(left)) is None
