"""``chatstack replay``: how stacks count and remember, and their dearest conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chatstack.cli import main
from tests.workbench.replay.conversations import assistant, conversation, result, talk, user, write_lines


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    lines = [talk(turns, 40, about=f"Be brief, {turns}.") | {"id": f"talk-{turns}"} for turns in (3, 9, 6)]
    return write_lines(tmp_path / "talks.jsonl", *lines)


def report_of(talks: Path, *options: str) -> dict[str, Any]:
    target = talks.with_suffix(".json")
    arguments = ["--window", "1000", "--policy", "nothing", "--policy", "sliding-window", "--json", str(target)]
    assert main(["replay", str(talks), *arguments, *options]) == 0
    report: dict[str, Any] = json.loads(target.read_text())
    return report


def test_the_dearest_conversation_of_each_policy_is_told(talks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing, sliding = report_of(talks)["policies"]

    assert nothing["dearest"] == {"cost_relative": 1.0, "number": 1, "id": "talk-3"}
    dearest = sliding["dearest"]
    assert (dearest["number"], dearest["id"]) == (2, "talk-9")
    err = capsys.readouterr().err
    assert "Highest cost of one conversation (sending everything = 1):\n" in err
    assert f"sliding-window: {dearest['cost_relative']:.2f}, in conversation 2 (talk-9)" in err
    assert "nothing: " not in err.partition("Highest cost")[2]


def test_memory_is_shared_only_if_it_is_asked_for_and_that_is_said(talks: Path) -> None:
    alone, shared = report_of(talks), report_of(talks, "--shared-memory")

    assert (alone["shared_memory"], shared["shared_memory"]) == (False, True)
    assert any("depend on the order of the input" in each for each in shared["assumptions"])
    assert not any("depend on the order of the input" in each for each in alone["assumptions"])


def test_a_shared_memory_in_several_processes_is_refused(talks: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(talks), "--window", "1000", "--shared-memory", "--jobs", "2"]) == 2
    assert "--shared-memory is in one process: drop --jobs 2" in capsys.readouterr().err


def test_layers_that_count_by_themselves_are_said_and_what_they_let_through_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hexadecimal digits: hardly two of them are a token, where the default counter takes four."""
    digits = "".join(f"{number * 2_654_435_761 % 2**32:08x}" for number in range(300))
    long = (user("go"), assistant(None, "a"), result("a", digits), assistant("so"), user("on"), assistant("so"))
    path = write_lines(tmp_path / "talks.jsonl", conversation(*long, model="llama-4"))
    arguments = ["replay", str(path), "--window", "1000", "--policy", "guard", "--json", str(tmp_path / "out.json")]

    assert main([*arguments]) == 0
    assert "over the window, by" not in capsys.readouterr().err
    assert main([*arguments, "--counter", "own"]) == 0

    err = capsys.readouterr().err
    report = json.loads((tmp_path / "out.json").read_text())
    (guard,) = report["policies"]
    most = guard["peak_tokens"] / 10 - 100
    assert report["own_counter"] is True
    assert guard["over_limit"] == 1
    assert f"guard: 1 call over the window, by {int(most * 10) / 10} % at most" in err
    assert any("count by themselves" in each for each in report["assumptions"])
