"""What comes along with the package has a licence that a product may have, and names it."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.licences import ALLOWED, Found, is_allowed, licences

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = sorted(path.parent for path in ROOT.glob("plugins/*/pyproject.toml"))


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ("MIT", True),
        ("Apache-2.0 OR GPL-3.0-only", True),
        ("Apache-2.0 AND GPL-3.0-only", False),
        ("(MIT OR GPL-2.0-only) AND BSD-3-Clause", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only", False),
        ("AGPL-3.0-only", False),
        ("", False),
    ],
)
def test_an_expression_is_allowed_if_one_may_go_by_allowed_ones_alone(expression: str, verdict: bool) -> None:
    assert is_allowed(expression, ALLOWED) is verdict


def test_an_exception_is_for_one_distribution() -> None:
    assert Found("psycopg", "3", "LGPL-3.0-only").is_allowed
    assert not Found("another", "3", "LGPL-3.0-only").is_allowed


def test_the_core_alone_brings_three_distributions() -> None:
    core = {each.name for each in licences("chatstack-core")}
    assert core == {"chatstack-core", "msgspec", "opentelemetry-api", "typing-extensions"}


@pytest.mark.slow
def test_the_core_and_its_extras_come_with_allowed_licences() -> None:
    found = licences("chatstack-core[all]")
    assert {"openai", "anthropic", "opentelemetry-sdk", "pyyaml", "rich"} <= {each.name for each in found}
    assert [each for each in found if not each.is_allowed] == []


@pytest.mark.slow
@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda path: path.name)
def test_a_plugin_comes_with_allowed_licences(plugin: Path) -> None:
    """In the environment of that plugin, if there is one."""
    python = plugin / ".venv" / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not python.exists():
        pytest.skip("the plugin's environment is not there: uv sync in its folder")
    name = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]["name"]
    ran = subprocess.run([python, ROOT / "scripts" / "licences.py", name], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {name, "chatstack-core"} <= {line.partition(" ")[0] for line in ran.stdout.splitlines()}
