"""Histories: what is worked out of a list of messages is the same in whatever steps it came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack import CharCounter, Image, Message, Reasoning, ToolCall
from chatstack.context.histories.history import History
from chatstack.context.histories.recognised import Recognised
from chatstack.context.histories.recognising import Recogniser
from chatstack.context.histories.weights import weight_of
from tests.histories import PROPERTY, decoded_again, tidy_histories


def recogniser() -> Recogniser:
    return Recogniser(b"", 100_000)


def seen(known: Recogniser, messages: list[Message]) -> Recognised:
    return known.recognise(tuple(messages))


@PROPERTY
@given(tidy_histories(min_size=4), st.booleans())
def test_digests_are_the_same_whatever_way_a_history_came(messages: list[Message], fresh: bool) -> None:
    step_by_step = recogniser()
    for end in range(1, len(messages) + 1):
        found = seen(step_by_step, decoded_again(messages[:end]) if fresh else messages[:end])
    at_once = seen(recogniser(), messages)
    assert list(found.links[: found.length]) == list(at_once.links[: at_once.length])
    assert found.length == sum(message.role != "system" for message in messages)


@PROPERTY
@given(tidy_histories(min_size=4))
def test_sizes_sum_up_the_same_whatever_way_a_history_came(messages: list[Message]) -> None:
    known, counter = recogniser(), CharCounter()
    for end in range(1, len(messages) + 1):
        found = seen(known, messages[:end])
        conversation = [message for message in messages[:end] if message.role != "system"]
        sums = found.history.sums(found.length, counter, counter.count_message)
        assert sums[found.length] == sum(map(counter.count_message, conversation))


def test_it_weighs_the_same_whatever_way_it_came() -> None:
    messages = tuple((Message.assistant if at % 2 else Message.user)(f"{at} " * at) for at in range(20))
    step_by_step, at_once = History(), History()
    for end in range(1, len(messages) + 1):
        step_by_step.grow(messages[:end])
    at_once.grow(messages)
    assert step_by_step.held_bytes == at_once.held_bytes == History().held_bytes + sum(map(weight_of, messages))


@pytest.mark.parametrize(
    "message",
    [
        Message.user("x" * 100_000),
        Message.user("\N{GRINNING FACE}" * 25_000),
        Message.assistant(ToolCall("c", "look", "x" * 100_000)),
        Message.tool("c", "x" * 100_000),
        Message("assistant", (Reasoning("x" * 100_000),)),
        Message.user(Image(data="x" * 100_000, media_type="image/png")),
        Message("user", (), extra_json="x" * 100_000),
    ],
    ids=["text", "wide text", "arguments", "result", "reasoning", "picture", "extra fields"],
)
def test_a_message_weighs_at_least_what_is_in_it(message: Message) -> None:
    assert 100_000 < weight_of(message) < 102_500


def test_the_latest_user_and_assistant_messages_are_known_for_each_length() -> None:
    messages = [Message.user("a"), Message.assistant("b"), Message.user("c"), Message.assistant("d")]
    found = seen(recogniser(), messages)
    assert (found.history.latest_user, found.history.latest_assistant) == (2, 3)
    assert [found.history.latest_user_in(length) for length in range(5)] == [-1, 0, 0, 2, 2]


def test_conversations_with_the_same_messages_so_far_share_what_is_worked_out_of_them_and_no_state() -> None:
    known, messages = recogniser(), (Message.user("a"), Message.assistant("b"))
    one, other = known.recognise(messages, 0, "id:1"), known.recognise(messages, 0, "id:2")
    assert one.history is other.history
    assert one.conversation is not other.conversation
    assert known.recognise(messages, 0, "id:1").conversation is one.conversation


def test_the_states_of_few_conversations_are_kept_with_one_history() -> None:
    history = History()
    first = history.conversation("id:0")
    for number in range(1, 16):
        history.conversation(f"id:{number}")
    assert history.conversation("id:0") is first
    history.conversation("id:16")
    assert history.conversation("id:0") is not first


def test_sizes_beyond_all_windows_are_sums_too() -> None:
    history, counter = History(), CharCounter()
    history.grow((Message.user("a"), Message.user("b")))
    sums = history.sums(2, counter, lambda _: 10**30)
    assert sums[0] == 0
    assert sums[1] == sums[2] > 10**18
