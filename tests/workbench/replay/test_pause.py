"""So many seconds pass before each call: a prompt cache that does not live as long is cold then, by hand."""

from __future__ import annotations

from decimal import Decimal

import pytest

from chatstack import ChatClient, ChatRequest, ChatStack, Message
from chatstack.layers.clearer import ToolResultClearer
from chatstack.tokens.prices import Price, Rate
from chatstack.workbench.replay.measures.costs import Spending
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.measuring import Gauge, Measured
from chatstack.workbench.replay.policies import Policy, policies_for
from tests.workbench.replay.conversations import (
    CHARACTERS,
    assistant,
    conversation,
    outcome_of,
    recording,
    result,
    setup_of,
    user,
)

GAUGE = Gauge(CHARACTERS)
INPUT, READ, WRITE = Rate(Decimal(2)), Rate(Decimal("0.5")), Rate(Decimal(3))


def sized(*tokens: int) -> Measured:
    """A request of messages of these sizes, each with a text of its own."""
    messages = (Message.user(letter * (size - 4)) for letter, size in zip("abcdef", tokens, strict=False))
    return GAUGE.measure(ChatRequest(tuple(messages)), needs_user=True)


def spent(pause_seconds: float, *calls: list[Measured], price: Price | None = None) -> Spending:
    spending = Spending()
    spending.begin(price, pause_seconds)
    for requests in calls:
        spending.add(requests)
    return spending


def parts(spending: Spending) -> tuple[int, int, int]:
    return spending.tokens_read, spending.tokens_written, spending.tokens_plain


@pytest.mark.parametrize(
    ("pause_seconds", "expected", "cost"),
    [
        (0, (2_000, 2_300, 0), 10 * 2_000 + 125 * 2_300),
        (299, (2_000, 2_300, 0), 10 * 2_000 + 125 * 2_300),
        (299.9, (2_000, 2_300, 0), 10 * 2_000 + 125 * 2_300),
        (300, (0, 4_300, 0), 125 * 4_300),
        (1_800, (0, 4_300, 0), 125 * 4_300),
    ],
)
def test_after_300_seconds_nothing_is_read(pause_seconds: float, expected: tuple[int, int, int], cost: int) -> None:
    spending = spent(pause_seconds, [sized(2_000)], [sized(2_000, 300)])

    assert parts(spending) == expected
    assert spending.cost == cost
    assert spending.prefix_breaks == 0


def test_what_is_sent_twice_for_one_call_is_read_however_long_the_pause() -> None:
    spending = spent(10_000, [sized(2_000)], [sized(2_000), sized(2_000, 300)])

    assert parts(spending) == (2_000, 2_000 + 2_000 + 300, 0)


@pytest.mark.parametrize(
    ("lifetime", "pause_seconds", "is_read"),
    [
        (1_800, 300, True),
        (1_800, 1_799, True),
        (1_800, 1_800, False),
        (60, 59, True),
        (60, 60, False),
        (None, 299, True),
        (None, 300, False),
    ],
)
def test_dollars_go_by_the_lifetime_of_the_models_cache(
    lifetime: int | None, pause_seconds: float, is_read: bool
) -> None:
    """And by five minutes where none is published; relative costs always do."""
    price = Price("m", "p", INPUT, READ, WRITE, lifetime_seconds=lifetime)

    spending = spent(pause_seconds, [sized(2_000)], [sized(2_000, 300)], price=price)

    second = Decimal("0.5") * 2_000 + 3 * 300 if is_read else Decimal(3) * 2_300
    assert spending.usd == (3 * 2_000 + second) / 1_000_000
    assert spending.usd_uncached == Decimal(2) * 4_300 / 1_000_000
    assert parts(spending)[0] == (2_000 if pause_seconds < 300 else 0)


def test_a_pause_makes_calls_dearer_and_changes_nothing_that_is_sent() -> None:
    talk = recording(conversation(user("x" * 2_000), assistant("a"), user("y" * 500), assistant("b")))
    (nothing,) = policies_for([], ["nothing"])

    warm, cold = (outcome_of(setup_of(nothing, pause_seconds=each), talk).figures[0] for each in (0, 300))

    assert warm.tokens_sent == cold.tokens_sent == 2_004 + 2_513
    assert warm.spending.cost == 10 * 2_004 + 125 * 2_513
    assert cold.spending.cost == 125 * (2_004 + 2_513)
    assert cold.cost_relative(cold.spending) == 1.0


def paying(ceiling: int, model: ChatClient) -> ChatStack:
    """Clears when it pays, and the window forces nothing."""
    return ChatStack(model).use(
        ToolResultClearer,
        trigger={"tokens": 2_000},
        clear_at_least="pays",
        max_context_tokens=1_000_000,
        counter=CHARACTERS,
    )


@pytest.mark.parametrize(("pause_seconds", "edits"), [(0, 0), (299, 0), (300, 2), (1_800, 2)])
def test_a_stack_is_shown_the_pause_and_edits_where_the_cache_has_run_out(pause_seconds: float, edits: int) -> None:
    """From the trigger on: of 2,008 tokens, and again a call later, when there is one more result than it keeps."""
    messages = [
        user("task"),
        *[each for n in range(5) for each in (assistant(None, f"c{n}"), result(f"c{n}", "r" * 476))],
    ]
    talk = recording(conversation(*messages, assistant("done")))
    policy = Policy("pays", paying)

    figures = outcome_of(setup_of(policy, pause_seconds=pause_seconds), talk).figures[0]

    assert figures.edits == edits
    assert figures.spending.prefix_breaks == edits


def test_time_goes_on_from_one_conversation_to_the_next_and_none_is_cold_at_its_beginning() -> None:
    talk = recording(conversation(user("x" * 3_000), assistant("done")))

    figures: PolicyFigures = outcome_of(setup_of(Policy("pays", paying), pause_seconds=900), talk, talk).figures[0]

    assert (figures.edits, figures.conversations) == (0, 2)
    assert parts(figures.spending) == (0, 2 * 3_004, 0)


@pytest.mark.parametrize(("pause_seconds", "expected"), [(3_599, (2_000, 2_300)), (3_600, (0, 4_300))])
def test_a_long_cache_lives_an_hour_and_its_writes_cost_twice_the_input(
    pause_seconds: float, expected: tuple[int, int]
) -> None:
    price = Price("m", "p", INPUT, READ, WRITE, 1_024, 300, write_for_an_hour=Rate(Decimal(4)))
    spending = Spending(long_cache=True)
    spending.begin(price.with_long_cache(), pause_seconds)
    spending.add([sized(2_000)])
    spending.add([sized(2_000, 300)])

    read, written = expected
    assert parts(spending) == (read, written, 0)
    assert spending.cost == 10 * read + 200 * written
    assert spending.usd == (read * Decimal("0.5") + written * Decimal(4)) / 1_000_000


def test_a_long_cache_is_paid_for_by_all_policies_and_by_what_they_are_beside() -> None:
    talk = recording(conversation(user("x" * 2_000), assistant("a"), user("y" * 500), assistant("b")))
    (nothing,) = policies_for([], ["nothing"])

    outcome = outcome_of(setup_of(nothing, pause_seconds=600, long_cache=True), talk)

    for figures in (outcome.everything, *outcome.figures):
        assert figures.spending.cost == 200 * 2_004 + 10 * 2_004 + 200 * 509
