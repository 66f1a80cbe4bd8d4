"""What the verifier makes of summaries: there is one at most, and none is lost."""

from __future__ import annotations

from typing import Any

import pytest

from chatstack import Annotation, Message, Plan, Text, ToolCall
from chatstack.context.edits.summaries import OPENING, summary_message
from chatstack.context.edits.verifier import problems
from tests.context.strictness import context_of

LONG = "long " * 200
OLD = summary_message("the door is blue", Annotation("summarize"))
NEW = summary_message("the door is blue, and open", Annotation("summarize"))
PINNED = Message("assistant", OLD.parts, pinned=True, mark="summary")
HISTORY = (
    Message.user("task"),
    OLD,
    Message.assistant(LONG),
    Message.assistant(LONG, ToolCall("a", "look")),
    Message.tool("a", LONG),
    Message.user("and now?"),
)
TWO = "there would be more than one summary"
LOST = "the summary at 1 is dropped, and none takes its place"


def wrong(messages: tuple[Message, ...] = HISTORY, **changes: Any) -> tuple[str, ...]:
    plan = Plan(strategy="test", reason="test", **changes)
    return problems(plan, context_of(messages))


@pytest.mark.parametrize(
    "changes",
    [
        {"drop": (1, 2), "insert": ((3, NEW),)},
        {"drop": (1, 2, 3, 4), "insert": ((5, NEW),)},
        {"drop": (2,)},
        {"drop": (2, 3, 4)},
    ],
    ids=str,
)
def test_a_summary_that_stays_or_goes_into_the_next_one_is_well(changes: dict[str, Any]) -> None:
    assert wrong(**changes) == ()


def test_a_first_summary_is_well() -> None:
    assert wrong(HISTORY[:1] + HISTORY[2:], drop=(1,), insert=((2, NEW),)) == ()


def test_a_summary_may_not_be_dropped_without_a_new_one() -> None:
    assert wrong(drop=(1,)) == (LOST,)
    assert wrong(drop=(1, 2)) == (LOST,)


def test_something_else_that_is_put_in_is_no_new_summary() -> None:
    other = Message("assistant", (Text("fine"),), mark="repair")
    assert LOST in wrong(drop=(1, 2), insert=((3, other),))


def test_a_new_summary_may_not_stand_beside_the_one_before() -> None:
    assert wrong(drop=(2,), insert=((2, NEW),)) == (TWO,)
    assert wrong(drop=(2,), insert=((3, NEW),)) == (TWO,)
    assert wrong(drop=(2,), insert=((1, NEW),)) == (TWO,)


def test_two_new_summaries_are_too_many() -> None:
    assert wrong(drop=(1, 2), insert=((2, NEW), (3, NEW))) == (TWO,)


def test_of_two_that_were_there_none_may_be_left_beside_a_new_one() -> None:
    messages = (*HISTORY[:3], OLD, *HISTORY[3:])
    assert wrong(messages, drop=(1, 2), insert=((3, NEW),)) == (TWO,)
    assert wrong(messages, drop=(1, 2, 3), insert=((4, NEW),)) == ()


def test_two_that_were_there_are_not_the_fault_of_a_plan_that_puts_in_none() -> None:
    messages = (*HISTORY[:3], OLD, *HISTORY[3:])
    assert wrong(messages, drop=(2,)) == ()
    assert wrong(messages, drop=(1, 2)) == (LOST,)


def test_a_summary_that_the_caller_pinned_stays_beside_the_new_one() -> None:
    messages = (HISTORY[0], PINNED, *HISTORY[2:])
    assert wrong(messages, drop=(2,), insert=((3, NEW),)) == ()
    assert "the pinned message at 1 is dropped" in wrong(messages, drop=(1, 2), insert=((3, NEW),))


def test_an_edit_may_not_make_a_summary_of_what_was_none() -> None:
    said = "replace at 2: an edit may not pin, unpin, or make or unmake a summary"
    made = HISTORY[2].edited(parts=(Text(f"{OPENING}\nfine"),), mark="summary")
    assert wrong(replace=((2, made),)) == (said,)
    tool = HISTORY[4].edited(mark="summary")
    assert [each for each in wrong(drop=(2,), replace=((4, tool),)) if "make a summary" in each] != []


@pytest.mark.parametrize("was_pinned", [True, False])
def test_an_edit_may_neither_pin_nor_unpin(was_pinned: bool) -> None:
    message = Message.assistant(LONG, pinned=was_pinned)
    edited = message.edited(parts=(Text("short"),), pinned=not was_pinned)
    found = wrong((*HISTORY[:2], message, HISTORY[5]), replace=((2, edited),))
    assert [each for each in found if "an edit may not pin, unpin" in each] != []


def test_a_new_summary_may_not_come_between_a_call_and_its_result() -> None:
    assert "insert at 4: between a call and its results" in wrong(drop=(1, 2), insert=((4, NEW),))


@pytest.mark.parametrize("role", ["user", "system"])
def test_a_new_summary_speaks_as_nobody_else(role: str) -> None:
    said = f"insert at 3: a layer may not speak as {role}, nor pin"
    assert said in wrong(drop=(1, 2), insert=((3, Message(role, NEW.parts, mark="summary")),))  # type: ignore[arg-type]


def test_a_new_summary_is_smaller_than_what_it_stands_for() -> None:
    long = summary_message(LONG * 2, Annotation("summarize"))
    assert [each for each in wrong(drop=(1, 2), insert=((3, long),)) if "smaller" in each] != []


def test_what_is_said_never_quotes_a_summary() -> None:
    secret = summary_message("secret", Annotation("summarize"))
    messages = (HISTORY[0], secret, *HISTORY[2:])
    found = [*wrong(messages, drop=(1,)), *wrong(messages, insert=((1, secret), (3, secret)))]
    assert len(found) >= 3
    assert "secret" not in "".join(found)
