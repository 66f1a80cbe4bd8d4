"""Records: what a plan decided once is carried out again the same way, on the same history and on longer ones."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import CharCounter, Message, Plan, Text, ToolCall, ToolResult
from chatstack.context.edits.records import Insertion, Record, edit_of, record_of
from tests.histories import PROPERTY, tidy_histories

_COUNTER = CharCounter()
_ACTIONS = st.lists(st.sampled_from(["keep", "keep", "drop", "replace", "insert", "insert twice"]), max_size=80)
MORE = [Message.user("and then?"), Message.assistant("fine")]


def positions_of(messages: Sequence[Message]) -> Sequence[int]:
    """Where the conversation stands in the messages, system messages left out."""
    return tuple(at for at, message in enumerate(messages) if message.role != "system")


def plan_of(messages: Sequence[Message], actions: Sequence[str], *, inserts: bool = True) -> Plan:
    """A plan that does these things to the messages that are no system messages, one after the other."""
    drop: list[int] = []
    replace: list[tuple[int, Message]] = []
    insert: list[tuple[int, Message]] = []
    for at, action in zip(positions_of(messages), actions, strict=False):
        if action == "drop":
            drop.append(at)
        elif action == "replace":
            replace.append((at, messages[at].edited(parts=(Text(f"was {at}"),))))
        elif inserts and action.startswith("insert"):
            insert += [
                (at, Message("assistant", (Text(f"{number} before {at}"),), mark="repair")) for number in (1, 2)
            ][: 2 if action == "insert twice" else 1]
    if inserts and len(actions) % 3 == 0:
        insert.append((len(messages), Message("assistant", (Text("at the end"),), mark="repair")))
    return Plan(strategy="any", reason="generated", drop=tuple(drop), replace=tuple(replace), insert=tuple(insert))


def record_for(messages: Sequence[Message], plan: Plan) -> Record:
    return record_of(positions_of(messages), tuple(messages), plan.apply_to(messages)).record


def again(record: Record, messages: Sequence[Message]) -> Plan:
    """The record as a plan for these messages."""
    positions = positions_of(messages)
    edited = record.edited(messages, positions)
    assert edited is not None
    return record.plan(positions, len(messages), edited)


def carried_out(record: Record, messages: tuple[Message, ...], head: int = 0) -> tuple[Message, ...]:
    """The messages as edited, where so many system messages stand at the head and nowhere else."""
    edited = record.edited(messages, range(head, len(messages)))
    assert edited is not None
    return record.carried_out(messages, head, edited)


def sums_of(messages: Sequence[Message]) -> list[int]:
    sums = [0]
    for message in messages:
        sums.append(sums[-1] + _COUNTER.count_message(message))
    return sums


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_a_record_does_what_the_plan_did(messages: list[Message], actions: list[str]) -> None:
    plain = tuple(message for message in messages if message.role != "system")
    plan = plan_of(plain, actions)
    record = record_for(plain, plan)
    expected = plan.apply(plain)
    assert carried_out(record, plain) == expected
    assert again(record, plain).apply(plain) == expected
    systems = (Message.system("one"), Message.system("two"))
    assert carried_out(record, (*systems, *plain), 2) == (*systems, *expected)


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_on_a_longer_history_what_was_added_follows_untouched(messages: list[Message], actions: list[str]) -> None:
    plain = tuple(message for message in messages if message.role != "system")
    plan = plan_of(plain, actions)
    longer = (*plain, *MORE)
    done = carried_out(record_for(plain, plan), longer)
    assert done == (*plan.apply(plain), *MORE)
    assert all(one is other for one, other in zip(done[-2:], MORE, strict=True))
    assert again(record_for(plain, plan), longer).apply(longer) == done


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_system_messages_between_the_others_stay_where_they_are(messages: list[Message], actions: list[str]) -> None:
    plan = plan_of(messages, actions, inserts=False)
    replayed = again(record_for(messages, plan), messages)
    assert replayed.apply(messages) == plan.apply(messages)
    moved = [Message.system("now here"), *(message for message in messages if message.role != "system")]
    expected = [each for each in plan.apply(messages) if each.role != "system"]
    assert list(carried_out(record_for(messages, plan), tuple(moved), 1)[1:]) == expected


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_what_is_inserted_between_system_messages_keeps_its_order(messages: list[Message], actions: list[str]) -> None:
    plan = plan_of(messages, actions)
    replayed = again(record_for(messages, plan), messages)
    conversation = [each for each in plan.apply(messages) if each.role != "system"]
    assert [each for each in replayed.apply(messages) if each.role != "system"] == conversation


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_what_it_saves_is_the_difference_in_size(messages: list[Message], actions: list[str]) -> None:
    plain = tuple(message for message in messages if message.role != "system")
    record = record_for(plain, plan_of(plain, actions))
    before, after = sums_of(plain), sums_of(carried_out(record, plain))
    edited = record.edited(plain, range(len(plain)))
    assert edited is not None
    assert record.saved(before, _COUNTER.count_message, edited) == before[-1] - after[-1]


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_it_touches_what_it_leaves_out_or_replaces(messages: list[Message], actions: list[str]) -> None:
    plain = tuple(message for message in messages if message.role != "system")
    record = record_for(plain, plan_of(plain, actions))
    touched = {*record.drop, *(each.position for each in record.replace)}
    assert {at for at in range(-1, len(plain) + 1) if record.touches(at)} == touched


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS, _ACTIONS)
def test_a_second_plan_on_top_of_the_first_becomes_one_record(
    messages: list[Message], first: list[str], second: list[str]
) -> None:
    plain = tuple(message for message in messages if message.role != "system")
    once = plan_of(plain, first).apply_to(plain)
    middle = tuple(message for message, _ in once)
    plan = plan_of(middle, second)
    twice = [
        (message, None if at is None else once[at][1])
        for message, at in plan.apply_to(middle)
        if at is None or once[at][1] is not None or message.mark
    ]
    # Of what the first one put in, the second may have changed some; it stays what was put in.
    expected = tuple(message for message, _ in twice)
    assert carried_out(record_of(range(len(plain)), plain, twice).record, plain) == expected


def test_neighbours_are_one_patch() -> None:
    ours, more = (Message("assistant", (Text(text),), mark="summary") for text in ("ours", "more"))
    insert = (Insertion(1, ours, None), Insertion(5, more, None), Insertion(7, ours, None))
    patches = Record(drop=(1, 2, 4), insert=insert).patches
    assert [tuple(each) for each in patches] == [(1, 3, (ours,)), (4, 5, (more,)), (7, 7, (ours,))]


def test_an_empty_record_changes_nothing() -> None:
    messages = (Message.user("a"), Message.assistant("b"))
    done = carried_out(Record(), messages)
    assert all(one is other for one, other in zip(done, messages, strict=True))
    assert Record().saved([0, 5, 10], _COUNTER.count_message, {}) == 0


# Edits without their messages


ANSWERED = Message("tool", (ToolResult("c1", "look", "roses " * 50), Text("a note")))


def test_an_edit_of_a_result_takes_the_ids_of_the_history_it_is_applied_to() -> None:
    cleared = ANSWERED.edited(parts=(ToolResult("c1", "look", "[cleared]"), ANSWERED.parts[1]))
    edit = edit_of(0, ANSWERED, cleared)
    renamed = Message("tool", (ToolResult("other", "look", "roses " * 50), Text("a note")))
    made = edit.applied(renamed)
    assert made is not None
    assert made.parts == (ToolResult("other", "look", "[cleared]"), Text("a note"))
    assert made.original is renamed
    assert made.parts[1] is renamed.parts[1]


def test_an_edit_of_a_call_takes_the_ids_of_the_history_it_is_applied_to() -> None:
    asked = Message.assistant("let me see", ToolCall("c1", "look", '{"at": "sky"}'))
    edit = edit_of(0, asked, asked.edited(parts=(asked.parts[0], ToolCall("c1", "look", "{}"))))
    made = edit.applied(Message.assistant("let me see", ToolCall("other", "look", '{"at": "sky"}')))
    assert made is not None
    assert made.parts[1] == ToolCall("other", "look", "{}")


@pytest.mark.parametrize(
    "other",
    [
        Message("tool", (ToolResult("c1", "look", "roses"),)),
        Message("tool", (Text("a"), Text("a note"))),
        Message.user(),
    ],
    ids=["a part less", "another kind of part", "no parts"],
)
def test_an_edit_is_not_applied_to_a_message_of_another_form(other: Message) -> None:
    cleared = ANSWERED.edited(parts=(ToolResult("c1", "look", "[cleared]"), ANSWERED.parts[1]))
    edit = edit_of(0, ANSWERED, cleared)
    assert edit.applied(other) is None
    assert Record(replace=(edit,)).edited((other,), range(1)) is None


def test_a_record_reaches_as_far_as_what_it_names() -> None:
    ours = Message("assistant", (Text("ours"),), mark="summary")
    edit = edit_of(4, ANSWERED, ANSWERED.edited(parts=ANSWERED.parts[:1]))
    assert Record().reach == 0
    assert Record(drop=(0, 2)).reach == 3
    assert Record(drop=(0,), replace=(edit,)).reach == 5
    assert Record(drop=(0,), insert=(Insertion(7, ours, None),)).reach == 7


def test_another_text_of_the_summary_changes_nothing_else() -> None:
    old, new, note = (Message("assistant", (Text(each),), mark="summary") for each in ("old", "new", "note"))
    repair = note.edited(mark="repair")
    record = Record(drop=(0,), insert=(Insertion(1, old, None), Insertion(1, repair, None)))
    assert record.with_summary(new) == Record(drop=(0,), insert=(Insertion(1, new, None), Insertion(1, repair, None)))
