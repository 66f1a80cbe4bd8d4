"""The code of the pages in docs/howto runs as it is printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parent.parent / "docs" / "howto"
MINE = ("sync.md", "wrap.md")


@pytest.mark.parametrize("page", MINE)
def test_the_code_of_a_page_runs(page: str) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    names: dict[str, object] = {"__name__": page}
    exec("\n".join(blocks), names)
    close = getattr(names.get("CHAT"), "close", None)
    if close is not None:
        close()
