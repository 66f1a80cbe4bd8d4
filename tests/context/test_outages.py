"""Outages: what has failed rests, longer each time, and is then tried by one call at a time."""

from __future__ import annotations

import threading
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from chatstack.context.memory.outages import MAX_REST_SECONDS, Outage
from tests.histories import PROPERTY


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def failing(outage: Outage, clock: Clock, times: int) -> list[float]:
    """How long it rests after each of so many failures, each of the first call that may be made."""
    rests: list[float] = []
    for _ in range(times):
        ticket = outage.ticket()
        assert ticket is not None
        rests.append(outage.failed(ticket)[0])
        clock.now += rests[-1]
    return rests


def test_nothing_rests_before_anything_has_failed() -> None:
    outage = Outage(5, Clock())
    assert [outage.ticket() for _ in range(10)] == [0] * 10


def test_after_a_failure_nobody_asks_until_the_rest_is_over() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    assert failing(outage, clock, 1) == [5]
    clock.now -= 0.01
    assert outage.ticket() is None
    clock.now += 0.01
    assert outage.ticket() is not None


def test_a_call_without_a_ticket_counts_nothing() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    outage.gave_up(None)
    assert outage.failed(None) == (5, False)
    assert (outage.ticket(), outage.failed(0), outage.ticket()) == (0, (5, True), None)
    outage.over(None)
    outage.gave_up(None)
    assert outage.rests
    assert outage.failed(None) == (5, False)
    clock.now += 5
    assert outage.ticket() == 1


def test_the_rest_doubles_up_to_the_longest() -> None:
    clock = Clock()
    assert failing(Outage(5, clock), clock, 7) == [5, 10, 20, 40, 60, 60, 60]
    assert MAX_REST_SECONDS == 60
    assert failing(Outage(15, clock, longest_seconds=600), clock, 8) == [15, 30, 60, 120, 240, 480, 600, 600]


def test_a_first_rest_beyond_the_longest_is_kept() -> None:
    clock = Clock()
    assert failing(Outage(90, clock), clock, 3) == [90, 90, 90]


def test_it_rests_no_longer_however_often_it_fails() -> None:
    clock = Clock()
    assert failing(Outage(1, clock), clock, 5_000)[-1] == 60


def test_in_an_outage_one_call_at_a_time_may_try() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    failing(outage, clock, 1)
    assert [outage.ticket() for _ in range(3)] == [1, None, None]


def test_one_that_tries_and_is_never_heard_of_again_does_not_block_the_others_for_good() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    failing(outage, clock, 1)
    assert outage.ticket() is not None
    clock.now += 5
    assert outage.ticket() is not None


def test_an_answer_ends_the_outage() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    failing(outage, clock, 4)
    ticket = outage.ticket()
    assert ticket is not None
    outage.over(ticket)
    assert [outage.ticket() for _ in range(3)] == [0, 0, 0]
    assert failing(outage, clock, 2) == [5, 10]


def test_calls_that_began_before_the_failure_say_nothing_about_now() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    early, earlier = outage.ticket(), outage.ticket()
    assert early is not None
    assert earlier is not None
    assert outage.failed(early) == (5, True)
    outage.over(earlier)
    assert outage.ticket() is None


def test_calls_that_fail_together_are_one_failure_and_the_first_one_tells_of_it() -> None:
    outage = Outage(5, Clock())
    tickets = [outage.ticket() for _ in range(5)]
    assert [outage.failed(ticket) for ticket in tickets if ticket is not None] == [(5, True), *[(5, False)] * 4]


def test_an_outage_that_goes_on_is_told_of_once() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    tickets: list[bool] = []
    for _ in range(3):
        ticket = outage.ticket()
        assert ticket is not None
        rest, is_news = outage.failed(ticket)
        tickets.append(is_news)
        clock.now += rest
    assert tickets == [True, False, False]


def test_whoever_gives_up_lets_the_next_one_try_at_once() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    failing(outage, clock, 1)
    ticket = outage.ticket()
    assert ticket is not None
    assert outage.ticket() is None
    outage.gave_up(ticket)
    assert outage.ticket() == ticket


def test_giving_up_ends_no_rest_that_began_later() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    before, other = outage.ticket(), outage.ticket()
    assert before is not None
    assert other is not None
    outage.failed(other)
    outage.gave_up(before)
    assert outage.ticket() is None


def test_of_many_threads_one_may_try() -> None:
    clock = Clock()
    outage = Outage(5, clock)
    failing(outage, clock, 1)
    found: list[int | None] = []
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait()
        found.append(outage.ticket())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found, key=str) == [1, *[None] * 7]


@PROPERTY
@given(st.floats(0.1, 100), st.floats(0.1, 1_000), st.integers(2, 40))
def test_rests_never_get_shorter_nor_longer_than_the_longest(first: float, longest: float, times: int) -> None:
    clock = Clock(0.0)
    outage = Outage(first, clock, longest_seconds=longest)
    rests: list[float] = []
    for _ in range(times):
        ticket = outage.ticket()
        assert ticket is not None
        rests.append(outage.failed(ticket)[0])
        clock.now += rests[-1] * 1.01
    assert rests[0] == first
    assert all(before <= after <= max(first, longest) for before, after in pairwise(rests))
