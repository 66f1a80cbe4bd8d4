"""What the verifier refuses, and what it says."""

from __future__ import annotations

from typing import Any

import pytest

from chatstack import Message, Plan, Text, ToolCall, ToolResult
from chatstack.context.edits.verifier import problems, problems_of_all
from chatstack.values.messages import relink
from tests.context.strictness import context_of
from tests.steps import Name, grows_linearly

LONG = "long " * 50
HISTORY = (
    Message.system("be brief"),
    Message.user(LONG),
    Message.assistant("let me see", ToolCall("a", "look"), ToolCall("b", "look")),
    Message.tool("a", LONG),
    Message.tool("b", LONG),
    Message.assistant(LONG, pinned=True),
    Message.assistant(LONG),
    Message.user("and now?"),
    Message.assistant(ToolCall("c", "look")),
)
SUMMARY = Message("assistant", (Text("in short"),), mark="summary")


def wrong(**changes: object) -> tuple[str, ...]:
    plan = Plan(strategy="test", reason="test", **changes)  # type: ignore[arg-type]
    return problems(plan, context_of(HISTORY))


def edited(position: int, **changes: Any) -> tuple[tuple[int, Message], ...]:
    return ((position, HISTORY[position].edited(**changes)),)


@pytest.mark.parametrize(
    "changes",
    [
        {"drop": (6,)},
        {"drop": (2, 3, 4)},
        {"drop": (1,)},
        {"drop": (2, 3, 4), "insert": ((2, SUMMARY),)},
        {"drop": (6,), "insert": ((2, SUMMARY),)},
        {"replace": edited(3, parts=(ToolResult("a", "", "[cleared]"),))},
        {"replace": edited(6, parts=(Text("less"),))},
    ],
    ids=str,
)
def test_a_sound_plan_passes(changes: dict[str, object]) -> None:
    assert wrong(**changes) == ()


def test_an_edit_stays_sound_while_another_thread_links_it_to_its_own_copy_of_what_came() -> None:
    before = edited(3, parts=(ToolResult("a", "", "shorter"),))[0][1]
    plan = Plan(strategy="test", reason="test", replace=((3, before.edited(parts=(ToolResult("a", "", ""),))),))
    copies = tuple(Message(each.role, each.parts, each.pinned, each.mark) for each in HISTORY)
    relink({3: before}, copies, 0)
    assert plan.replace[0][1].original is not before.original
    assert problems(plan, context_of((*HISTORY[:3], before, *HISTORY[4:]))) == ()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drop": (0,)}, "the system message at 0 is dropped"),
        ({"drop": (5,)}, "the pinned message at 5 is dropped"),
        ({"drop": (7,)}, "the latest user message, at 7, is dropped"),
        ({"replace": edited(0, parts=())}, "the system message at 0 is replaced"),
        ({"replace": edited(5, parts=())}, "the pinned message at 5 is replaced"),
        ({"replace": edited(7, parts=())}, "the latest user message, at 7, is replaced"),
        ({"drop": (9,)}, "drop: position 9 is not among the 9 messages"),
        ({"drop": (-1,)}, "drop: position -1 is not among the 9 messages"),
        ({"insert": ((10, SUMMARY),)}, "insert: position 10 is not among the 9 messages"),
        ({"replace": ((9, SUMMARY),)}, "replace: position 9 is not among the 9 messages"),
        ({"drop": (6, 6)}, "position 6 is named 2 times"),
        ({"drop": (6,), "replace": edited(6, parts=())}, "position 6 is named 2 times"),
        ({"drop": (3,)}, "call without result: a"),
        ({"drop": (8,)}, "the call c, which waits for its result, is gone"),
        ({"replace": edited(8, parts=())}, "the call c, which waits for its result, is gone"),
        ({"drop": (2,)}, "result without call: a"),
        ({"drop": (2, 3)}, "result without call: b"),
        ({"replace": edited(3, parts=(ToolResult("x", "", ""),))}, "result without call: x"),
        ({"replace": edited(2, parts=(ToolCall("a", "look"),))}, "result without call: b"),
        (
            {"drop": (6,), "insert": ((2, Message.assistant("unmarked")),)},
            "insert at 2: the message is not marked as ours",
        ),
        ({"drop": (6,), "insert": ((2, Message("user", (), mark="summary")),)}, "may not speak as user"),
        ({"drop": (6,), "insert": ((2, Message("system", (), mark="summary")),)}, "may not speak as system"),
        ({"drop": (6,), "insert": ((2, Message("assistant", (), True, "summary")),)}, "nor pin"),
        ({"drop": (6,), "insert": ((4, SUMMARY),)}, "insert at 4: between a call and its results"),
        ({"drop": (6,), "insert": ((9, SUMMARY),)}, "call without result: c"),
        ({"replace": ((6, Message.assistant("other")),)}, "replace at 6: not made by edited()"),
        ({"replace": edited(6, role="user")}, "replace at 6: the role changes from assistant to user"),
        ({"insert": ((2, SUMMARY),)}, "the edit does not make the context smaller"),
        ({"replace": edited(6, parts=(Text(LONG * 2),))}, "the edit does not make the context smaller"),
    ],
    ids=str,
)
def test_a_plan_that_breaks_something_is_refused(changes: dict[str, object], said: str) -> None:
    assert [each for each in wrong(**changes) if said in each] != []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"replace": edited(1, parts=(ToolCall("x", "look"),))}, "position 1: a user message makes no tool calls"),
        ({"replace": edited(6, parts=())}, "replace at 6: nothing is left of the message"),
        (
            {"insert": ((2, Message("assistant", (), mark="summary")),)},
            "insert at 2: the message is empty",
        ),
        (
            {"insert": ((2, Message("tool", (ToolCall("x", "look"),), mark="repair")),)},
            "position 2: a tool message makes no tool calls",
        ),
        (
            {"replace": edited(2, parts=(ToolCall("a", "look", '{"a'), ToolCall("b", "look")))},
            "replace at 2: a call gets another name, or arguments that are no JSON",
        ),
        (
            {"replace": edited(2, parts=(ToolCall("a", ""), ToolCall("b", "look")))},
            "replace at 2: a call gets another name, or arguments that are no JSON",
        ),
    ],
    ids=str,
)
def test_what_no_provider_would_take_is_refused(changes: dict[str, object], said: str) -> None:
    assert said in wrong(**changes)


@pytest.mark.parametrize(
    ("before", "after", "is_taken"),
    [("{}", "[]", False), ("{}", '"text"', False), ('"text"', '"t"', True), ("", "{}", True)],
)
def test_arguments_stay_an_object_or_the_text_of_a_custom_tool(before: str, after: str, is_taken: bool) -> None:
    call = Message.assistant(LONG, ToolCall("a", "look", before))
    history = (Message.user("go"), call, Message.tool("a", LONG), Message.user("and now?"))
    edit = call.edited(parts=(Text("less"), ToolCall("a", "look", after)))
    found = problems(Plan(strategy="test", reason="test", replace=((1, edit),)), context_of(history))
    assert (found == ()) is is_taken


def test_arguments_that_the_model_wrote_wrong_may_stay_so() -> None:
    call = Message.assistant(LONG, ToolCall("a", "look", '{"a'))
    history = (Message.user("go"), call, Message.tool("a", LONG), Message.user("and now?"))
    shorter = call.edited(parts=(Text("less"), call.calls[0]))
    assert problems(Plan(strategy="test", reason="test", replace=((1, shorter),)), context_of(history)) == ()


def test_calls_of_one_id_are_compared_with_each_other() -> None:
    calls = (ToolCall("0", "look", '{"a": 1}'), ToolCall("0", "find", '"any text"'))
    message = Message.assistant(LONG, *calls)
    history = (Message.user("go"), message, Message.tool("0", "1"), Message.tool("0", "2"), Message.user("and now?"))
    for parts in ((Text("less"), *calls), (Text("less"), ToolCall("0", "look", "{}"), calls[1])):
        plan = Plan(strategy="test", reason="test", replace=((1, message.edited(parts=parts)),))
        assert problems(plan, context_of(history)) == ()


@pytest.mark.parametrize("changes", [{"drop": 3}, {"replace": {1: SUMMARY}}, {"insert": ((1, SUMMARY, 2),)}], ids=str)
def test_a_plan_of_another_shape_is_refused(changes: dict[str, object]) -> None:
    assert wrong(**changes) == ("drop holds positions, replace and insert hold pairs of a position and a message",)


def test_taking_the_results_from_the_last_call_does_not_make_it_wait() -> None:
    messages = (Message.user("hi"), Message.assistant(ToolCall("a", "look")), Message.tool("a", LONG))
    plan = Plan(strategy="test", reason="test", drop=(2,))
    assert problems(plan, context_of(messages)) == ("call without result: a",)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"role": "user"},
        {"mark": "summary"},
        {"pinned": True},
        {"call_id": "b"},
        {"original": None},
        {"output": LONG * 2},
    ],
    ids=str,
)
def test_a_plan_that_clears_one_result_wrongly_is_refused_as_any_other(changes: dict[str, Any], pinned: bool) -> None:
    messages = [*HISTORY[:3], Message("tool", HISTORY[3].parts, pinned), *HISTORY[4:]]
    changes = {**changes}
    part = ToolResult(changes.pop("call_id", "a"), "", changes.pop("output", "[cleared]"))
    is_foreign = "original" in changes and changes.pop("original") is None
    new = messages[3].edited(parts=(part,)).edited(**changes)
    replace = ((3, Message("tool", (part,), pinned) if is_foreign else new),)
    plan, context = Plan(strategy="test", reason="test", replace=replace), context_of(messages)
    found = problems(plan, context)
    assert found == problems_of_all(plan, context)
    assert bool(found) == (pinned or is_foreign or new.role == "user" or new != messages[3].edited(parts=_CLEARED))


_CLEARED = (ToolResult("a", "", "[cleared]"),)


def test_what_waits_is_not_moved_away_from_the_end_though_whole_units_go() -> None:
    said = wrong(drop=(2, 3, 4), insert=((len(HISTORY), SUMMARY),))
    assert "call without result: c" in said
    assert "the call c, which waits for its result, is gone" in said


def test_leaving_nothing_to_send_is_refused() -> None:
    plan = Plan(strategy="test", reason="test", drop=(0,))
    assert "nothing is left to send" in problems(plan, context_of([Message.assistant(LONG)]))


_LOOKED = (*HISTORY[:2], Message.assistant("I look."), *HISTORY[2:5])


@pytest.mark.parametrize(
    ("history", "changes"),
    [(HISTORY[:8], {"drop": (6,), "insert": ((8, SUMMARY),)}), (_LOOKED, {"drop": (3, 4, 5)})],
    ids=["a summary behind the question", "no result of the latest calls"],
)
def test_ending_with_what_looks_like_the_answer_is_refused(
    history: tuple[Message, ...], changes: dict[str, Any]
) -> None:
    plan = Plan(strategy="test", reason="test", **changes)
    assert problems(plan, context_of(history)) == ("the request would end with an assistant message",)


def test_an_orphan_that_was_there_before_is_not_the_plans_fault() -> None:
    messages = (Message.tool("nobody", "stray"), Message.assistant(LONG), Message.user("hi"))
    assert problems(Plan(strategy="test", reason="test", drop=(1,)), context_of(messages)) == ()


def test_one_of_two_orphans_with_the_same_id_may_not_become_two() -> None:
    messages = (
        Message.tool("a", "stray"),
        Message.assistant(LONG, ToolCall("a", "look")),
        Message.tool("a", "answer"),
        Message.user("hi"),
    )
    plan = Plan(strategy="test", reason="test", drop=(1,))
    assert problems(plan, context_of(messages)) == ("result without call: a",)


@pytest.mark.slow
def test_what_a_plan_inserts_is_looked_at_once_each() -> None:
    noted = Message("assistant", (Text("noted"),), mark="summary")

    def look(many: int) -> None:
        messages = [
            message
            for number in range(many)
            for message in (Message.assistant(ToolCall(Name(number), "look")), Message.tool(Name(number), "1"))
        ]
        between = Plan(strategy="test", reason="test", insert=tuple((at, noted) for at in range(1, 2 * many, 2)))
        found = problems(between, context_of(messages))
        assert sum(each.endswith("between a call and its results") for each in found) == many
        outside = Plan(strategy="test", reason="test", insert=tuple((at, noted) for at in range(0, 2 * many + 1, 2)))
        assert not any("between" in each for each in problems(outside, context_of(messages)))

    assert grows_linearly(look)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(strategy="repair", reason="test", insert=((2, Message.tool("a", "made up")),)),
        Plan(strategy="repair", reason="test", drop=(2,), insert=((1, Message.tool("a", "changed")),)),
        Plan(strategy="repair", reason="test", drop=(3,)),
        Plan(strategy="repair", reason="test", drop=(1,), insert=((3, Message.user("wait")),)),
        Plan(strategy="repair", reason="test", drop=(3,), insert=((2, Message.tool("a", "1")),)),
        Plan(strategy="repair", reason="test", replace=((1, Message.user("go on")),)),
    ],
    ids=["a made up result", "another result", "a lost result", "words that move", "not far enough", "other words"],
)
def test_a_repair_moves_results_and_does_nothing_else(plan: Plan) -> None:
    messages = (Message.assistant(ToolCall("a", "look")), Message.user("wait"), Message.assistant("so"))
    late = Message.tool("a", "1")
    good = Plan(strategy="repair", reason="test", drop=(3,), insert=((1, late),))
    assert problems(good, context_of([*messages, late, Message.user("hi")]), is_repair=True) == ()
    assert problems(plan, context_of([*messages, late, Message.user("hi")]), is_repair=True)


def test_a_repair_may_insert_results_and_grow() -> None:
    messages = (Message.assistant(ToolCall("a", "look")), Message.user("hi"))
    answer = Message("tool", (ToolResult("a", "look", LONG),), mark="repair")
    plan = Plan(strategy="repair", reason="test", insert=((1, answer),))
    assert problems(plan, context_of(messages), is_repair=True) == ()


def test_a_repair_may_not_lose_the_latest_user_message() -> None:
    plan = Plan(strategy="repair", reason="test", drop=(7,))
    found = problems(plan, context_of(HISTORY), is_repair=True)
    assert "the latest user message, at 7, is dropped" in found


def test_what_is_said_never_quotes_a_message() -> None:
    secret = (
        Message.user("secret"),
        Message.assistant("secret", ToolCall("a", "look", '"secret"')),
        Message.tool("a", "secret"),
    )
    plans = [Plan(strategy="test", reason="test", drop=(position,)) for position in range(3)]
    plans.append(Plan(strategy="test", reason="test", insert=((0, Message.user("secret")),)))
    found = [each for plan in plans for each in problems(plan, context_of(secret))]
    assert len(found) >= 4
    assert [each for each in found if "secret" in each] == []
