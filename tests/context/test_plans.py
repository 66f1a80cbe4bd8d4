"""Plans: what is not named stays as it is."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import Message, Plan, Text
from tests.context.strictness import context_of, is_subsequence, size
from tests.histories import PROPERTY, tidy_histories

A, B, C = Message.user("a"), Message.assistant("b"), Message.user("c")
NEW = Message("assistant", (Text("new"),), mark="summary")
ALSO = Message("assistant", (Text("also new"),), mark="summary")


def plan(**changes: object) -> Plan:
    return Plan(strategy="test", reason="test", **changes)  # type: ignore[arg-type]


def test_a_plan_that_names_nothing_changes_nothing() -> None:
    assert plan().is_empty
    assert plan().apply([A, B, C]) == (A, B, C)


@pytest.mark.parametrize("change", [{"drop": (0,)}, {"replace": ((0, A),)}, {"insert": ((0, NEW),)}])
def test_a_plan_that_names_something_is_not_empty(change: dict[str, object]) -> None:
    assert not plan(**change).is_empty


def test_positions_are_those_before_the_edit() -> None:
    edited = C.edited(parts=(Text("less"),))
    assert plan(drop=(0,), replace=((2, edited),), insert=((1, NEW), (3, ALSO))).apply([A, B, C]) == (
        NEW,
        B,
        edited,
        ALSO,
    )


def test_messages_inserted_at_one_place_keep_their_order() -> None:
    assert plan(insert=((1, NEW), (1, ALSO))).apply([A, B]) == (A, NEW, ALSO, B)


def test_each_message_comes_with_the_position_that_it_came_from() -> None:
    edited = B.edited(parts=())
    applied = plan(drop=(0,), replace=((1, edited),), insert=((1, NEW),)).apply_to([A, B, C])
    assert applied == [(NEW, None), (edited, 1), (C, 2)]


def test_the_context_after_an_edit_counts_only_what_is_new() -> None:
    counted: list[Message] = []

    @functools.cache
    def size_of(message: Message) -> int:
        counted.append(message)
        return 10

    context = context_of([A, B, C])
    context = type(context).of(context.request, fixed_tokens=5, size_of=size_of)
    counted.clear()
    edited = C.edited(parts=(Text("less"),))
    after = context.after(plan(drop=(0,), replace=((2, edited),), insert=((1, NEW),)))
    assert counted == [edited, NEW]
    assert (after.tokens, after.origins) == (35, (None, 1, 2))
    assert after.is_edited
    assert not context.is_edited


def test_origins_lead_through_several_edits_to_what_came_in() -> None:
    once = context_of([A, B, C]).after(plan(drop=(0,), insert=((0, NEW),)))
    twice = once.after(plan(drop=(1,)))
    assert (twice.messages, twice.origins) == ((NEW, C), (None, 2))


def test_a_context_knows_its_first_and_its_latest_user_message() -> None:
    context = context_of([Message.system("s"), A, B, C, B])
    assert (context.first_user, context.latest_user) == (1, 3)
    nobody = context_of([B])
    assert (nobody.first_user, nobody.latest_user) == (None, None)


def test_what_is_not_edited_is_sent_as_the_very_request_that_came_in() -> None:
    context = context_of([A, B])
    assert context.to_send() is context.request
    after = context.after(plan(drop=(1,)))
    assert after.to_send().messages == (A,)
    assert after.to_send().options is context.request.options


@PROPERTY
@given(tidy_histories(), st.data())
def test_what_a_plan_does_not_touch_stays_the_same_objects_in_the_same_order(
    messages: list[Message], data: st.DataObject
) -> None:
    positions = st.sets(st.integers(0, len(messages) - 1))
    dropped = data.draw(positions)
    inserted = data.draw(st.lists(st.integers(0, len(messages))))
    edit = plan(drop=tuple(dropped), insert=tuple((position, NEW) for position in inserted))
    after = [message for message in edit.apply(messages) if message is not NEW]
    assert is_subsequence(after, messages)
    assert len(after) == len(messages) - len(dropped)
    assert context_of(messages).after(edit).tokens == size(after) + size([NEW] * len(inserted))
