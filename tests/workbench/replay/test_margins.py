"""The margin that a choice of settings needs, so that it holds for conversations that it was not made on."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from chatstack.workbench.replay.measures.figures import GroupFigures
from chatstack.workbench.replay.measures.grounding import Grounding
from chatstack.workbench.replay.tuning.margins import NO_MARGIN, Goal, margin_for

GOAL = Goal(Fraction(97, 100))


def candidate(*found: int, cost: int, usd: Decimal | None = None) -> dict[int, GroupFigures]:
    """Of a hundred values, half of them far, in each group."""
    return {group: GroupFigures(Grounding(100, each, 50, each // 2), cost, usd) for group, each in enumerate(found)}


UNEVEN = candidate(*[100, 94] * 8, cost=1)
"""Just the goal in all; less in every other half."""
STEADY = candidate(*[99] * 16, cost=2)


def test_where_the_cheapest_keeps_enough_everywhere_there_is_no_margin() -> None:
    assert margin_for(GOAL, [STEADY, candidate(*[100] * 16, cost=3)]) == NO_MARGIN


def test_where_the_cheapest_keeps_enough_only_here_and_there_the_margin_leads_to_another() -> None:
    margin = margin_for(GOAL, [UNEVEN, STEADY])

    assert 0 < margin.size <= Fraction(2, 100)
    assert margin.held >= Fraction(9, 10)


def test_where_no_margin_helps_it_is_the_smallest_that_holds_most_often() -> None:
    margin = margin_for(GOAL, [UNEVEN])

    assert margin.size == 0
    assert Fraction(3, 10) < margin.held < Fraction(9, 10)


def test_it_depends_on_the_conversations_alone() -> None:
    renamed = [{31 - group: part for group, part in each.items()} for each in (STEADY, UNEVEN)]

    assert margin_for(GOAL, [UNEVEN, STEADY]) == margin_for(GOAL, [STEADY, UNEVEN])
    assert margin_for(GOAL, renamed).size > 0


def test_dollars_decide_where_all_prices_are_known() -> None:
    cheap_in_dollars = candidate(*[99] * 16, cost=2, usd=Decimal(1))
    uneven = candidate(*[100, 94] * 8, cost=1, usd=Decimal(2))

    assert margin_for(GOAL, [uneven, cheap_in_dollars]) == NO_MARGIN
    assert margin_for(GOAL, [uneven, STEADY]).size > 0


@pytest.mark.parametrize("candidates", [[], [{}], [candidate(97, cost=1)]])
def test_with_nothing_to_go_by_there_is_none(candidates: list[dict[int, GroupFigures]]) -> None:
    assert margin_for(GOAL, candidates) == NO_MARGIN


def test_the_margin_of_the_far_values_is_wider_and_neither_asks_for_more_than_all() -> None:
    goal, found = Goal(Fraction(97, 100), Fraction(90, 100)), Grounding(400, 400, 100, 100)

    assert goal.raised(Fraction(0), found) is goal
    assert goal.raised(Fraction(1, 100), found) == Goal(Fraction(98, 100), Fraction(92, 100))
    assert goal.raised(Fraction(5, 100), found) == Goal(Fraction(1), Fraction(1))
    assert Goal(Fraction(1, 2)).raised(Fraction(1, 100), Grounding(4, 4)) == Goal(Fraction(51, 100))


def test_the_far_values_have_to_hold_too() -> None:
    far = Goal(Fraction(1, 2), Fraction(97, 100))

    assert margin_for(Goal(Fraction(1, 2)), [UNEVEN, STEADY]) == NO_MARGIN
    assert margin_for(far, [UNEVEN, STEADY]).size > 0
