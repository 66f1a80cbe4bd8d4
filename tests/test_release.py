"""What a release relies on: versions that agree, and files that come along."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
PLUGINS = sorted(ROOT.glob("plugins/*/pyproject.toml"))


def project(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(path.read_text())["project"]
    return found


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: path.parent.name)
def test_a_plugins_range_of_the_core_has_an_end_and_includes_this_version(path: Path) -> None:
    version = project(ROOT / "pyproject.toml")["version"]
    needs = [Requirement(each) for each in project(path)["dependencies"]]
    (core,) = (each for each in needs if each.name == "chatstack-core")
    assert core.specifier.contains(version)
    assert {each.operator for each in core.specifier} == {">=", "<"}


def test_the_source_distribution_has_the_files_that_the_pages_name() -> None:
    included = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs", "tests"):
        assert f"/{name}" in included["include"]
        assert (ROOT / name).exists()


def test_the_changelog_begins_with_what_is_not_released_or_with_this_version() -> None:
    version = project(ROOT / "pyproject.toml")["version"]
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
    assert first == "## [Unreleased]" or first.startswith(f"## [{version}] - ")
