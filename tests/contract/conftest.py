"""What the contract has that takes long, once for each of our layers."""

from __future__ import annotations

from itertools import islice

import pytest

from chatstack.testing import LayerContract

SLOW = "test_a_thousand_conversations_at_once_do_not_mix"


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.name == SLOW:
        item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def fewer_cases(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a layer every third case in a plain run: each history with one or two of the answers, all four in turn."""
    suite = request.instance
    if isinstance(suite, LayerContract) and not request.config.getoption("full"):
        monkeypatch.setattr(suite, "cases", lambda: islice(type(suite).cases(suite), 0, None, 3))
