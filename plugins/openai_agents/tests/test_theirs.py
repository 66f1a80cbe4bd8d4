"""The Agents SDK's own tests pass with layers put in: run from its source distribution, skipped where there is none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

SOURCE = os.environ.get("CHATSTACK_OPENAI_AGENTS_SOURCE", "")
"""The unpacked source distribution of the version that is installed."""
FILES = (
    *("test_agent_runner", "test_agent_runner_streamed", "test_guardrails", "test_handoff_history_duplication"),
    "test_max_turns",
)
DIFFERENT = ("test_stop_on_first_tool_final_persists_committed_tool_items_on_tripwire",)
"""Its second run gives the model a history turned around, with a result before its call, which layers repair."""


@cache
def run(place: str) -> tuple[set[str], int]:
    """Return the tests that fail, and how many of those that pass have sent a request through a stack."""
    options = ["-q", "--tb=no", "-p", "with_layer", "-p", "no:cacheprovider", "-p", "no:warnings"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/{name}.py" for name in FILES)],
        cwd=SOURCE,
        env={**os.environ, "CHATSTACK_IN_PLACE": place, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = {line.split("::", 1)[1].split(" - ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    through = re.search(r"in (\d+) tests that passed", done.stdout)
    assert through, done.stdout[-2_000:] + done.stderr[-2_000:]
    return failed, int(through[1])


@pytest.mark.timeout(1_800)
def test_their_tests_give_the_same_results_with_layers_put_in() -> None:
    if not SOURCE or find_spec("pytest_asyncio") is None:
        pytest.skip("set CHATSTACK_OPENAI_AGENTS_SOURCE, and run with what the README names")
    bare, _ = run("")
    failed, through = run("model")
    assert {name for name in failed - bare if not name.startswith(DIFFERENT)} == set()
    assert through >= 400
