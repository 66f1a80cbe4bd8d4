"""The lists beside the site: ``docs/llms.txt``, all pages for programs, and ``docs/external-links.txt``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
_ENTRY = re.compile(r"^(?P<indent> +)- (?P<title>[^:]+):(?: (?P<page>\S+\.md))?$")
_OUT = re.compile(r"\]\((https?://[^)\s]+)\)")


def llms() -> str:
    """Return the list of all pages, in the order of the navigation, each with its first sentence."""
    lines = ["# chatstack", "", f"> {_first_sentence(DOCS / 'index.md')}", ""]
    lines += ["Python 3.11 or later. Distribution `chatstack-core`, import `chatstack`. Pages are Markdown.", ""]
    for title, page in navigation():
        if not page:
            lines += ["", f"## {title}", ""]
        elif page != "index.md":
            lines.append(f"- [{title}]({page}): {_first_sentence(DOCS / page)}")
    text = "\n".join(lines) + "\n- [Home](index.md): all pages by what you want to do.\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def navigation() -> Iterator[tuple[str, str]]:
    """Yield the titles of the navigation with their pages, "" for the heading of a group."""
    _, _, nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")
    for line in nav.splitlines():
        found = _ENTRY.match(line)
        assert found is not None, f"mkdocs.yml: {line}"
        yield found["title"], found["page"] or ""


def _first_sentence(page: Path) -> str:
    """Return the first sentence below the title, without its links."""
    text = page.read_text(encoding="utf-8").partition("\n\n")[2]
    paragraph = next(each for each in text.split("\n\n") if each and not each.startswith(("|", "#", "!", "<", "```")))
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=[.?]) ", plain)[0].rstrip(":")


def external_links() -> str:
    """Return the addresses outside of the site that README and pages link to, sorted."""
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    found = {link for page in pages for link in _OUT.findall(page.read_text(encoding="utf-8"))}
    return "".join(f"{link}\n" for link in sorted(found))


def main() -> int:
    """Write both."""
    (DOCS / "llms.txt").write_text(llms(), encoding="utf-8")
    (DOCS / "external-links.txt").write_text(external_links(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
