"""The README's code runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_the_example_runs_as_printed(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.split() == ["fine", "fine"]
