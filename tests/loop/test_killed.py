"""A process that is killed in the middle of a run: the next one goes on where it was."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from chatstack.loop.iteration import INTERRUPTED
from tests.loop.dying_run import FATAL, LAST, POINTS

pytestmark = pytest.mark.slow

CALLS = [f"{iteration}{which}" for iteration in range(LAST + 1) for which in "ab"]
ROOT = Path(__file__).resolve().parents[2]


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.loop.dying_run", str(folder), *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> dict[str, Any]:
    printed, complaints = process.communicate(timeout=300)
    assert (process.returncode, complaints) == (0, "")
    told: dict[str, Any] = json.loads(printed)
    return told


def lines(folder: Path, name: str) -> list[str]:
    return (folder / name).read_text().splitlines()


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("point", POINTS)
def test_killed_in_iteration_7_it_goes_on_in_7(tmp_path: Path, point: str, idempotent: bool) -> None:
    mark = "idempotent" if idempotent else "once"
    killed = started(tmp_path, point, mark)
    complaints = killed.communicate(timeout=300)[1]
    assert (killed.returncode, complaints) == (-signal.SIGKILL, "")
    ran_before, asked_before = lines(tmp_path, "ran"), lines(tmp_path, "asked")
    assert asked_before[-1].split()[0] == str(FATAL if point not in ("prompt", "between iterations") else FATAL - 1)
    result = ended(started(tmp_path, point, mark))

    assert (result["reason"], result["error"]) == ("completed", "")
    assert result["iterations"] == list(range(LAST + 1))
    assert result["tokens"] == 200 * (LAST + 1)
    assert result["state"]["prompts"] == LAST + 1
    is_interrupted = point == "in a tool" and not idempotent
    done = [each for each in CALLS if not (is_interrupted and each == f"{FATAL}b")]
    assert result["files"] == [f"{each}.md" for each in done]
    assert result["state"]["notes"] == done
    twice = [f"{FATAL}b"] if point == "in a tool" and idempotent else []
    assert sorted(lines(tmp_path, "ran")) == sorted([*CALLS, *twice])
    assert set(ran_before).isdisjoint(set(lines(tmp_path, "ran")[len(ran_before) :]) - set(twice))
    asked_again = {"first model call": [f"{FATAL} 0"], "second model call": [f"{FATAL} 2"]}.get(point, [])
    every = [f"{iteration} {results}" for iteration in range(LAST + 1) for results in (0, 2)]
    assert sorted(lines(tmp_path, "asked")) == sorted([*every, *asked_again])
    second = INTERRUPTED if is_interrupted else f"noted {FATAL}b"
    assert result["outputs"][FATAL] == [f"noted {FATAL}a", second]
    assert result["texts"][FATAL] == f"noted {FATAL}a; {second}"

    again = ended(started(tmp_path, point, mark))
    assert again == result
    assert len(lines(tmp_path, "asked")) == len(every) + len(asked_again)


def test_of_two_processes_on_one_run_one_goes_on_and_the_other_is_told(tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    both = [started(tmp_path, "nowhere", "once", "0.02") for _ in range(2)]
    while len(list(tmp_path.glob("ready-*"))) < len(both):
        assert [each.poll() for each in both] == [None, None]
        time.sleep(0.01)
    (tmp_path / "wait").unlink()
    results = sorted((ended(each) for each in both), key=lambda each: str(each["reason"]))
    assert [each["reason"] for each in results] == ["completed", "error"]
    assert results[1]["error"] == (
        f"StoreError: {tmp_path / 'runs.db'}: run 'r1' goes on somewhere else at the same time"
    )
    assert sorted(lines(tmp_path, "ran")) == CALLS
    assert results[0]["files"] == [f"{each}.md" for each in CALLS]
