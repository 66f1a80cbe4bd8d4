# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[tokenizer,prices,peers]"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What policies do to recorded conversations, LangChain's and Agent Framework's among them, as the tables of README and
``docs/figures.md``: ``uv run tests/benchmarks/recordings.py --data DIR``.

DIR holds two sets, each a JSONL file of OpenAI chat messages, gzipped: ``tau_airline_gpt4o*.jsonl.gz``, the gpt-4o
trajectories of sierra-research/tau-bench at 59a200c, and ``swe_gemini3_mini*.jsonl.gz``, the runs of
gruckion/mini-swe-agent at d12a71a. Sizes are those of the wire text by o200k, no tool schemas; cost is at prompt-cache
prices (read 0.1, write 1.25, nothing under 1,024 tokens cached), beside sending everything. Then follow the README's
short form of the table, and what ``recommended`` comes to beside the others. At last the guard and ``recommended`` at a
window that is too small for the coding runs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import results  # beside this file

from chatstack.workbench.replay.measures.figures import PolicyFigures
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.parallel import cores, replay
from chatstack.workbench.replay.peers import peer_policies
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import read_recordings
from chatstack.workbench.replay.reading.sources import sources_from
from chatstack.workbench.replay.setup import Setup
from chatstack.workbench.replay.telling import percent

SETS = (("tau_airline_gpt4o", "airline", (4_000, 8_000)), ("swe_gemini3_mini", "coding", (8_000, 16_000)))
TOO_SMALL = ("swe_gemini3_mini", "coding", (2_000,))
HEADINGS = (
    "recordings, window",
    "policy",
    "cost",
    "found",
    "far",
    "bare",
    "far bare",
    "by label",
    "far by label",
    "dearest",
    "breaks",
    "over",
    "invalid",
    "user lost",
    "refused",
    "edits each",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to a file, for compare.py")
    parser.add_argument("--without-peers", action="store_true", help="leave the other frameworks out")
    given = parser.parse_args()
    run = results.Run("recordings", rounds=1, json=given.json)
    directory: Path = given.data
    policies = policies_for([]) if given.without_peers else (*policies_for([]), *peer_policies())
    outcomes = {where: outcome for each in SETS for where, outcome in replayed(directory, *each, policies)}
    print(f"\n{short(outcomes)}\n")
    for where, outcome in outcomes.items():
        print(verdict(where, outcome))
    print()
    outcomes |= replayed(directory, *TOO_SMALL, policies_for([], ["guard", "recommended"]))
    note(run, outcomes)
    run.write()


def note(run: results.Run, outcomes: Mapping[str, Outcome]) -> None:
    """Add the figures behind the table, unrounded."""
    for where, outcome in outcomes.items():
        for figures in outcome.figures:
            values = {
                "cost": figures.cost_relative(outcome.everything.spending),
                "found": figures.grounding.share,
                "far": figures.grounding.far_share,
                "bare": figures.grounding.bare_share,
                "far bare": figures.grounding.far_bare_share,
                "by label": figures.grounding.attributed_share,
                "far by label": figures.grounding.far_attributed_share,
                "dearest": figures.dearest and figures.dearest.cost_relative,
                "user lost": figures.latest_user_lost,
                "breaks": figures.spending.prefix_breaks,
                "over": figures.over_limit,
                "invalid": figures.invalid_requests,
                "refused": figures.refused,
                "edits": figures.edits,
            }
            for name, value in values.items():
                run.exact(f"{where}, {figures.name}: {name}", value)


def replayed(
    directory: Path, pattern: str, called: str, windows: Sequence[int], policies: Sequence[Policy]
) -> Iterator[tuple[str, Outcome]]:
    """One set under each window; its rows are printed as they come."""
    files = sorted(directory.glob(f"{pattern}*.jsonl.gz"))
    if not files:
        sys.exit(f"no {pattern}*.jsonl.gz in {directory}")
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}", flush=True)
    for window in windows:
        started = time.monotonic()
        setup = Setup(tuple(policies), window=window, counter=WireCounter.best())
        with sources_from(files) as sources:
            outcome = replay(setup, read_recordings(sources), jobs=cores())
        where = f"{called}, {window:,}"
        for figures in outcome.figures:
            print(row(where, figures, outcome), flush=True)
        print(f"{where}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        yield where, outcome


def short(outcomes: Mapping[str, Outcome]) -> str:
    """A row for each policy: cost, found, far; in brackets where it would not do."""
    lines = [f"| policy | {' | '.join(outcomes)} |", f"|---|{'---|' * len(outcomes)}"]
    for at, first in enumerate(next(iter(outcomes.values())).figures):
        lines.append(f"| {first.name} | {' | '.join(cell(each, each.figures[at]) for each in outcomes.values())} |")
    return "\n".join(lines)


def cell(outcome: Outcome, figures: PolicyFigures) -> str:
    cost = figures.cost_relative(outcome.everything.spending)
    shares = f"{share_of(figures.grounding.share)}, {share_of(figures.grounding.far_share)}"
    told = f"{'-' if cost is None else f'{cost:.3f}'}: {shares}"
    return told if would_do(figures) else f"({told})"


def would_do(figures: PolicyFigures) -> bool:
    """Whether it kept every call within the window, with the latest user message, and sent nothing that a server would
    refuse."""
    return not (figures.over_limit or figures.refused or figures.invalid_requests or figures.latest_user_lost)


def row(where: str, figures: PolicyFigures, outcome: Outcome) -> str:
    cost = figures.cost_relative(outcome.everything.spending)
    cells = (
        where,
        figures.name,
        "-" if cost is None else f"{cost:.3f}",
        share_of(figures.grounding.share),
        share_of(figures.grounding.far_share),
        share_of(figures.grounding.bare_share),
        share_of(figures.grounding.far_bare_share),
        share_of(figures.grounding.attributed_share),
        share_of(figures.grounding.far_attributed_share),
        "-" if figures.dearest is None else f"{figures.dearest.cost_relative:.2f}",
        f"{100 * figures.spending.prefix_breaks / figures.calls:.1f} %",
        f"{figures.over_limit:,}",
        f"{figures.invalid_requests:,}",
        f"{figures.latest_user_lost:,}",
        f"{figures.refused:,}",
        f"{figures.edits / figures.conversations:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def verdict(where: str, outcome: Outcome) -> str:
    """What ``recommended`` comes to beside those that would do, and beside all."""
    (ours,) = (each for each in outcome.figures if each.name == "recommended")
    others = [each for each in outcome.figures if each is not ours]
    doing = list(filter(would_do, others))
    return (
        f"{where}: of {len(doing)} that would do, as cheap as ours or cheaper: {names(doing, ours, is_cheap)}; with "
        f"more found: {names(doing, ours, finds_more)}. Of all {len(others)}, as cheap or cheaper: "
        f"{names(others, ours, is_cheap)}; with more found: {names(others, ours, finds_more)}"
    )


def names(
    policies: Sequence[PolicyFigures], ours: PolicyFigures, has: Callable[[PolicyFigures, PolicyFigures], bool]
) -> str:
    return ", ".join(each.name for each in policies if has(each, ours)) or "none"


def is_cheap(one: PolicyFigures, other: PolicyFigures) -> bool:
    return one.spending.cost <= other.spending.cost


def finds_more(one: PolicyFigures, other: PolicyFigures) -> bool:
    """All policies look for the same values."""
    return one.grounding.found > other.grounding.found


def share_of(share: float | None) -> str:
    return "-" if share is None else f"{percent(share)} %"


if __name__ == "__main__":
    main()
