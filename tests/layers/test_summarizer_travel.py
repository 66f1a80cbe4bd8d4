"""The travel assistant of the seed over forty cities: what was said long ago is still known, and paid for once."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatstack import Usage
from chatstack.context.edits.units import is_users
from tests.context.strictness import leftovers
from tests.lanes import in_lanes
from tests.layers.travel import (
    CITIES,
    Trip,
    fact_of,
    get_long_weather,
    items,
    question_about,
    sent_tokens,
    summaries_in,
    toured,
)

LONG: dict[str, Any] = {"weather": get_long_weather, "max_context_items": None}
"""Reports of some 250 tokens, so that it is the limit in tokens that counts."""


def _after_half_of_them(number: int) -> bool:
    return number == 20


def _for_each_city(number: int) -> bool:
    return number > 0


TOURS: dict[str, dict[str, Any]] = {
    "plain": {},
    "with an id": {"conversation_id": "c-42"},
    "fresh equal messages": {"fresh": True},
    "streamed": {"streamed": True},
    "restarted once": {"restart_before": _after_half_of_them},
    "restarted for each city": {"restart_before": _for_each_city},
    "restarted, fresh, with an id": {"restart_before": _for_each_city, "fresh": True, "conversation_id": "c-42"},
    "long results": LONG,
    "long results, fresh": {**LONG, "fresh": True},
    "long results, streamed, with an id": {**LONG, "streamed": True, "conversation_id": "c-42"},
    "long results, restarted for each city": {**LONG, "restart_before": _for_each_city},
}

PLAIN = ("plain", "streamed", "restarted, fresh, with an id", "long results", "long results, fresh")
"""Those of a plain run."""


@functools.cache
def tour(name: str) -> Trip:
    """The trip of that name; it has ended, so tests may share it."""
    return toured(**TOURS[name])


every_tour = pytest.mark.parametrize("name", in_lanes(TOURS, PLAIN))


@pytest.mark.slow
@every_tour
def test_every_answer_is_right(name: str) -> None:
    assert [response.text for response in tour(name).responses] == [fact_of(city) for city in CITIES]


@pytest.mark.slow
@every_tour
def test_at_the_end_the_facts_of_every_earlier_city_are_still_sent(name: str) -> None:
    request = tour(name).model.requests[-1]
    said = [line for message in request.messages for line in message.text.splitlines()]
    assert [city for city in CITIES[:-1] if fact_of(city) not in said] == []
    (summary,) = summaries_in(request)
    assert sum(fact_of(city) in summary.text for city in CITIES) >= 25


@every_tour
def test_there_is_never_more_than_one_summary(name: str) -> None:
    counts = [len(summaries_in(request)) for request in tour(name).model.requests]
    assert set(counts) == {0, 1}
    assert counts == sorted(counts)  # and once there is one, it does not get lost again
    marks = {message.mark for request in tour(name).model.requests for message in request.messages}
    assert marks == {"", "summary"}


@every_tour
def test_no_request_is_over_a_limit(name: str) -> None:
    requests = tour(name).model.requests
    assert max(map(sent_tokens, requests)) <= 4_000
    if "long" in name:
        assert max(map(sent_tokens, requests)) > 3_500
    else:
        assert max(map(items, requests)) == 20


@every_tour
def test_nothing_is_ever_sent_that_a_provider_refuses(name: str) -> None:
    for request in tour(name).model.requests:
        assert not leftovers(request.messages)
        assert is_users(request.messages[0])


@every_tour
def test_the_question_of_the_turn_and_the_task_are_in_every_request(name: str) -> None:
    requests = iter(tour(name).model.requests)
    for city in CITIES:
        for request in itertools.islice(requests, 3):
            users = [message.text for message in request.messages if is_users(message)]
            assert (users[0], users[-1]) == (question_about(CITIES[0]), question_about(city))
    assert next(requests, None) is None


@every_tour
def test_every_summary_that_was_paid_for_took_effect(name: str) -> None:
    trip = tour(name)
    assert len(trip.summarizer.requests) == len(trip.folds) == len(trip.capture.spans_named(trip.folds[0].name))
    assert len(trip.folds) >= (4 if "long" in name else 20)
    assert trip.capture.warnings == ()


@every_tour
def test_nothing_is_summarized_twice(name: str) -> None:
    transcripts = tour(name).transcripts
    asked = [entry.text for entries in transcripts for entry in entries if entry.who == "user"]
    assert len(asked) == len(set(asked)) >= 20
    reports = ("result of get_weather", "result of get_long_weather")
    results = [entry.text for entries in transcripts for entry in entries if entry.who in reports]
    assert len(results) == len(set(results)) >= 20
    assert all(sum(entry.who == "summary so far" for entry in entries) == 1 for entries in transcripts[1:])


@every_tour
def test_between_two_edits_each_request_begins_with_all_of_the_last_one(name: str) -> None:
    trip = tour(name)
    assert len(trip.breaks) == len(trip.folds)


@every_tour
def test_what_summaries_cost_is_told_apart_and_in_full(name: str) -> None:
    trip = tour(name)
    overhead = sum((response.overhead_usage for response in trip.responses), Usage())
    assert overhead == trip.summarizer.spent != Usage()
    assert sum((response.usage for response in trip.responses), Usage()) == trip.model.spent


@pytest.mark.parametrize("name", in_lanes((name for name in TOURS if name != "plain" and "long" not in name), PLAIN))
def test_exactly_the_same_is_sent_however_the_conversation_is_carried_on(name: str) -> None:
    """Fresh messages, other processes, streaming: nothing of it costs a summary more, or changes a byte."""
    assert [each.messages for each in tour(name).model.requests] == [
        each.messages for each in tour("plain").model.requests
    ]
    assert tour(name).transcripts == tour("plain").transcripts


@pytest.mark.parametrize("name", in_lanes((name for name in TOURS if name != "long results" and "long" in name), PLAIN))
def test_exactly_the_same_is_sent_also_where_results_are_long(name: str) -> None:
    assert [each.messages for each in tour(name).model.requests] == [
        each.messages for each in tour("long results").model.requests
    ]
    assert tour(name).transcripts == tour("long results").transcripts


def test_a_summary_does_not_leak_into_the_stream() -> None:
    trip = tour("streamed")
    said = [
        "".join(message.text for message in response.messages if not message.results) for response in trip.responses
    ]
    assert trip.streamed_text == said == [fact_of(city) for city in CITIES]


def test_the_limit_in_tokens_alone_leaves_as_many_items_as_fit() -> None:
    assert max(map(items, tour("long results").model.requests)) > 60
    assert len(tour("long results").folds) <= 5


@pytest.mark.slow
def test_asked_for_any_city_the_assistant_still_knows_it() -> None:
    """Forty branches of one conversation: the summary of what they share is there already."""

    async def run() -> tuple[list[str], int, int]:
        trip = Trip()
        for city in CITIES:
            await trip.say(question_about(city))
        before, history = len(trip.summarizer.requests), list(trip.history)
        reminders: list[str] = []
        for city in CITIES:
            trip.history = list(history)
            reminders.append((await trip.say(f"Remind me of {city}!")).text)
        return reminders, before, len(trip.summarizer.requests)

    reminders, before, after = asyncio.run(run())
    assert reminders == [fact_of(city) for city in CITIES]
    assert after - before <= 1


# Branches

OTHERS = CITIES[30:32]


async def _branched(trip: Trip, length: int, between: Callable[[], Any] | None = None) -> list[int]:
    """How many summaries each of three turns took that take the place of the last two of so many."""
    for city in CITIES[:length]:
        await trip.say(question_about(city))
    assert trip.breaks[-1] >= 3 * (length - 1)  # there was a fold in the last turn
    if between is not None:
        await between()
    turns = [at for at, message in enumerate(trip.history) if is_users(message)]
    del trip.history[turns[-2] :]
    new: list[int] = []
    for city in OTHERS:
        before = len(trip.summarizer.requests)
        await trip.say(question_about(city))
        new.append(len(trip.summarizer.requests) - before)
    await trip.end()
    return new


LENGTHS = [4, 6, 7, 10, 15]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_branch_takes_over_the_summary_of_the_beginning_that_it_shares(length: int) -> None:
    trip = Trip()
    assert asyncio.run(_branched(trip, length)) == [0, 0]
    _check_branch(trip, length)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("length", LENGTHS)
def test_a_branch_in_another_process_takes_it_over_too(length: int, tmp_path: Path) -> None:
    trip = Trip(path=tmp_path / "decisions.db")
    assert asyncio.run(_branched(trip, length, trip.restart)) == [0, 0]
    _check_branch(trip, length)


def _check_branch(trip: Trip, length: int) -> None:
    request = trip.model.requests[-1]
    text = "\n".join(message.text for message in request.messages)
    assert all(fact_of(city) in text for city in [*CITIES[: length - 2], OTHERS[0]])
    assert not any(fact_of(city) in text for city in CITIES[length - 2 : length])  # nothing of what was replaced
    assert max(map(items, trip.model.requests)) <= 20
    asked = [entry.text for entries in trip.transcripts for entry in entries if entry.who == "user"]
    assert len(asked) == len(set(asked))
