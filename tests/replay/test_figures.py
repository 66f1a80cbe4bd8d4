"""What a policy did is added up call by call."""

from __future__ import annotations

from chatstack.replay.costs import Spending
from chatstack.replay.figures import PolicyFigures
from chatstack.replay.measuring import Measured


def test_all_requests_of_a_call_are_added_up_and_the_largest_is_weighed() -> None:
    figures = PolicyFigures("mine")

    figures.add([Measured(5, ""), Measured(30, "no user message")], 20)
    figures.add([Measured(20, "no user message")], 20)
    figures.add([], 20)

    assert (figures.calls, figures.requests, figures.tokens_sent) == (3, 3, 55)
    assert (figures.peak_tokens, figures.over_limit) == (30, 1)
    assert (figures.invalid_requests, figures.faults) == (2, {"no user message": 2})


def test_the_cost_is_a_multiple_of_that_of_sending_everything() -> None:
    figures, everything = PolicyFigures("mine"), PolicyFigures("everything")
    figures.add([Measured(300, "")], 1_000)
    everything.add([Measured(400, "")], 1_000)

    assert figures.cost_relative(everything.spending) == 0.75
    assert figures.cost_relative(Spending()) is None
    figures.refused = 1
    assert figures.cost_relative(everything.spending) is None


def test_cpu_time_is_per_call_and_nothing_without_calls() -> None:
    assert PolicyFigures("mine", calls=4, cpu_seconds=0.002).cpu_ms_per_call == 0.5
    assert PolicyFigures("mine").cpu_ms_per_call == 0.0
