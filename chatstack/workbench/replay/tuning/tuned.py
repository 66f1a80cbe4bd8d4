"""The result of tuning: tables and sentences for people, JSON for programs, and the head of the written file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.report import Report, report_of
from chatstack.workbench.replay.setup import Setup
from chatstack.workbench.replay.table import report_table
from chatstack.workbench.replay.telling import percent
from chatstack.workbench.replay.tuning.candidates import ConfigWriter, PipelineConfig
from chatstack.workbench.replay.tuning.halves import RULE, Halves
from chatstack.workbench.replay.tuning.margins import Goal, Margin
from chatstack.workbench.replay.tuning.search import Tried, misses

if TYPE_CHECKING:
    from rich.table import Table

TUNE_VERSION = 1
"""Version of the JSON: goes up when a field changes its meaning or is removed; fields may be added."""
_FILES_TOLD = 3
_TUNED, _OTHER = "the half that was tuned on", "the other half"
_FITS = "fits the window wherever the guard alone would, and sends nothing that a server would refuse"


@dataclass(frozen=True, slots=True)
class Tuned:
    """The chosen stack, and its figures beside those of the usual policies in both halves.

    ``margin`` was asked for beyond the goal. ``tuned`` is the outcome of the half that it was tuned on, ``other`` that
    of the other one; ``setup`` is that of those replays, the chosen stack last. ``tried`` counts the settings that were
    tried.
    """

    goal: Goal
    best: Tried
    margin: Margin
    writer: ConfigWriter
    tried: int
    halves: Halves
    setup: Setup
    tuned: Outcome
    other: Outcome

    @property
    def config(self) -> PipelineConfig:
        """The config of the chosen stack."""
        return self.writer.config(self.best.candidate)

    @property
    def words(self) -> str:
        """A description of the chosen stack."""
        return self.writer.words(self.best.candidate)

    def tables(self) -> Iterator[Table]:
        """Yield one table for each half."""
        for title, outcome in (("Tuned on", self.tuned), ("The other half", self.other)):
            table = report_table(outcome, self.setup)
            table.title = f"{title}: {table.title}"
            if outcome is self.tuned:
                table.caption = None  # it stands under the second
            yield table

    def lines(self) -> Iterator[str]:
        """Yield the paragraphs beside the tables."""
        if self.best.is_feasible:
            yield f"The cheapest of {self.tried:,} settings that were tried: {self.words}"
            yield from self._untold()
        else:
            unmet = _FITS if self.best.faults else f"keeps what is wanted: {_wanted(self.goal)}"
            yield f"None of {self.tried:,} settings that were tried {unmet}."
            yield f"The nearest, with {_reached(self.tuned)}: {self.words}"
            yield from misses(self.goal, self.tuned, _TUNED)
        if self.margin.size:
            yield self._margin_told()
        yield from self._dollars()
        yield RULE
        if joined := self.halves.unread.joined:
            yield f"Recorded lines that are the beginning of another, joined with it: {joined:,}."
        if self.halves.silent:
            yield f"Left out, as they have no answer that could be asked for again: {self.halves.silent:,}."
        if self.best.is_feasible:
            yield from misses(self.goal, self.other, _OTHER)

    def _untold(self) -> Iterator[str]:
        """Yield a sentence if no call was long enough to tell the settings apart."""
        outcomes = self.tuned, self.other
        if all(each.figures[-1].tokens_sent == each.everything.tokens_sent for each in outcomes):
            largest = max(each.everything.peak_tokens for each in outcomes)
            yield (
                f"Everything was sent, as the largest of these calls takes {largest:,} of the window's "
                f"{self.setup.window:,} tokens: give a --window that they outgrow."
            )

    def _margin_told(self) -> str:
        return (
            f"Asked for were {percent(self.margin.size)} % more, so that the wanted share holds for others, too: of "
            f"choices made like that on a half of what it was tuned on, {percent(self.margin.held)} % held on the rest."
        )

    def remarks(self, files: Sequence[str], version: str) -> Iterator[str]:
        """Yield the head of the file: a description of the stack, and what it was tuned on."""
        names = [Path(name).name for name in files]
        more = f" and {len(names) - _FILES_TOLD:,} more" if len(names) > _FILES_TOLD else ""
        yield f"Written by chatstack tune, chatstack-core {version}, from {', '.join(names[:_FILES_TOLD])}{more}."
        yield self.words
        yield f"Window: {self.setup.window:,} tokens by {self.setup.counter.name}. Wanted: {_wanted(self.goal)}."
        for title, outcome in ((_TUNED, self.tuned), (_OTHER, self.other)):
            counts = f"{outcome.conversations:,} conversations, {outcome.everything.calls:,} calls"
            yield f"In {title}, {counts}: {_reached(outcome)}."
        yield from misses(self.goal, self.other, _OTHER)

    def report(self, files: Sequence[str], tools_file: str | None) -> Report:
        """Return all of it, for programs.

        ``tuned`` and ``other`` are reports as ``chatstack replay`` writes them; ``config`` and ``words`` describe the
        chosen stack, or, if ``reached`` is false, the nearest; ``margin`` is what was asked for beyond ``wanted``
        (``size``), and the share of choices that held with it (``held``); ``misses`` lists what the other half lacks of
        the goal.
        """
        broken = self.halves.unread
        return {
            "version": TUNE_VERSION,
            "wanted": {
                "grounding": float(self.goal.grounding),
                "far": None if self.goal.far is None else float(self.goal.far),
            },
            "reached": self.best.is_feasible,
            "margin": {"size": float(self.margin.size), "held": float(self.margin.held)},
            "config": self.config,
            "words": self.words,
            "tried": self.tried,
            "rule": RULE,
            "without_answer": self.halves.silent,
            "errors": [{"file": each.file, "line": each.line, "error": each.error} for each in broken.broken],
            "error_count": broken.broken_count,
            "joined": broken.joined,
            "misses": list(misses(self.goal, self.other, _OTHER)),
            "tuned": report_of(self.tuned, self.setup, files, tools_file),
            "other": report_of(self.other, self.setup, files, tools_file),
        }

    def _dollars(self) -> Iterator[str]:
        for title, outcome in ((_TUNED, self.tuned), (_OTHER, self.other)):
            sums = [(each.name, each.spending.usd) for each in outcome.figures if not each.refused]
            if all(usd is not None for _, usd in sums):
                yield f"Input in dollars, in {title}: {', '.join(f'{name} {usd:.4f}' for name, usd in sums)}."
        if self.tuned.figures[-1].spending.usd is not None:
            yield "Dollars decide where all prices are known; cost in the tables is by a price list that many share."


def _wanted(goal: Goal) -> str:
    far = "" if goal.far is None else f", {percent(goal.far)} % of the far ones"
    return f"{percent(goal.grounding)} % found{far}"


def _reached(outcome: Outcome) -> str:
    figures = outcome.figures[-1]
    found = figures.grounding
    cost = figures.cost_relative(outcome.everything.spending)
    dollars, of_all = figures.spending.usd, outcome.everything.spending.usd
    if dollars is not None and of_all and cost is not None:
        cost = float(dollars / of_all)  # the cost by which it was chosen
    return ", ".join(
        (
            f"{_share(found.found, found.values)} found",
            f"{_share(found.far_found, found.far_values)} of the far ones",
            "calls refused" if cost is None else f"{cost:.2f} of what sending everything costs",
        )
    )


def _share(found: int, values: int) -> str:
    return f"{percent(Fraction(found, values))} %" if values else "nothing to be"
