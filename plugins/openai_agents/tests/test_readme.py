"""The program in the README runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TEXT = Path(__file__).parents[1].joinpath("README.md").read_text()


def test_the_program_of_the_readme_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
