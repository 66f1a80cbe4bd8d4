"""What the contract has that takes long, once for each of our layers."""

from __future__ import annotations

import pytest

SLOW = "test_a_thousand_conversations_at_once_do_not_mix"


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.name == SLOW:
        item.add_marker(pytest.mark.slow)
