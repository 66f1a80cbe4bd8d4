"""Finds the cheapest settings that keep a wanted share of the values that recorded calls used, by trying them.

The search tries many candidates on a sample, the promising ones on the whole tuning half, then changes one setting at a
time around the best, until none is better. Then it goes on with a margin (``margins.py``), as what just keeps enough
here may keep less elsewhere. All candidates of a step go through one pass over the recordings. Nothing is random, and
nothing depends on the number of processes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

from chatstack.errors import InputError
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.policies import PipelineStack, Policy, policies_for
from chatstack.workbench.replay.telling import percent
from chatstack.workbench.replay.tuning.candidates import Candidate, ConfigWriter, first_candidates
from chatstack.workbench.replay.tuning.halves import Part
from chatstack.workbench.replay.tuning.margins import NO_MARGIN, Goal, Margin, margin_for

_PROMISING = 3
"""One in this many goes on from the sample to the whole half."""
_FEWEST_PROMISING = 6
_TOLERANCE = Fraction(2, 100)
"""Tolerance for a sample, which is small: a candidate that misses the goal by this may reach it in the whole half."""
_STEPS = (1, 2)
_ROUNDS = 2
"""Number of times that the margin is worked out: with what the first made the search try, it may be another."""

Measure: TypeAlias = Callable[[Part, Sequence[Policy]], Outcome]
"""A function that replays a part of the recordings through these policies."""


def faults(figures: PolicyFigures, guard: PolicyFigures) -> int:
    """Count refused calls, those without the latest user message, and the calls over the window and invalid requests
    beyond those of the guard."""
    over = max(0, figures.over_limit - guard.over_limit)
    invalid = max(0, figures.invalid_requests - guard.invalid_requests)
    return figures.refused + figures.latest_user_lost + over + invalid


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a candidate, in the tuning half or in the sample.

    ``missing`` is what it lacks of the goal. ``cost`` is in dollars if the price of every recorded model is known, else
    in hundredths of an uncached input token.
    """

    candidate: Candidate
    faults: int
    missing: Fraction
    cost: Decimal | int
    figures: PolicyFigures = field(repr=False)

    @property
    def is_feasible(self) -> bool:
        """True if everything fits, and the goal is reached."""
        return not self.faults and not self.missing

    def rank(self, goal: Goal) -> tuple[int, Fraction, Decimal | int]:
        """Return the sort key, the lower the better: feasible before all else, then as near to it as possible, then
        cheap."""
        return self.faults, goal.missing(self.figures.grounding), self.cost


@dataclass(slots=True)
class Search:
    """The search; ``trials`` limits the number of candidates, ``tried`` holds those that were tried.

    Without a sample, it begins with the whole half. ``margin`` is what it asked for beyond the goal, so that the choice
    holds for other conversations, too.
    """

    goal: Goal
    writer: ConfigWriter
    measure: Measure
    trials: int
    has_sample: bool = True
    tried: set[Candidate] = field(default_factory=set[Candidate])
    margin: Margin = NO_MARGIN
    _measured: dict[Candidate, Tried] = field(default_factory=dict[Candidate, Tried])

    def best(self) -> Tried:
        """Return the best candidate; if none is feasible, the nearest.

        Raises ``InputError`` if the tuning half has no values that could be kept or lost.
        """
        first = first_candidates()[: max(1, self.trials // 2)]  # the rest is for what is near the best of them
        promising = self._promising(self._try("sample", first)) if self.has_sample else first
        self._measure(promising)
        best = self._walk(self.goal)
        for _ in range(_ROUNDS):
            fitting = [each.figures.groups for each in self._measured.values() if not each.faults]
            self.margin = margin_for(self.goal, fitting)
            if not self.margin.size:
                break
            best = self._walk(self.goal.raised(self.margin.size, best.figures.grounding))
        return best

    def _walk(self, goal: Goal) -> Tried:
        """Change one setting at a time around the best, until none is better; return that."""
        best = min(self._measured.values(), key=lambda each: each.rank(goal))
        steps = 0
        while steps < len(_STEPS):
            left = self.trials - len(self.tried)
            near = [each for each in best.candidate.neighbours(_STEPS[steps]) if each not in self._measured]
            fresh = [each for each in near if each not in self.tried][:left]
            self._measure([each for each in near if each in self.tried or each in fresh])
            found = min([best, *self._measured.values()], key=lambda each: each.rank(goal))
            steps = steps + 1 if found is best else 0
            best = found
        return best

    def _measure(self, candidates: Sequence[Candidate]) -> None:
        self._measured.update((each.candidate, each) for each in self._try("tuning", candidates))

    def _try(self, part: Part, candidates: Sequence[Candidate]) -> list[Tried]:
        """Measure these candidates in one pass, and return their results in order."""
        if not candidates:
            return []
        self.tried.update(candidates)
        policies = [policy_of(each, self.writer, str(number)) for number, each in enumerate(candidates)]
        outcome = self.measure(part, [*policies_for([], ["guard"]), *policies])
        guard, *figures = outcome.figures
        if part == "tuning":
            self._check(guard)
        costs = costs_of(outcome)[1:]
        return [
            Tried(candidate, faults(each, guard), self.goal.missing(each.grounding), cost, each)
            for candidate, each, cost in zip(candidates, figures, costs, strict=True)
        ]

    def _check(self, figures: PolicyFigures) -> None:
        found = figures.grounding
        if not found.values:
            raise InputError(
                "no recorded tool call of the half that is tuned on takes a value from its context, so nobody can "
                "tell what leaving something out would do"
            )
        if self.goal.far is not None and not found.far_values:
            raise InputError(
                "--far: no recorded tool call of the half that is tuned on takes a value from far back in its context"
            )

    def _promising(self, tried: Sequence[Tried]) -> list[Candidate]:
        """Return the candidates for the whole half.

        These are the best, in turn the cheapest that nearly reach the goal and those that reach more, for a margin, and
        in any case the first: the recipe that we recommend.
        """
        wanted = max(_FEWEST_PROMISING, len(tried) // _PROMISING)
        found = tried[0].figures.grounding
        by_rank = sorted(tried, key=lambda each: each.rank(self.goal))
        nearly = sorted(tried, key=lambda each: (each.faults, max(Fraction(0), each.missing - _TOLERANCE), each.cost))
        safely = sorted(tried, key=lambda each: each.rank(self.goal.raised(_TOLERANCE, found)))
        chosen = dict.fromkeys(each.candidate for each in (tried[0], *by_rank[: wanted // 2]))
        for each in itertools.chain.from_iterable(zip(nearly, safely, strict=True)):
            if len(chosen) >= wanted:
                break
            chosen[each.candidate] = None
        return list(chosen)


def costs_of(outcome: Outcome) -> Sequence[Decimal | int]:
    """Return each policy's cost: dollars if every price is known, else hundredths of an uncached input token."""
    dollars = [each.spending.usd for each in outcome.figures]
    known: list[Decimal | int] = [each for each in dollars if each is not None]
    return known if len(known) == len(dollars) else [each.spending.cost for each in outcome.figures]


def policy_of(candidate: Candidate, writer: ConfigWriter, name: str) -> Policy:
    """Return the candidate as a policy, with the same config that is written if it is chosen."""
    return Policy(name, PipelineStack(writer.config(candidate)), writer.words(candidate), is_yours=True)


def compared(chosen: Policy) -> tuple[Policy, ...]:
    """Return the policies of the report: the usual ones, then the chosen stack."""
    return (*policies_for([], ["nothing", "guard", "recommended"]), chosen)


def misses(goal: Goal, outcome: Outcome, where: str) -> Iterable[str]:
    """Yield sentences where the last policy of a report misses the goal."""
    guard, figures = outcome.figures[1], outcome.figures[-1]
    found = figures.grounding
    for what, wanted, kept, values in (
        ("the values", goal.grounding, found.found, found.values),
        ("the far values", goal.far, found.far_found, found.far_values),
    ):
        if wanted is not None and not values:
            yield f"In {where} nobody can tell how many of {what} are found: no recorded call takes any."
        elif wanted is not None and Fraction(kept, values) < wanted:
            share = percent(Fraction(kept, values))
            yield f"In {where} {share} % of {what} are found, less than the {percent(wanted)} % that are wanted."
    if faults(figures, guard):
        yield (
            f"In {where} {figures.over_limit:,} calls are over the window (with the guard alone {guard.over_limit:,}), "
            f"{figures.invalid_requests:,} requests are invalid, and {figures.refused:,} calls are refused."
        )
