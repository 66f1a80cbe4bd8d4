"""The margin that a choice needs, so that what it keeps where it was made is kept elsewhere, too.

The cheapest settings that just keep the wanted share of some conversations keep less of others about every other time:
they were chosen for being just there. How much more to ask for is found by cross-validation: the conversations that
were tuned on are split into two halves, many times; settings are chosen on one half with a margin, and looked at on the
other. The margin is the smallest with which the wanted share held in nine of ten.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from chatstack.workbench.replay.measures.figures import GroupFigures
from chatstack.workbench.replay.measures.grounding import Grounding

GROUPS = 32
"""Number of groups of conversations; those about the same task are in one group, and so on one side of a split."""
_SPLITS = 50
"""Each serves twice, as either half may be the one that is chosen on."""
_HOLDS = Fraction(9, 10)
_LADDER = tuple(Fraction(step, 500) for step in range(26))
"""The margins that are tried: from 0 to 5 %, by a fifth of a percent."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The goal: shares, 0 to 1, of the values that recorded calls used, and of the far ones, that a stack must keep."""

    grounding: Fraction
    far: Fraction | None = None

    def missing(self, found: Grounding) -> Fraction:
        """Return by how much both shares together miss the goal; 0 if they reach it, or there were no values."""
        missing = _missing(self.grounding, found.found, found.values)
        return missing + (0 if self.far is None else _missing(self.far, found.far_found, found.far_values))

    def raised(self, margin: Fraction, found: Grounding) -> Goal:
        """Return the goal with a margin; that of the far values is larger, as there are fewer of them."""
        if not margin:
            return self
        wider = Fraction(math.sqrt(found.values / found.far_values)) if found.far_values else Fraction(1)
        far = None if self.far is None else min(Fraction(1), self.far + margin * wider)
        return replace(self, grounding=min(Fraction(1), self.grounding + margin), far=far)


def _missing(wanted: Fraction, found: int, values: int) -> Fraction:
    return max(Fraction(0), wanted - Fraction(found, values)) if values else Fraction(0)


class Margin(NamedTuple):
    """A margin, and the share of splits in which the goal held with it."""

    size: Fraction
    held: Fraction


NO_MARGIN = Margin(Fraction(0), Fraction(1))


class _Side(NamedTuple):
    """One candidate in one half of a split."""

    grounding: Grounding
    cost: Decimal | int


Sides = Sequence[_Side]


def margin_for(goal: Goal, candidates: Sequence[dict[int, GroupFigures]]) -> Margin:
    """Return the margin with which a choice among the candidates holds; each has its figures by group.

    If none of the margins is enough, it is the smallest of those that hold most often. Without candidates, or with
    fewer than two groups, there is nothing to go by, and no margin.
    """
    groups = sorted({group for candidate in candidates for group in candidate})
    if len(groups) < 2:
        return NO_MARGIN
    in_usd = all(part.usd is not None for candidate in candidates for part in candidate.values())
    splits = [
        pair
        for some in _halves_of(groups)
        for pair in itertools.permutations(
            [_sides(candidates, half, in_usd) for half in (some, set(groups).difference(some))]
        )
    ]
    found: list[Margin] = []
    for size in _LADDER:
        held = sum(_holds(goal, size, chosen_on, looked_at) for chosen_on, looked_at in splits)
        found.append(Margin(size, Fraction(held, len(splits))))
        if found[-1].held >= _HOLDS:
            return found[-1]
    return max(found, key=lambda each: (each.held, -each.size))


def _halves_of(groups: Sequence[int]) -> Iterator[set[int]]:
    """Yield halves of the groups, in an order that is as good as random and always the same."""
    for split in range(_SPLITS):
        mixed = sorted(groups, key=lambda group: hashlib.blake2b(f"{split}:{group}".encode()).digest())
        yield set(mixed[: len(mixed) // 2])


def _sides(candidates: Iterable[dict[int, GroupFigures]], half: set[int], in_usd: bool) -> Sides:
    sides: list[_Side] = []
    for candidate in candidates:
        total = GroupFigures()
        for group, part in candidate.items():
            if group in half:
                total.merge(part)
        sides.append(_Side(total.grounding, total.usd if in_usd and total.usd is not None else total.cost))
    return sides


def _holds(goal: Goal, margin: Fraction, chosen_on: Sides, looked_at: Sides) -> bool:
    """Return True if what is chosen on one half with that margin reaches the goal on the other."""
    raised = goal.raised(margin, chosen_on[0].grounding)
    best = min(range(len(chosen_on)), key=lambda at: (raised.missing(chosen_on[at].grounding), chosen_on[at].cost))
    return not goal.missing(looked_at[best].grounding)
