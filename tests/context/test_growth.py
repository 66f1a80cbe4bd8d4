"""What is kept of a history for its edits is what its messages say, for each beginning of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chatstack import Message
from chatstack.context.edits.pairing import places_of
from chatstack.context.edits.units import is_users, units_of
from chatstack.context.histories.growth import Growth, pairs_of
from chatstack.context.histories.past_requests import PastRequests, first_of
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.strategies.clearable import Results
from chatstack.context.strategies.clearing import ClearToolResults
from tests.histories import PROPERTY, histories


@PROPERTY
@given(histories(), st.integers(0, 2))
def test_a_history_knows_the_pairs_of_a_request(messages: list[Message], systems: int) -> None:
    """In one piece, as with a system message between them the request is looked at."""
    messages = [Message.system("s")] * systems + [each for each in messages if each.role != "system"]
    memory = ContextMemory()
    beginnings = [messages[:length] for length in (systems + 1, len(messages) // 2, len(messages))]
    seen = [memory.recognise(each) for each in beginnings]
    for each, came in zip(seen, beginnings, strict=True):  # the history has grown since, in all but the last case
        pairs, places = places_of(came)
        find = pairs_of(each)
        if each.length:
            assert find is not None
            assert [*find()[0]] == places
            assert sorted(find()[1]) == [at for at, _, _ in pairs.open_calls()]


@PROPERTY
@given(histories())
def test_the_open_units_of_each_beginning_are_those_of_its_messages(messages: list[Message]) -> None:
    results = Results(ClearToolResults(), Growth(lambda: tuple(messages)))
    for length in range(len(messages) + 1):
        among = [unit for unit in units_of(messages[:length]) if unit.is_open]
        assert results.of_open_units(length) == {at for unit in among for at in unit.positions}


@PROPERTY
@given(histories(), st.data())
def test_the_past_requests_after_one_are_the_last_ones_of_all(messages: list[Message], data: st.DataObject) -> None:
    seen = ContextMemory().recognise(messages)
    since = data.draw(st.integers(0, seen.length))
    known, found = PastRequests.of(seen, 0), PastRequests.of(seen, since)
    assert [*found.lengths] == [each for each in known.lengths if each > since or each == seen.length]
    users = [at for at, each in enumerate(seen.history.messages) if is_users(each)]
    for length in range(since, seen.length + 1):
        assert found.asked_at(seen, length) == seen.asked_at(length)
        assert found.next_user(length) == next((at for at in users if at >= length), seen.length)


@PROPERTY
@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 40), st.integers(-2, 42))
def test_the_first_length_is_found_wherever_it_is_looked_for_first(
    number: int, low: int, first: int, likely: int
) -> None:
    lengths = range(100, 100 + number)
    low = min(low, number)
    assert first_of(lengths, low, lambda length: length >= 100 + first, likely) == max(low, min(first, number))
