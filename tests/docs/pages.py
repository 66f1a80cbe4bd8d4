"""The pages of README and ``docs/``: their blocks of code, headings and links.

A Python block stands alone, and runs. ``<!-- goes on -->`` before a block makes it the rest of the one above it.
``<!-- foreign: langchain -->`` marks code of other libraries: it is compiled, and what it imports is looked for where
that package is installed. A block of ``output`` is what the Python block above it prints.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<language>[\w-]*)[^\n]*$")
_MARK = re.compile(r"^<!-- (?P<word>goes on|foreign: (?P<packages>[\w.,# -]+)) -->$")
_LINK = re.compile(r"!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block: ``mark`` is the comment in the line above it, ``output`` the block of output below it."""

    page: Path
    line: int
    language: str
    code: str
    mark: str = ""
    output: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT).as_posix()}:{self.line}"

    @property
    def foreign(self) -> tuple[str, ...]:
        """The packages that a block of somebody else's code needs."""
        found = _MARK.match(self.mark)
        packages = found["packages"] if found else None
        return tuple(each.strip() for each in packages.split(",")) if packages else ()


def pages() -> list[Path]:
    """README and all pages of the site."""
    return [README, *sorted(DOCS.rglob("*.md"))]


def written_pages() -> list[Path]:
    """The pages that no script has made."""
    return [page for page in pages() if (DOCS / "reference") not in page.parents]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page; those of output are at the blocks that they belong to."""
    found: list[Block] = []
    for block in _fences(page):
        if block.language == "output":
            found[-1] = found[-1]._replace(output=block.code)
        else:
            found.append(block)
    return found


def _fences(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    start, fence, above = 0, None, ""
    for number, line in enumerate(lines):
        if fence is None:
            fence = _FENCE.match(line)
            start = number + 1
            if fence is None and line.strip():
                above = line.strip()
        elif line.strip() == fence["ticks"]:
            inside = [each.removeprefix(fence["indent"]) for each in lines[start:number]]
            code = "".join(f"{each}\n" for each in inside)
            yield Block(page, start + 1, fence["language"], code, above if _MARK.match(above) else "")
            fence, above = None, ""
    assert fence is None, f"{page}: the block that begins in line {start} has no end"


def programs(page: Path, language: str = "python") -> list[list[Block]]:
    """Our own blocks in a language, each with those that go on with it."""
    found: list[list[Block]] = []
    for block in blocks(page):
        if block.language == language and not block.foreign:
            if block.mark:
                found[-1].append(block)
            else:
                found.append([block])
    return found


def prose(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    return re.sub(r"^( *)(```+).*?^\1\2$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    """The targets of all links and pictures of a page."""
    text = re.sub(r"`[^`\n]+`", lambda code: re.sub(r"[\[\]()]", "_", code[0]), prose(page))
    return [found["target"] for found in _LINK.finditer(text)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as far as GitHub and the site agree on them."""
    headings = re.findall(r"^#{1,6} +(.+?) *$", prose(page), re.MULTILINE)
    return {each for heading in headings for each in {_on_github(heading)} & {_on_the_site(heading)}}


def _plain(heading: str) -> str:
    return re.sub(r"[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()


def _on_github(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", _plain(heading)).replace(" ", "-")


def _on_the_site(heading: str) -> str:
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", _plain(heading)).strip())
