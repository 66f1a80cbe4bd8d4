"""Finds the cheapest settings that keep a wanted share of what recorded calls used, by trying them.

Many candidates on a sample, the promising ones of them on all that is tuned on, then steps in one setting at a time
around the best, until none is better. All candidates of a step go through one pass over the recordings. Nothing is
random, and nothing depends on how many processes there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import TypeAlias

from chatstack.errors import InputError
from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.telling import percent
from chatstack.workbench.replay.tuning.candidates import Candidate, ConfigStack, ConfigWriter, first_candidates
from chatstack.workbench.replay.tuning.halves import Part

_PROMISING = 3
"""One of so many goes on from the sample to the whole half."""
_FEWEST_PROMISING = 6
_TOLERANCE = Fraction(2, 100)
"""A sample is small: a candidate that misses the wanted share by so much in it may keep it in the whole half."""
_STEPS = (1, 2)

Measure: TypeAlias = Callable[[Part, Sequence[Policy]], Outcome]
"""Replays a part of the recordings through these policies."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a stack has to keep: shares, 0 to 1, of the values that recorded calls used, and of the far ones."""

    grounding: Fraction
    far: Fraction | None = None

    def missing(self, figures: PolicyFigures) -> Fraction:
        """By how much it is missed, both shares together; 0 where it is reached, or there was nothing to find."""
        found = figures.grounding
        missing = _missing(self.grounding, found.found, found.values)
        return missing + (0 if self.far is None else _missing(self.far, found.far_found, found.far_values))


def _missing(wanted: Fraction, found: int, values: int) -> Fraction:
    return max(Fraction(0), wanted - Fraction(found, values)) if values else Fraction(0)


def faults(figures: PolicyFigures, guard: PolicyFigures) -> int:
    """Calls that were refused, and requests that are over the window, or invalid, where those of the guard are not."""
    over = max(0, figures.over_limit - guard.over_limit)
    return figures.refused + over + max(0, figures.invalid_requests - guard.invalid_requests)


@dataclass(frozen=True, slots=True)
class Tried:
    """What a candidate came to, in the half that is tuned on or in the sample. ``cost`` is in dollars where the price
    of every recorded model is known, else in hundredths of an uncached input token."""

    candidate: Candidate
    faults: int
    missing: Fraction
    cost: Decimal | int

    @property
    def is_feasible(self) -> bool:
        """Whether everything fits, and as much is found as is wanted."""
        return not self.faults and not self.missing

    @property
    def rank(self) -> tuple[int, Fraction, Decimal | int]:
        """The lower the better: feasible before all else, then as near to it as can be, then cheap."""
        return self.faults, self.missing, self.cost


@dataclass(slots=True)
class Search:
    """The search; ``trials`` is how many candidates it may try, ``tried`` those that it did. Without a sample, the
    whole half is what it begins with."""

    goal: Goal
    writer: ConfigWriter
    measure: Measure
    trials: int
    has_sample: bool = True
    tried: set[Candidate] = field(default_factory=set[Candidate])

    def best(self) -> Tried:
        """The best that was found; where nothing is feasible, what comes nearest to it.

        Raises ``InputError`` where the half that is tuned on holds nothing that could be found or lost.
        """
        first = first_candidates()[: self.trials]
        promising = self._promising(self._try("sample", first)) if self.has_sample else first
        measured = dict.fromkeys(promising)
        best = min(self._try("tuning", promising), key=lambda each: each.rank)
        steps = 0
        while steps < len(_STEPS):
            left = self.trials - len(self.tried)
            near = [each for each in best.candidate.neighbours(_STEPS[steps]) if each not in measured]
            fresh = [each for each in near if each not in self.tried][:left]
            near = [each for each in near if each in self.tried or each in fresh]
            measured.update(dict.fromkeys(near))
            found = min([best, *self._try("tuning", near)], key=lambda each: each.rank)
            steps = steps + 1 if found is best else 0
            best = found
        return best

    def _try(self, part: Part, candidates: Sequence[Candidate]) -> list[Tried]:
        """What these come to, in their order, all in one pass."""
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
            Tried(candidate, faults(each, guard), self.goal.missing(each), cost)
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
        """Those that go on to the whole half: the best, the cheapest that nearly reach what is wanted, and in any case
        what comes first, the recipe that we recommend."""
        wanted = max(_FEWEST_PROMISING, len(tried) // _PROMISING)
        by_rank = sorted(tried, key=lambda each: each.rank)
        nearly = sorted(tried, key=lambda each: (each.faults, max(Fraction(0), each.missing - _TOLERANCE), each.cost))
        chosen = dict.fromkeys(each.candidate for each in (tried[0], *by_rank[: wanted // 2]))
        for each in nearly:
            if len(chosen) >= wanted:
                break
            chosen[each.candidate] = None
        return list(chosen)


def costs_of(outcome: Outcome) -> Sequence[Decimal | int]:
    """What each policy cost: in dollars where every price is known, else in hundredths of an uncached input token."""
    dollars = [each.spending.usd for each in outcome.figures]
    known: list[Decimal | int] = [each for each in dollars if each is not None]
    return known if len(known) == len(dollars) else [each.spending.cost for each in outcome.figures]


def policy_of(candidate: Candidate, writer: ConfigWriter, name: str) -> Policy:
    """The candidate as a policy: the very config that is written where it is chosen."""
    return Policy(name, ConfigStack(writer.config(candidate)), writer.words(candidate))


def compared(chosen: Policy) -> tuple[Policy, ...]:
    """What is reported: the chosen stack, beside those that everybody has."""
    return (*policies_for([], ["nothing", "guard", "ours"]), chosen)


def misses(goal: Goal, outcome: Outcome, where: str) -> Iterable[str]:
    """Where the last policy of a report keeps less than was wanted, in sentences."""
    guard, figures = outcome.figures[1], outcome.figures[-1]
    found = figures.grounding
    for what, wanted, kept, values in (
        ("the values", goal.grounding, found.found, found.values),
        ("the far values", goal.far, found.far_found, found.far_values),
    ):
        if wanted is not None and not values:
            yield f"In {where} nobody can tell how many of {what} are found: no recorded call takes any."
        elif wanted is not None and _missing(wanted, kept, values):
            share = percent(Fraction(kept, values))
            yield f"In {where} {share} % of {what} are found, less than the {percent(wanted)} % that are wanted."
    if faults(figures, guard):
        yield (
            f"In {where} {figures.over_limit:,} calls are over the window (with the guard alone {guard.over_limit:,}), "
            f"{figures.invalid_requests:,} requests are invalid, and {figures.refused:,} calls are refused."
        )
