"""Links: those within README and the site lead somewhere, anchors too; those that lead out are listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import chatstack
from scripts.site_lists import llms
from tests.docs.pages import DOCS, README, ROOT, anchors, links, pages

REMEDY = "run 'uv run poe reference'"
OUTSIDE = ("https://", "http://")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    for target in links(page):
        if target.startswith(OUTSIDE):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page}: {target}"
        if page != README:
            assert found.is_relative_to(DOCS), f"{page}: {target} is not part of the site"
        if anchor:
            assert anchor in anchors(found), f"{page}: {target}: no such heading"


def test_links_that_lead_out_are_listed() -> None:
    out = {target for page in pages() for target in links(page) if target.startswith(OUTSIDE)}
    listed = (DOCS / "external-links.txt").read_text(encoding="utf-8").split()
    assert sorted(out) == listed, REMEDY


def test_every_page_is_in_the_sites_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    lacking = [page for page in DOCS.rglob("*.md") if f" {page.relative_to(DOCS).as_posix()}\n" not in navigation]
    assert lacking == []


def test_every_page_is_told_to_readers_that_are_programs() -> None:
    told = (DOCS / "llms.txt").read_text(encoding="utf-8")
    lacking = [page for page in DOCS.rglob("*.md") if f"({page.relative_to(DOCS).as_posix()})" not in told]
    assert lacking == [], REMEDY
    assert told == llms(), REMEDY


def test_names_in_the_architecture_are_in_the_code() -> None:
    files = [path for path in Path(chatstack.__file__).parent.rglob("*.*") if path.suffix in (".py", ".js")]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text(encoding="utf-8"))}
    names = re.findall(r"`([A-Za-z_][\w.]*)(?:\(.*?\))?`", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert set(names) - {path.name for path in files} - {name for name in names if words >= {*name.split(".")}} == set()
