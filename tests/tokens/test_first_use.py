"""The first look-up imports tables, a second of CPU: never on a running event loop, whoever looks something up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chatstack.tokens.windows import window_of

EXPECTED = {
    "window": [None, window_of("gpt-4o"), window_of("gpt-4o")],
    "guard": "fine",
    "summary": "fine",
    "budget": "fine",
    "loop": "answered",
    "tokenizer": ["fine", "fine"],
}


def ran(use: str) -> dict[str, object]:
    command = [sys.executable, "-m", "tests.tokens.first_use", use]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert done.stderr == ""
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    "use", [each if each == "guard" else pytest.param(each, marks=pytest.mark.slow) for each in EXPECTED]
)
def test_tables_are_loaded_by_a_thread_of_their_own(use: str) -> None:
    assert ran(use) == {"said": EXPECTED[use], "on_the_loop": False, "by": 1}


@pytest.mark.slow
def test_what_is_synchronous_answers_on_a_loop_too() -> None:
    assert ran("by_hand")["said"] == [True, True]
