"""What a policy did is added up call by call."""

from __future__ import annotations

from decimal import Decimal

from chatstack.workbench.replay.measures.costs import Spending
from chatstack.workbench.replay.measures.figures import Curve, PolicyFigures
from chatstack.workbench.replay.measures.grounding import Grounding
from chatstack.workbench.replay.measures.measuring import Measured


def test_all_requests_of_a_call_are_added_up_and_the_largest_is_weighed() -> None:
    figures = PolicyFigures("mine")

    figures.add([Measured(5, ""), Measured(30, "no user message")], 20, 0)
    figures.add([Measured(20, "no user message")], 20, 0)
    figures.add([], 20, 0)

    assert (figures.calls, figures.requests, figures.tokens_sent) == (3, 3, 55)
    assert (figures.peak_tokens, figures.over_limit) == (30, 1)
    assert (figures.invalid_requests, figures.faults) == (2, {"no user message": 2})


def test_the_cost_is_a_multiple_of_that_of_sending_everything() -> None:
    figures, everything = PolicyFigures("mine"), PolicyFigures("everything")
    figures.add([Measured(300, "")], 1_000, 0)
    everything.add([Measured(400, "")], 1_000, 0)

    assert figures.cost_relative(everything.spending) == 0.75
    assert figures.cost_relative(Spending()) is None
    figures.refused = 1
    assert figures.cost_relative(everything.spending) is None


def test_cpu_time_is_per_call_and_nothing_without_calls() -> None:
    assert PolicyFigures("mine", calls=4, cpu_seconds=0.002).cpu_ms_per_call == 0.5
    assert PolicyFigures("mine").cpu_ms_per_call == 0.0


def test_a_curve_is_of_the_last_request_of_each_call_and_its_peak_of_the_largest() -> None:
    figures = PolicyFigures("mine")

    for at, sizes in ((0, [5, 3]), (1, [8]), (0, [2]), (3, [9, 1])):
        figures.add([Measured(size, "") for size in sizes], 100, at)
    figures.add([], 100, 2)

    assert figures.curve == Curve([2, 1, 0, 1], [5, 8, 0, 1], [5, 8, 0, 9])


def test_a_curve_ends_after_5000_calls_and_all_else_goes_on() -> None:
    figures = PolicyFigures("mine")

    for at in (4_999, 5_000, 10**9):
        figures.add([Measured(7, "")], 100, at)

    assert (len(figures.curve.calls), sum(figures.curve.calls)) == (5_000, 1)
    assert (figures.calls, figures.tokens_sent) == (3, 21)


def test_curves_of_other_conversations_are_added_call_by_call() -> None:
    short, long = Curve([2, 1], [10, 6], [7, 6]), Curve([1, 1, 1], [9, 1, 4], [9, 1, 4])
    both, other_way = Curve(), Curve()
    for curve, parts in ((both, (short, long)), (other_way, (long, short))):
        for part in parts:
            curve.merge(part)

    assert both == other_way == Curve([3, 2, 1], [19, 7, 4], [9, 6, 4])


def figures_with(scale: int) -> PolicyFigures:
    """Every figure a multiple of another prime."""
    spending = Spending(
        tokens_read=2 * scale,
        tokens_written=3 * scale,
        tokens_plain=5 * scale,
        summary_input=7 * scale,
        summary_output=11 * scale,
        prefix_breaks=13 * scale,
        usd=Decimal(17 * scale),
        usd_uncached=Decimal(19 * scale),
    )
    return PolicyFigures(
        "mine",
        conversations=23 * scale,
        calls=29 * scale,
        requests=31 * scale,
        tokens_sent=37 * scale,
        peak_tokens=41 * scale,
        over_limit=43 * scale,
        invalid_requests=47 * scale,
        edits=53 * scale,
        refused=59 * scale,
        cpu_seconds=0.5 * scale,
        spending=spending,
        grounding=Grounding(*(prime * scale for prime in (67, 71, 73, 79, 89, 97, 101, 103))),
        curve=Curve([scale], [scale], [83 * scale]),
        faults={"empty request": 61 * scale},
    )


def test_what_a_policy_did_elsewhere_is_added_figure_by_figure() -> None:
    """Of the largest request the larger one stays."""
    total, expected = figures_with(1), figures_with(3)
    expected.peak_tokens, expected.curve.peak = 41 * 2, [83 * 2]

    total.merge(figures_with(2))

    assert total == expected
    total.merge(PolicyFigures("mine", faults={"other": 1}, spending=Spending(usd=None)))
    assert total.faults == {"empty request": 183, "other": 1}
    assert (total.spending.usd, total.spending.usd_uncached) == (None, Decimal(57))
