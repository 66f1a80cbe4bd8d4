"""Runs LangChain's own tests of its agents bare, with the middleware put in, with the model put in; says what differs.

    pip download --no-deps --no-binary :all: langchain==1.5.2 && tar xf langchain-1.5.2.tar.gz
    uv run --with pytest-mock --with syrupy --with toml --with blockbuster --with langchain-openai \\
        python -m tests.own_tests langchain-1.5.2

The source has to be of the version that is installed. Nothing of it is copied here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

SECONDS = 900


class Outcome(NamedTuple):
    """What came of one run."""

    failed: frozenset[str]
    counts: str
    through: str


def run(source: Path, place: str, *which: str) -> Outcome:
    """Run the tests with the stack in that place: "", "middleware" or "model"."""
    here = str(Path(__file__).parent)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "with_layer", "-p", "no:cacheprovider", "--timeout", "30"]
    done = subprocess.run(
        [*command, *(which or ("tests/unit_tests/agents",))],
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
    bare = run(source, "")
    print(f"bare: {bare.counts}")
    for place in ("middleware", "model"):
        found = run(source, place)
        print(f"{place}: {found.counts}\n    {found.through}")
        for name in sorted(found.failed ^ bare.failed):
            print(f"    {'fails' if name in found.failed else 'passes'}, unlike bare: {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
