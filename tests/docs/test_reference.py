"""The reference is what the script makes of the code, and has every public name, code, span, attribute and metric."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

import chatstack
from chatstack import semconv
from chatstack.testing import __all__ as TESTING
from scripts import meanings, reference
from scripts.reference_tables import attributes, metrics
from tests.docs.pages import DOCS

FOLDER = DOCS / "reference"
PACKAGE = Path(chatstack.__file__).parent
REMEDY = "run 'uv run poe reference'"


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return reference.pages()


def test_the_pages_are_what_the_script_makes(made: dict[str, str]) -> None:
    there = {page.name: page.read_text(encoding="utf-8") for page in FOLDER.glob("*.md")}
    assert sorted(made.keys() ^ there.keys()) == [], REMEDY
    assert [name for name, text in made.items() if there[name] != text] == [], REMEDY


def test_every_public_name_has_a_heading(made: dict[str, str]) -> None:
    text = "\n".join(made.values())
    headings = set(re.findall(r"^## (\w+)", text, re.MULTILINE))
    assert sorted({*chatstack._HOME_OF, *TESTING} - headings) == []


def test_every_public_name_says_what_it_is(made: dict[str, str]) -> None:
    for name, text in made.items():
        for heading, rest in re.findall(r"^## ([A-Za-z]\w+)\n\n`from [^\n]*\n\n([^\n]*)", text, re.MULTILINE):
            assert re.search(r"\w", rest), f"{name}: {heading} has no docstring"


def test_every_layer_has_a_table_of_all_its_options(made: dict[str, str]) -> None:
    from chatstack.config.options import own_options
    from chatstack.config.recipes import LAYERS

    text = made["layers.md"] + made["strategies.md"]
    for name in LAYERS:
        about = text.partition(f"## {name}\n")[2].partition("\n## ")[0]
        told = set(re.findall(r"^\| `(\w+)` \|", about, re.MULTILINE))
        assert {each.name for each in own_options(getattr(chatstack, name))} <= told, name


def test_every_code_attribute_and_metric_has_a_meaning_and_none_is_left_over() -> None:
    where = "scripts/meanings.py"
    assert meanings.WARNINGS.keys() ^ set(get_args(semconv.WarningCode)) == set(), where
    assert meanings.ATTRIBUTES.keys() ^ attributes() == set(), where
    sources = [path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")]
    spans = {name for text in sources for name in re.findall(r'span_name(?:: str)? ?= ?"([a-z_]+)"', text)}
    assert spans - meanings.SPANS.keys() == set(), where
    assert meanings.METRICS.keys() ^ {name for name, _ in metrics()} == set(), where


def test_what_changes_in_the_code_shows_on_its_page(monkeypatch: pytest.MonkeyPatch, made: dict[str, str]) -> None:
    monkeypatch.setattr(chatstack.Budget, "__doc__", "Stops whatever is too dear.")
    changed = reference.pages()
    assert [name for name in made if made[name] != changed[name]] == ["layers.md", "config.md"]
