"""The benchmarks that the README names are there, and all of them run in one command."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from chatstack.replay.measures.measuring import WireCounter
from chatstack.replay.policies import policies_for
from tests.replay.conversations import outcome_of, recording, setup_of, talk

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "tests" / "benchmarks"


def names_in_the_readme() -> set[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return set(re.findall(r"tests/benchmarks/(\w+)\.py", text))


def test_one_command_runs_all_that_the_readme_names() -> None:
    named = names_in_the_readme() - {"all"}
    timed = runpy.run_path(str(BENCHMARKS / "all.py"))["TIMED"]

    assert "all" in names_in_the_readme()
    assert {*timed, "recordings"} == named
    assert all((BENCHMARKS / f"{name}.py").is_file() for name in named)


def test_each_installs_what_it_needs_from_this_checkout() -> None:
    for path in BENCHMARKS.glob("*.py"):
        head = path.read_text(encoding="utf-8").partition('"""')[0]
        assert "# dependencies = [" in head, path
        assert 'chatstack-core = { path = "../..", editable = true }' in head, path


def test_the_rows_of_the_recordings_fit_their_headings_and_say_who_would_do() -> None:
    benchmark = runpy.run_path(str(BENCHMARKS / "recordings.py"))
    setup = setup_of(*policies_for([], ["nothing", "guard", "ours"]), window=1_000, counter=WireCounter.best())
    outcome = outcome_of(setup, recording(talk(20)))

    rows = [benchmark["row"]("made", figures, outcome).split(" | ") for figures in outcome.figures]
    nothing, guard, ours = benchmark["short"]({"made": outcome}).splitlines()[2:]
    cheaper = "guard" if outcome.figures[1].spending.cost <= outcome.figures[2].spending.cost else "none"

    assert {len(row) for row in rows} == {len(benchmark["HEADINGS"])}
    assert nothing == "| nothing | (1.000: -, -) |"  # it goes over the window
    assert re.fullmatch(r"\| guard \| [0-9.]+: -, - \|", guard)
    assert re.fullmatch(r"\| ours \| [0-9.]+: -, - \|", ours)
    told = f"made: of 1 that would do, as cheap as ours or cheaper: {cheaper}; with more found: none. Of all 2, "
    assert benchmark["verdict"]("made", outcome).startswith(told)
