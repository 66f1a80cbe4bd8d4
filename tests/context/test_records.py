"""Records: what a plan decided once is carried out again the same way, on the same history and on longer ones."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from chatstack import CharCounter, Message, Plan, Text
from chatstack.context.records import Record, record_of
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
    return record_of(positions_of(messages), tuple(messages), plan.apply_to(messages))


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
    assert record.carried_out(plain, 0) == expected
    assert record.plan(range(len(plain)), len(plain)).apply(plain) == expected
    systems = (Message.system("one"), Message.system("two"))
    assert record.carried_out((*systems, *plain), 2) == (*systems, *expected)


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_on_a_longer_history_what_was_added_follows_untouched(messages: list[Message], actions: list[str]) -> None:
    plain = tuple(message for message in messages if message.role != "system")
    plan = plan_of(plain, actions)
    longer = (*plain, *MORE)
    done = record_for(plain, plan).carried_out(longer, 0)
    assert done == (*plan.apply(plain), *MORE)
    assert all(one is other for one, other in zip(done[-2:], MORE, strict=True))
    assert record_for(plain, plan).plan(range(len(longer)), len(longer)).apply(longer) == done


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_system_messages_between_the_others_stay_where_they_are(messages: list[Message], actions: list[str]) -> None:
    plan = plan_of(messages, actions, inserts=False)
    again = record_for(messages, plan).plan(positions_of(messages), len(messages))
    assert again.apply(messages) == plan.apply(messages)
    moved = [Message.system("now here"), *(message for message in messages if message.role != "system")]
    expected = [each for each in plan.apply(messages) if each.role != "system"]
    assert list(record_for(messages, plan).carried_out(tuple(moved), 1)[1:]) == expected


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_what_is_inserted_between_system_messages_keeps_its_order(messages: list[Message], actions: list[str]) -> None:
    plan = plan_of(messages, actions)
    again = record_for(messages, plan).plan(positions_of(messages), len(messages))
    conversation = [each for each in plan.apply(messages) if each.role != "system"]
    assert [each for each in again.apply(messages) if each.role != "system"] == conversation


@PROPERTY
@given(tidy_histories(min_size=3), _ACTIONS)
def test_what_it_saves_is_the_difference_in_size(messages: list[Message], actions: list[str]) -> None:
    plain = tuple(message for message in messages if message.role != "system")
    record = record_for(plain, plan_of(plain, actions))
    before, after = sums_of(plain), sums_of(record.carried_out(plain, 0))
    assert record.saved(before, _COUNTER.count_message) == before[-1] - after[-1]


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
    assert record_of(range(len(plain)), plain, twice).carried_out(plain, 0) == expected


def test_neighbours_are_one_patch() -> None:
    ours, more = (Message("assistant", (Text(text),), mark="summary") for text in ("ours", "more"))
    patches = Record(drop=(1, 2, 4), insert=((1, ours), (5, more), (7, ours))).patches
    assert [tuple(each) for each in patches] == [(1, 3, (ours,)), (4, 5, (more,)), (7, 7, (ours,))]


def test_an_empty_record_changes_nothing() -> None:
    messages = (Message.user("a"), Message.assistant("b"))
    done = Record().carried_out(messages, 0)
    assert all(one is other for one, other in zip(done, messages, strict=True))
    assert Record().saved([0, 5, 10], _COUNTER.count_message) == 0
