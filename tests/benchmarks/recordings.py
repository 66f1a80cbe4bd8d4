# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[tokenizer,prices,peers]"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What policies do to recorded conversations, LangChain's and Agent Framework's among them, as the table of the README:
``uv run tests/benchmarks/recordings.py --data DIR``.

DIR holds two sets, each a JSONL file of OpenAI chat messages, gzipped: ``tau_airline_gpt4o*.jsonl.gz``, the gpt-4o
trajectories of sierra-research/tau-bench at 59a200c, and ``swe_gemini3_mini*.jsonl.gz``, the runs of
gruckion/mini-swe-agent at d12a71a. Sizes are those of the wire text by o200k, no tool schemas; cost is at prompt-cache
prices (read 0.1, write 1.25, nothing under 1,024 tokens cached), beside sending everything. Under each table stands
what ``ours`` comes to beside the others.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from chatstack.replay.measures.figures import PolicyFigures
from chatstack.replay.measures.measuring import WireCounter
from chatstack.replay.outcomes import Outcome
from chatstack.replay.parallel import cores, replay
from chatstack.replay.peers import peer_policies
from chatstack.replay.policies import policies_for
from chatstack.replay.reading.recordings import read_recordings
from chatstack.replay.reading.sources import sources_from
from chatstack.replay.running import Setup

SETS = (("tau_airline_gpt4o", "airline", (4_000, 8_000)), ("swe_gemini3_mini", "coding", (8_000, 16_000)))
HEADINGS = (
    "recordings, window",
    "policy",
    "cost",
    "found",
    "far",
    "breaks",
    "over",
    "invalid",
    "refused",
    "edits each",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    directory: Path = parser.parse_args().data
    policies = (*policies_for([]), *peer_policies())
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    verdicts: list[str] = []
    for pattern, called, windows in SETS:
        files = sorted(directory.glob(f"{pattern}*.jsonl.gz"))
        if not files:
            sys.exit(f"no {pattern}*.jsonl.gz in {directory}")
        for window in windows:
            started = time.monotonic()
            setup = Setup(policies, window=window, counter=WireCounter.best())
            with sources_from(files) as sources:
                outcome = replay(setup, read_recordings(sources), jobs=cores())
            where = f"{called}, {window:,}"
            for figures in outcome.figures:
                print(row(where, figures, outcome), flush=True)
            verdicts += verdict(where, outcome)
            print(f"{where}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    print("\n" + "\n".join(verdicts))


def row(where: str, figures: PolicyFigures, outcome: Outcome) -> str:
    cost = figures.cost_relative(outcome.everything.spending)
    cells = (
        where,
        figures.name,
        "-" if cost is None else f"{cost:.3f}",
        percent(figures.grounding.share),
        percent(figures.grounding.far_share),
        f"{100 * figures.spending.prefix_breaks / figures.calls:.1f} %",
        f"{figures.over_limit:,}",
        f"{figures.invalid_requests:,}",
        f"{figures.refused:,}",
        f"{figures.edits / figures.conversations:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def verdict(where: str, outcome: Outcome) -> list[str]:
    """What ``ours`` comes to beside those that keep the ceiling, and beside those that do not."""
    (ours,) = (each for each in outcome.figures if each.name == "ours")
    others = [each for each in outcome.figures if each is not ours]
    keep = [each for each in others if not (each.over_limit or each.refused or each.invalid_requests)]
    dearer = [each.name for each in keep if each.spending.cost <= ours.spending.cost]
    lower = [each.name for each in others if above(each, ours)]
    within = [each.name for each in keep if above(each, ours)]
    return [
        f"{where}: of {len(keep)} that keep the ceiling, as cheap as ours or cheaper: {', '.join(dearer) or 'none'}; "
        f"with more found: {', '.join(within) or 'none'}; of all {len(others)}, with more found: "
        f"{', '.join(lower) or 'none'}"
    ]


def above(one: PolicyFigures, other: PolicyFigures) -> bool:
    """Whether it found more values; all policies look for the same ones."""
    return one.grounding.found > other.grounding.found


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
