"""Runs Pydantic AI's own tests bare and with a stack in front of the models that they use; says what differs.

    git clone --branch v2.33.0 https://github.com/pydantic/pydantic-ai
    uv venv theirs
    uv pip install --python theirs 'pydantic-ai-slim[openai,anthropic,logfire,evals]==2.33.0' ../.. . httpx \\
        asgi-lifespan devtools dirty-equals inline-snapshot pytest-examples pytest-mock pytest-recording \\
        pytest-timeout blockbuster 'fastmcp<5' mcp-types genai-prices
    theirs/bin/python -m tests.own_tests pydantic-ai

The source has to be of the version that is installed. Nothing of it is copied here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SECONDS = 1_500
FILES = (
    *("test_agent", "test_streaming", "test_tools", "test_history_processor", "test_usage_limits", "test_toolsets"),
    *("test_deps", "test_direct", "test_logfire", "models/test_fallback", "models/test_model_function"),
)


class Outcome(NamedTuple):
    """What came of one run."""

    failed: frozenset[str]
    counts: str
    through: str


def run(source: Path, place: str) -> Outcome:
    """Run the tests with the stack in that place: "" or "wrapper"."""
    here = str(Path(__file__).parent)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "with_layer", "-p", "no:cacheprovider", "-o", "addopts="]
    done = subprocess.run(
        [*command, "--timeout", "60", *(f"tests/{name}.py" for name in FILES)],
        cwd=source,
        env={**os.environ, "CHATSTACK_IN_PLACE": place, "PYTHONPATH": here},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    lines = done.stdout.splitlines()
    counts = next((line.strip("= ") for line in reversed(lines) if re.search(r"\d (passed|failed)", line)), "")
    if not counts:
        raise RuntimeError(done.stdout[-2_000:] + done.stderr[-2_000:])
    return Outcome(
        frozenset(line.split()[1] for line in lines if line.startswith("FAILED ")),
        counts,
        next((line.partition(": ")[2] for line in lines if line.startswith("chatstack: ")), ""),
    )


def main(source: Path) -> None:
    bare, found = run(source, ""), run(source, "wrapper")
    print(f"bare: {bare.counts}")
    print(f"wrapper: {found.counts}\n    {found.through}")
    for name in sorted(found.failed ^ bare.failed):
        print(f"    {'fails' if name in found.failed else 'passes'}, unlike bare: {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
