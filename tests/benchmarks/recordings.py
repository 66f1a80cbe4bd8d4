# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[tokenizer,prices]"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What the policies of ``chatstack replay`` do to recorded conversations, as the table of the README:
``uv run tests/benchmarks/recordings.py DIR``.

DIR holds two sets, each a JSONL file of OpenAI chat messages, gzipped: ``tau_airline_gpt4o*.jsonl.gz``, the gpt-4o
trajectories of sierra-research/tau-bench at 59a200c, and ``swe_gemini3_mini*.jsonl.gz``, the runs of
gruckion/mini-swe-agent at d12a71a. Sizes are those of the wire text by o200k, no tool schemas; cost is at prompt-cache
prices (read 0.1, write 1.25, nothing under 1,024 tokens cached), beside sending everything.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from chatstack.replay.measuring import WireCounter
from chatstack.replay.policies import policies_for
from chatstack.replay.recordings import read_recordings
from chatstack.replay.running import PolicyFigures, Replay

SETS = (("tau_airline_gpt4o", "airline", (4_000, 8_000)), ("swe_gemini3_mini", "coding", (8_000, 16_000)))
HEADINGS = ("recordings, window", "policy", "cost", "found", "far", "breaks", "over", "invalid", "edits each")


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(f"usage: {Path(__file__).name} DIR")
    counter = WireCounter.best()
    print(f"| {' | '.join(HEADINGS)} |\n|{'---|' * len(HEADINGS)}")
    for pattern, called, windows in SETS:
        files = sorted(Path(sys.argv[1]).glob(f"{pattern}*.jsonl.gz"))
        if not files:
            sys.exit(f"no {pattern}*.jsonl.gz in {sys.argv[1]}")
        for window in windows:
            started = time.monotonic()
            replay = Replay(policies_for([]), window=window, counter=counter)
            asyncio.run(replay.run(read_recordings(files)))
            for figures in replay.figures:
                print(row(f"{called}, {window:,}", figures, replay), flush=True)
            print(f"{called}, {window:,}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def row(where: str, figures: PolicyFigures, replay: Replay) -> str:
    cost = figures.cost_relative(replay.everything.spending)
    cells = (
        where,
        figures.name,
        "-" if cost is None else f"{cost:.3f}",
        percent(figures.grounding.share),
        percent(figures.grounding.far_share),
        f"{100 * figures.spending.prefix_breaks / figures.calls:.1f} %",
        f"{figures.over_limit:,}",
        f"{figures.invalid_requests:,}",
        f"{figures.edits / figures.conversations:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


if __name__ == "__main__":
    main()
