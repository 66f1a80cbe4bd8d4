"""Tuning: the search finds the cheapest stack that keeps enough, and says where there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import pytest

from chatstack import InputError
from chatstack.workbench.replay.measures.figures import GroupFigures, PolicyFigures
from chatstack.workbench.replay.measures.grounding import Grounding
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.parallel import replay
from chatstack.workbench.replay.policies import PipelineStack, Policy, policies_for
from chatstack.workbench.replay.telling import percent
from chatstack.workbench.replay.tuning.candidates import ConfigWriter, PipelineConfig, first_candidates
from chatstack.workbench.replay.tuning.halves import Part, halves_of, of_part
from chatstack.workbench.replay.tuning.margins import NO_MARGIN, Goal
from chatstack.workbench.replay.tuning.search import Search, Tried, costs_of, faults, misses
from chatstack.workbench.replay.tuning.tuned import Tuned
from tests.workbench.replay.conversations import data_file, recordings_in, setup_of

WINDOW = 1_000
WRITER = ConfigWriter(WINDOW, "")
OURS = first_candidates()[0]
"""What is there if nobody tunes."""
GOAL = Goal(Fraction(98, 100))
TRIALS = 150


@dataclass
class MadeUp:
    """Stands for the replays: figures by what a candidate's config says. ``passes`` keeps how many each was of."""

    figures: Callable[[PipelineConfig, Part], tuple[int, int, int]]
    passes: list[tuple[Part, int]] = field(default_factory=list[tuple[Part, int]])

    def __call__(self, part: Part, policies: Sequence[Policy]) -> Outcome:
        guard, *others = policies
        assert guard.name == "guard"
        self.passes.append((part, len(others)))
        outcome = Outcome([figures_of("guard", 10**9, 900)])
        for policy in others:
            assert isinstance(policy.stack, PipelineStack)
            cost, found, over = self.figures(cast("PipelineConfig", policy.stack.content), part)
            outcome.figures.append(figures_of(policy.name, cost, found, over_limit=over))
        return outcome


def figures_of(name: str, cost: int, found: int, values: int = 1_000, **others: Any) -> PolicyFigures:
    figures = PolicyFigures(name, **others)
    figures.spending.tokens_plain, figures.spending.usd = cost, None
    figures.grounding = Grounding(values, found, values, found)
    return figures


def condensing(config: PipelineConfig, part: Part) -> tuple[int, int, int]:
    """Cheapest where the limit is 0.7 and the target 0.5; all is found there, and everywhere but below 0.4."""
    layer = next((each for each in config["layers"] if each["use"] == "ClearThenDrop"), None)
    if layer is None:
        return 10**6, 1_000, 0
    limit, target = int(str(layer["max_tokens"])), float(str(layer["target"]))
    return 1_000 + abs(limit - 700) + round(1_000 * abs(target - 0.5)), 1_000 if target >= 0.4 else 500, 0


def settings_of(best: Tried) -> dict[str, float]:
    return dict(best.candidate.settings)


def test_the_search_walks_to_the_best_from_where_it_begins() -> None:
    measure = MadeUp(condensing)
    search = Search(GOAL, WRITER, measure, TRIALS)

    best = search.best()

    assert best.is_feasible
    assert (settings_of(best)["max_tokens"], settings_of(best)["target"]) == (0.7, 0.5)
    assert measure.passes[0] == ("sample", len(first_candidates()))
    assert {part for part, _ in measure.passes[1:]} == {"tuning"}
    assert measure.passes[1][1] < len(first_candidates()) / 2


def test_the_search_goes_on_with_a_margin_where_the_cheapest_does_not_hold() -> None:
    """What is cheapest keeps just the goal of all, and less of every other half."""

    def measure(part: Part, policies: Sequence[Policy]) -> Outcome:
        outcome = Outcome([figures_of("guard", 10**9, 900)])
        for policy in policies[1:]:
            assert isinstance(policy.stack, PipelineStack)
            layers = cast("PipelineConfig", policy.stack.content)["layers"]
            target = next((float(str(each["target"])) for each in layers if "target" in each), 0.0)
            found = [100, 96] * 8 if target < 0.48 else [99] * 16
            figures = figures_of(policy.name, round(1_000 + 100 * target), 10 * sum(found) // 16)
            for group, each in enumerate(found):
                figures.groups[group] = GroupFigures(Grounding(100, each, 50, each // 2), round(62.5 + target))
            outcome.figures.append(figures)
        return outcome

    search = Search(GOAL, WRITER, measure, TRIALS)
    best = search.best()

    assert best.is_feasible
    assert settings_of(best)["target"] == 0.5
    assert search.margin.size > 0


@pytest.mark.parametrize("trials", [1, 2, 7, 30, 61, 63, 90])
def test_no_more_settings_are_tried_than_that(trials: int) -> None:
    measure = MadeUp(condensing)
    search = Search(GOAL, WRITER, measure, trials)

    best = search.best()

    assert len(search.tried) <= trials
    assert best.candidate in search.tried
    assert max(count for _, count in measure.passes) <= trials


@pytest.mark.parametrize("trials", [2, 20, 60])
def test_half_of_few_trials_is_for_what_is_near_the_best_of_the_first(trials: int) -> None:
    measure = MadeUp(condensing)
    search = Search(GOAL, WRITER, measure, trials)

    best = search.best()

    assert measure.passes[0] == ("sample", trials // 2)
    assert best.candidate not in first_candidates()
    assert len(search.tried) == trials


def test_without_a_sample_all_go_through_the_whole_half() -> None:
    measure = MadeUp(condensing)
    Search(GOAL, WRITER, measure, TRIALS, has_sample=False).best()
    assert measure.passes[0] == ("tuning", len(first_candidates()))


def test_the_stack_that_we_recommend_is_measured_on_the_whole_half_however_it_does_in_the_sample() -> None:
    def misleading(config: PipelineConfig, part: Part) -> tuple[int, int, int]:
        is_ours = config == WRITER.config(OURS)
        return (10**8 if part == "sample" else 1, 1_000, 0) if is_ours else (1_000, 1_000, 0)

    assert Search(GOAL, WRITER, MadeUp(misleading), TRIALS).best().candidate == OURS


def test_what_nearly_keeps_enough_in_the_sample_gets_its_chance() -> None:
    cheap = first_candidates()[9]

    def noisy(config: PipelineConfig, part: Part) -> tuple[int, int, int]:
        is_cheap = config == WRITER.config(cheap)
        return (1 if is_cheap else 1_000), (970 if is_cheap and part == "sample" else 990), 0

    assert Search(GOAL, WRITER, MadeUp(noisy), TRIALS).best().candidate == cheap


def test_what_does_not_fit_is_not_taken_however_cheap_and_however_much_it_keeps() -> None:
    def clearing_overflows(config: PipelineConfig, part: Part) -> tuple[int, int, int]:
        is_clearer = config["layers"][0]["use"] == "ToolResultClearer"
        return (1, 1_000, 3) if is_clearer else (500, 985, 0)

    best = Search(GOAL, WRITER, MadeUp(clearing_overflows), TRIALS).best()

    assert (best.is_feasible, best.candidate.kind) == (True, "ClearThenDrop")


def test_where_nothing_keeps_enough_the_nearest_is_given_and_said_not_to() -> None:
    def poor(config: PipelineConfig, part: Part) -> tuple[int, int, int]:
        prune_to = config["layers"][-1].get("prune_to", 0)
        return 100, 500 + round(100 * float(str(prune_to))), 0

    best = Search(GOAL, WRITER, MadeUp(poor), TRIALS).best()

    assert not best.is_feasible
    assert (settings_of(best)["prune_to"], best.missing) == (0.9, Fraction(98 - 59, 100))


def test_what_keeps_enough_and_does_not_fit_is_said_not_to_fit() -> None:
    best = Tried(OURS, 3, Fraction(0), 1, figures_of("tuned", 1, 990, over_limit=3))
    outcome = Outcome([figures_of("nothing", 2, 1_000), figures_of("guard", 2, 990), best.figures])
    halves = halves_of([], WINDOW)
    tuned = Tuned(GOAL, best, NO_MARGIN, WRITER, 20, halves, setup_of(window=WINDOW), outcome, outcome)
    none, nearest, *_ = tuned.lines()
    assert none.startswith("None of 20 settings that were tried fits the window wherever the guard alone would, and")
    assert nearest.startswith("The nearest, with 99.0 % found")


@pytest.mark.parametrize(
    ("goal", "told"), [(GOAL, "^no recorded tool call of"), (Goal(Fraction(1), Fraction(1)), "^--far")]
)
def test_where_nothing_could_be_lost_there_is_nothing_to_tune_by(goal: Goal, told: str) -> None:
    def measure(part: Part, policies: Sequence[Policy]) -> Outcome:
        figures = [figures_of(each.name, 1, 0, 0) for each in policies]
        for each in figures:
            each.grounding.values = each.grounding.found = 0 if goal is GOAL else 5
        return Outcome(figures)

    with pytest.raises(InputError, match=told):
        Search(goal, WRITER, measure, TRIALS).best()


def test_what_the_guard_cannot_help_either_is_no_fault() -> None:
    guard = figures_of("guard", 1, 1, over_limit=3, invalid_requests=2)
    assert faults(figures_of("a", 1, 1, over_limit=3, invalid_requests=2), guard) == 0
    assert faults(figures_of("a", 1, 1, over_limit=4, invalid_requests=2), guard) == 1
    assert faults(figures_of("a", 1, 1, over_limit=1, invalid_requests=4), guard) == 2
    assert faults(figures_of("a", 1, 1, refused=1), guard) == 1
    assert faults(figures_of("a", 1, 1, latest_user_lost=2), guard) == 2


def test_cost_is_in_dollars_only_where_every_price_is_known() -> None:
    outcome = Outcome([figures_of("a", 10, 1), figures_of("b", 20, 1)])
    assert list(costs_of(outcome)) == [1_000, 2_000]
    outcome.figures[0].spending.usd = Decimal(2)
    assert list(costs_of(outcome)) == [1_000, 2_000]
    outcome.figures[1].spending.usd = Decimal(1)
    assert list(costs_of(outcome)) == [2, 1]


def test_a_share_is_missed_by_the_very_next_value() -> None:
    goal = Goal(Fraction("97.3") / 100, Fraction(1, 2))
    enough = figures_of("tuned", 1, 973)
    assert goal.missing(enough.grounding) == 0
    enough.grounding.found = 972
    assert goal.missing(enough.grounding) == Fraction(1, 1_000)
    enough.grounding.far_found = 499
    assert goal.missing(enough.grounding) == Fraction(2, 1_000)

    nothing, guard = figures_of("nothing", 1, 1_000), figures_of("guard", 1, 1_000)
    outcome = Outcome([nothing, guard, enough])
    assert list(misses(goal, outcome, "the other half")) == [
        "In the other half 97.2 % of the values are found, less than the 97.3 % that are wanted.",
        "In the other half 49.9 % of the far values are found, less than the 50.0 % that are wanted.",
    ]
    assert [percent(Fraction(each, 1_000)) for each in (1_000, 999, 980, 985)] == ["100", "99.9", "98.0", "98.5"]


@pytest.mark.slow
@pytest.mark.data
def test_on_recorded_conversations_the_tuned_stack_costs_no_more_than_the_recommended_one() -> None:
    items = recordings_in(data_file("tau_airline_gpt4o.dev.jsonl.gz"))[::5]
    halves = halves_of(items, 4_000)
    counter = WireCounter.best()
    writer = ConfigWriter.measured_by(counter, 4_000)

    def measure(part: Part, policies: Sequence[Policy]) -> Outcome:
        return replay(setup_of(*policies, window=4_000, counter=counter), of_part(items, halves.part(part)))

    def found(policy: Policy) -> tuple[Fraction, Outcome]:
        outcome = measure("tuning", [*policies_for([], ["guard"]), policy])
        grounding = outcome.figures[1].grounding
        return Fraction(grounding.found, grounding.values), outcome

    ours = Policy("ours", PipelineStack(writer.config(OURS)))
    kept, outcome = found(ours)
    cost_of_ours = costs_of(outcome)[1]

    best = Search(Goal(kept), writer, measure, 62).best()
    reached, outcome = found(Policy("tuned", PipelineStack(writer.config(best.candidate))))

    assert best.is_feasible
    assert reached >= kept
    assert costs_of(outcome)[1] == best.cost < cost_of_ours
