"""A change of a public name, or of its types, is noticed: it has to be written down, and told in the changelog."""

from __future__ import annotations

import difflib
import sys

import pytest

from tests.public_api import FILE, lines

CHANGED = "The public API has changed. If that is meant: uv run python -m tests.public_api, and a line in CHANGELOG.md."


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="other versions of Python write some types otherwise")
def test_the_public_api_is_what_is_written_down() -> None:
    before, now = FILE.read_text().splitlines(), lines()
    told = [line for line in difflib.unified_diff(before, now, lineterm="", n=0) if line[:2] not in ("--", "++", "@@")]
    assert before == now, "\n".join([CHANGED, *told])


def test_every_name_and_its_types_are_there() -> None:
    found = "\n".join(lines())
    assert "chatstack.ContextWindowGuard: class(ContextLayer) (inner: 'ChatClient', *, services:" in found
    assert "max_context_tokens: \"PositiveInt | Literal['auto']\"" in found
    assert "chatstack.ChatStack.use: (self, source: " in found
    assert "chatstack.testing.ScriptedClient: class(ChatFronts) (answers:" in found
