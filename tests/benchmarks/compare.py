# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[openai,tokenizer,prices,peers]", "opentelemetry-sdk>=1.37"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""Compare two versions, and say what became slower beyond noise: ``uv run tests/benchmarks/compare.py BEFORE AFTER``.

Each of the two is a result file, as every benchmark writes it with ``--json``, or both are checkouts. Checkouts are run
first, by the benchmarks beside this file and the libraries of this environment, one round of the one, one of the other,
so that a machine that changes its speed changes it for both; the ratio of a round is of the two runs that follow one
another. ``--out`` keeps the two result files.

A figure is slower if its median ratio is above the tolerance (``--tolerance 5`` percent) and all of the 99 % confidence
interval of that median is above 1. The interval is that of the sign test, which assumes nothing about how noise is
distributed; it takes eight rounds at least. Files of separate runs are compared by the intervals of both medians, and
what else the machine did meanwhile counts as a difference. Figures that are no times are compared exactly. Ends with 1
if something became slower, with 2 if there were too few rounds to tell.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import results  # beside this file
from results import TIMED

HERE = Path(__file__).parent
CONFIDENCE = 0.99
ROUNDS = 12


class Interval(NamedTuple):
    """A median, and between what it lies."""

    low: float
    median: float
    high: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a result file, or a checkout")
    parser.add_argument("after", type=Path, help="the same, of what may have become slower")
    parser.add_argument("--tolerance", type=float, default=5.0, metavar="PERCENT", help="what is not worth a word (5)")
    parser.add_argument("--rounds", type=results.positive, default=ROUNDS, help=f"of each checkout ({ROUNDS})")
    parser.add_argument("--only", default=",".join(TIMED), metavar="NAMES", help="benchmarks to run in checkouts")
    parser.add_argument("--data", type=Path, metavar="DIR", help="compare what policies do to these recordings, too")
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep before.json and after.json of checkouts")
    given = parser.parse_args()
    names = given.only.split(",")
    if unknown := set(names) - set(TIMED):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(TIMED)}")
    sides = [given.before, given.after]
    if all(side.is_dir() for side in sides):
        before, after = run(sides, names, rounds=given.rounds, data=given.data)
        if given.out is not None:
            results.write(given.out / "before.json", before)
            results.write(given.out / "after.json", after)
    else:
        before, after = map(results.read, sides)
    return tell(before, after, tolerance=given.tolerance / 100)


# checkouts


def run(
    checkouts: Sequence[Path], names: Sequence[str], *, rounds: int, data: Path | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run two checkouts in turn, round by round; who begins changes from round to round."""
    found: list[list[dict[str, Any]]] = [[], []]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "results.json"
        if data is not None:
            for side, checkout in enumerate(checkouts):
                found[side].append(
                    run_one(checkout, "recordings", "--data", str(data.resolve()), "--without-peers", json=out)
                )
        for number in range(rounds):
            for name in names:
                print(f"round {number + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
                for side in (0, 1) if number % 2 == 0 else (1, 0):
                    found[side].append(run_one(checkouts[side], name, "--rounds", "1", json=out))
                    if found[side][-1]["commit"] != found[side][0]["commit"]:  # not at the end, when hours are lost
                        sys.exit(f"{checkouts[side]} has changed meanwhile: compare checkouts in which nobody works")
    pair = f"{os.getpid()}-{os.urandom(8).hex()}"
    before, after = ({**results.joined(parts), "interleaved": pair} for parts in found)
    return before, after


def run_one(checkout: Path, name: str, *arguments: str, json: Path) -> dict[str, Any]:
    """Run a benchmark of ours with the package of that checkout."""
    root = checkout.resolve()
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments, "--json", str(json)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{name} failed with {root}:\n{ran.stderr}")
    found = results.read(json)
    if Path(found["checkout"]) != root:
        sys.exit(f"{name} ran with {found['checkout']}, not with {root}: is that a checkout?")
    return found


# comparing


def tell(before: Mapping[str, Any], after: Mapping[str, Any], *, tolerance: float) -> int:
    """Print the comparison; return what the process ends with."""
    is_paired = before.get("interleaved") is not None and before.get("interleaved") == after.get("interleaved")
    tell_origins(before, after, is_paired=is_paired)
    tell_exact(before["figures"], after["figures"])
    ratios = {
        name: ratio_of(figure["values"], after["figures"][name]["values"], is_paired=is_paired)
        for name, figure in before["figures"].items()
        if name in after["figures"] and figure["unit"] == "seconds"
    }
    print("\n| after / before | ratio | 99 % between | |\n|---|---|---|---|")
    verdicts: dict[str, list[str]] = {}
    for name, ratio in ratios.items():
        verdict = verdict_of(ratio, tolerance) if before["figures"][name]["is_ours"] else "not ours"
        verdicts.setdefault(verdict, []).append(name)
        print(f"| {name} | {ratio.median:.3f} | {ratio.low:.3f} to {ratio.high:.3f} | {verdict} |")
    print("\n" + ", ".join(f"{verdict}: {len(names)}" for verdict, names in verdicts.items()))
    for name in verdicts.get("slower", ()):
        print(f"slower: {name}")
    if "slower" in verdicts:
        return 1
    return 2 if ratios and all(math.isinf(ratio.high) for ratio in ratios.values()) else 0


def tell_origins(before: Mapping[str, Any], after: Mapping[str, Any], *, is_paired: bool) -> None:
    for side, found in (("before", before), ("after", after)):
        print(f"{side}: {found['commit'] or found['checkout']}, load {found['load_before']} to {found['load_after']}")
    for about in ("machine", "python", "libraries"):
        if before[about] != after[about]:
            print(f"not the same {about}: {before[about]} / {after[about]}")
    if not is_paired:
        print("the rounds were not interleaved: what else the machine did counts as a difference")


def tell_exact(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Print the figures that only one side has, and those that depend on nothing but the code and have changed."""
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after or name not in before:
            print(f"only {'before' if name in before else 'after'}: {name}")
        elif before[name]["unit"] == "exact" and before[name]["values"][0] != after[name]["values"][0]:
            print(f"changed: {name}: {before[name]['values'][0]} / {after[name]['values'][0]}")


def verdict_of(ratio: Interval, tolerance: float) -> str:
    if ratio.median > 1 + tolerance and ratio.low > 1:
        return "slower"
    if ratio.median < 1 - tolerance and ratio.high < 1:
        return "faster"
    return "no slower" if ratio.high <= 1 + tolerance else "within noise"


def ratio_of(before: Sequence[float], after: Sequence[float], *, is_paired: bool) -> Interval:
    if is_paired:
        return median_of([mine / other for mine, other in zip(after, before, strict=True)])
    mine, other = median_of(after), median_of(before)
    low = mine.low / other.high if math.isfinite(other.high) else 0.0
    return Interval(low, mine.median / other.median, mine.high / other.low if other.low else math.inf)


def median_of(values: Sequence[float]) -> Interval:
    """The median with its confidence interval by the sign test: the widest pair of values that all but 1 % must spare.

    With too few values for that confidence it is between nothing and infinity.
    """
    ordered, count = sorted(values), len(values)
    outside, skipped = 2 / 2**count, 0  # the chance that the median lies below or above all values
    if outside > 1 - CONFIDENCE:
        return Interval(0.0, statistics.median(ordered), math.inf)
    while (wider := outside + 2 * math.comb(count, skipped + 1) / 2**count) <= 1 - CONFIDENCE:
        outside, skipped = wider, skipped + 1
    return Interval(ordered[skipped], statistics.median(ordered), ordered[-1 - skipped])


if __name__ == "__main__":
    sys.exit(main())
