"""What type checkers say of a program that uses the package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKERS = ("mypy", "pyright")
_ROOT = Path(__file__).parents[1]


def lines_with_errors(checker: str, source: str, directory: Path, *, mode: str = "strict") -> set[int]:
    """Return the numbers of the lines that a checker refuses. ``mode`` is that of pyright; mypy is strict."""
    pytest.importorskip(checker)
    module = directory / "program.py"
    module.write_text(source)
    if checker == "mypy":
        command = ["mypy", "--strict", "--hide-error-context", str(module)]
    else:
        (directory / "pyrightconfig.json").write_text(
            f'{{"include": ["."], "typeCheckingMode": "{mode}", "pythonVersion": "3.11"}}'
        )
        command = ["pyright", "--pythonpath", sys.executable, "-p", str(directory)]
    ran = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=_ROOT, timeout=300)
    assert re.search(r"no issues found|\d+ errors?\b", ran.stdout), ran.stdout + ran.stderr
    return {int(line) for line in re.findall(r"program\.py:(\d+):(?:\d+)?[ :-]+error", ran.stdout)}
