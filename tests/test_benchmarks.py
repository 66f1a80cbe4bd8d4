"""The benchmarks that README and the page of figures name are there, and all of them run in one command."""

from __future__ import annotations

import importlib
import json
import random
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chatstack import ChatRequest, Message, ToolCall, ToolResult
from chatstack.context.strategies.name_lists import Names, list_text
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.policies import policies_for
from tests.workbench.replay.conversations import outcome_of, recording, setup_of, talk

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "tests" / "benchmarks"


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when they are run: what lies beside a script can be imported."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def names_on_the_pages() -> set[str]:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/figures.md"))
    return set(re.findall(r"(?<!/)tests/benchmarks/(\w+)\.py", text))


def test_one_command_runs_all_that_the_pages_name() -> None:
    no_ratio = {"memory", "soak", "names_by_model"}
    named = names_on_the_pages() - {"all", "compare"} - no_ratio
    timed = runpy.run_path(str(BENCHMARKS / "all.py"))["TIMED"]

    assert "all" in names_on_the_pages()
    assert {*timed, "recordings"} == named
    assert all((BENCHMARKS / f"{name}.py").is_file() for name in named)


def test_each_installs_what_it_needs_from_this_checkout() -> None:
    scripts = [path for path in BENCHMARKS.glob("*.py") if path.name != "results.py"]  # which they import

    for path in scripts:
        head = path.read_text(encoding="utf-8").partition('"""')[0]
        assert "# dependencies = [" in head, path
        assert 'chatstack-core = { path = "../..", editable = true }' in head, path


def test_the_rows_of_the_recordings_fit_their_headings_and_say_who_would_do() -> None:
    benchmark = runpy.run_path(str(BENCHMARKS / "recordings.py"))
    setup = setup_of(*policies_for([], ["nothing", "guard", "recommended"]), window=1_000, counter=WireCounter.best())
    outcome = outcome_of(setup, recording(talk(20)))

    rows = [benchmark["row"]("made", figures, outcome).split(" | ") for figures in outcome.figures]
    nothing, guard, ours = benchmark["short"]({"made": outcome}).splitlines()[2:]
    cheaper = "guard" if outcome.figures[1].spending.cost <= outcome.figures[2].spending.cost else "none"

    assert {len(row) for row in rows} == {len(benchmark["HEADINGS"])}
    assert nothing == "| nothing | (1.000: -, -) |"  # it goes over the window
    assert re.fullmatch(r"\| guard \| [0-9.]+: -, - \|", guard)
    assert re.fullmatch(r"\| recommended \| [0-9.]+: -, - \|", ours)
    told = f"made: of 1 that would do, as cheap as ours or cheaper: {cheaper}; with more found: none. Of all 2, "
    assert benchmark["verdict"]("made", outcome).startswith(told)


def result(values: dict[str, list[float]], *, interleaved: str | None = "1", exact: float = 0) -> dict[str, Any]:
    results = importlib.import_module("results")
    figures = {name: {"unit": "seconds", "is_ours": name != "theirs", "values": each} for name, each in values.items()}
    figures["cost"] = {"unit": "exact", "is_ours": True, "values": [exact]}
    return {**results.about(), "load_after": [0.0], "interleaved": interleaved, "figures": figures}


def compared(*sides: dict[str, Any]) -> int:
    code: int = importlib.import_module("compare").tell(*sides, tolerance=0.05)
    return code


def noisy(seconds: float, seed: int, rounds: int = 12) -> list[float]:
    generator = random.Random(seed)
    return [seconds * generator.uniform(0.97, 1.03) for _ in range(rounds)]


def test_what_became_slower_beyond_noise_is_named_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    before = result({"a call": noisy(1.0, 1), "a chunk": noisy(2.0, 2), "theirs": noisy(1.0, 3)})
    after = result({"a call": noisy(1.0, 4), "a chunk": noisy(2.3, 5), "theirs": noisy(1.5, 6)})

    assert compared(before, after) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("slower")] == ["slower: a chunk"]
    assert compared(after, before) == 0


def test_a_machine_that_changes_its_speed_changes_it_for_both() -> None:
    speeds = [1.0, 3.0] * 6
    before = [seconds * speed for seconds, speed in zip(noisy(1.0, 1), speeds, strict=True)]
    after = [seconds * speed for seconds, speed in zip(noisy(1.2, 2), speeds, strict=True)]

    assert compared(result({"a call": before}), result({"a call": after})) == 1
    apart = result({"a call": before}, interleaved=None), result({"a call": after}, interleaved=None)
    assert compared(*apart) == 0


def test_too_few_rounds_tell_nothing() -> None:
    assert compared(result({"a call": [1.0] * 7}), result({"a call": [9.0] * 7})) == 2
    assert compared(result({"a call": [1.0] * 8}), result({"a call": [9.0] * 8})) == 1


def test_figures_that_are_no_times_are_compared_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    assert compared(result({}, exact=1.0), result({}, exact=1.0)) == 0
    assert "changed" not in capsys.readouterr().out
    assert compared(result({}, exact=1.0), result({}, exact=1.001)) == 0
    assert "changed: cost: 1.0 / 1.001" in capsys.readouterr().out


BENCHMARK = """
import os
import chatstack
from results import Run
run = Run.from_command_line("layers", None, rounds=9)
with open(os.environ["ORDER"], "a") as order:
    order.write(chatstack.NAME)
run.seconds("a call", [chatstack.SECONDS] * run.rounds)
run.write()
"""


@pytest.mark.slow
def test_two_checkouts_are_run_in_turn_by_the_same_benchmarks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts, out, order = tmp_path / "scripts", tmp_path / "out", tmp_path / "order"
    scripts.mkdir()
    (scripts / "layers.py").write_text(BENCHMARK)
    for name in ("compare.py", "results.py"):
        shutil.copy(BENCHMARKS / name, scripts)
    for name, seconds in (("b", 1.0), ("a", 1.5)):
        (tmp_path / name / "chatstack").mkdir(parents=True)
        (tmp_path / name / "chatstack" / "__init__.py").write_text(f"NAME, SECONDS = {name!r}, {seconds}")
    monkeypatch.setenv("ORDER", str(order))

    options = ["--rounds", "8", "--only", "layers", "--out", str(out)]
    command = [sys.executable, str(scripts / "compare.py"), str(tmp_path / "b"), str(tmp_path / "a"), *options]
    ran = subprocess.run(command, capture_output=True, text=True)

    assert ran.returncode == 1, ran.stderr
    assert order.read_text() == "baab" * 4
    after = json.loads((out / "after.json").read_text())
    assert after["checkout"] == str(tmp_path / "a")
    assert after["figures"]["layers: a call"]["values"] == [1.5] * 8
    files = [str(out / "before.json"), str(out / "after.json")]
    again = subprocess.run([sys.executable, str(scripts / "compare.py"), *files], capture_output=True, text=True)
    assert (again.returncode, again.stdout) == (1, ran.stdout)


def test_names_are_put_under_the_last_call_that_held_them() -> None:
    benchmark = runpy.run_path(str(BENCHMARKS / "names.py"))
    calls = [Message.assistant(ToolCall(id, "look", f'{{"at": "{id}"}}')) for id in ("one", "two")]
    full = (Message.user("go"), calls[0], Message.tool("one", "A1111 B2222"), calls[1], Message.tool("two", "B2222"))
    left = full[2].edited(parts=(ToolResult("one", "", "[cleared]" + list_text([Names(("A1111", "B2222", "else"))])),))

    rows = benchmark["rows_for"](full, ChatRequest((full[0], left)))

    assert rows == [Names(("B2222",), 'look {"at": "two"}'), Names(("A1111",), 'look {"at": "one"}'), Names(("else",))]


def soaked(**last: float) -> Any:
    """What a soak has found: flat figures, save those named, which grow to that share more."""
    soak = runpy.run_path(str(BENCHMARKS / "soak.py"))
    outcome = soak["Outcome"](10, 1_000)
    flat = {"resident": 100e6, "objects": 1e5, "descriptors": 70, "tasks": 1, "threads": 9, "held": 20e6}
    for number in range(20):
        values = {name: value * (1 + last.get(name, 0) * number / 19) for name, value in flat.items()}
        outcome.samples.append(soak["Sample"](seconds=number * 30.0, **values))
    return outcome


def test_a_soak_names_what_is_not_flat() -> None:
    assert soaked().problems() == []
    assert soaked(resident=0.05).problems() == []  # half of it in the warm-up
    for name in ("resident", "objects", "descriptors", "threads"):
        assert [told.split()[0].rstrip(":") for told in soaked(**{name: 3.0}).problems()] == [name]
    assert "held 40,000,000" in soaked(held=1.0).problems()[0]


@pytest.mark.slow
def test_a_short_soak_runs_to_its_report() -> None:
    """How flat it is, only minutes can tell."""
    options = ["--minutes", "0.1", "--conversations", "20", "--width", "8"]
    ran = subprocess.run([sys.executable, str(BENCHMARKS / "soak.py"), *options], capture_output=True, text=True)

    assert ran.stderr == ""
    assert re.search(r"the stack: +[\d,]+ requests answered", ran.stdout), ran.stdout
    assert re.search(r"the bare SDK: +[\d,]+ requests answered", ran.stdout), ran.stdout
    assert all(f"\n{name} " in ran.stdout for name in ("resident", "descriptors", "tasks", "threads"))
