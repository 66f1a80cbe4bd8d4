"""What came of the parts of a replay, added up: whatever the parts are, and in whatever order they come."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from chatstack.tokens.prices import Price, Rate
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.reading.recordings import BrokenLine
from tests.histories import PROPERTY

PRICE = Price("m", "p", Rate(Decimal(2)), Rate(Decimal(1)), None)


def broken(number: int) -> BrokenLine:
    return BrokenLine("talks.jsonl", number, "not valid JSON")


def with_errors(numbers: Sequence[int]) -> Outcome:
    outcome = Outcome([])
    for number in numbers:
        outcome.note(number, broken(number))
    return outcome


def test_errors_are_told_in_the_order_of_the_input() -> None:
    outcome = with_errors([7, 3])

    outcome.merge(with_errors([5, 1]), 0)

    assert [each.line for each in outcome.broken] == [1, 3, 5, 7]
    assert outcome.broken_count == 4


def test_of_very_many_errors_the_first_1000_are_told_whoever_met_them_first() -> None:
    """And all are counted."""
    late, early = with_errors(range(3_000, 8_000)), with_errors(range(3_000))

    for one, other in ((with_errors([]), late), (early, with_errors([]))):
        one.merge(other, 0)
    late.merge(early, 0)

    assert [each.line for each in late.broken] == list(range(1_000))
    assert late.broken_count == 8_000
    assert [each.line for each in with_errors(range(2_500)).broken] == list(range(1_000))


def priced(names: Sequence[str]) -> Outcome:
    outcome = Outcome([])
    for name in names:
        outcome.priced(name, PRICE if name.startswith("known") else None)
    return outcome


@PROPERTY
@given(
    st.permutations([f"{kind}-{number:03}" for kind in ("known", "new") for number in range(103)]), st.integers(0, 206)
)
def test_of_very_many_models_the_first_100_by_name_are_told(names: list[str], cut: int) -> None:
    outcome = priced(names[:cut])

    outcome.merge(priced(names[cut:]), 0)

    assert sorted(outcome.prices) == [f"known-{number:03}" for number in range(100)]
    assert outcome.unpriced == {f"new-{number:03}" for number in range(100)}


def test_figures_and_conversations_are_added_policy_by_policy() -> None:
    one, other = (
        Outcome([PolicyFigures("a", calls=calls), PolicyFigures("b", calls=2 * calls)], conversations=calls)
        for calls in (1, 10)
    )
    one.everything.calls, other.everything.calls = 3, 30

    one.merge(other, 0)

    assert [(each.name, each.calls) for each in one.figures] == [("a", 11), ("b", 22)]
    assert (one.conversations, one.everything.calls) == (11, 33)
