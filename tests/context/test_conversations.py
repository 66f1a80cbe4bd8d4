"""Conversations: how long a layer waits after it has looked in vain."""

from __future__ import annotations

import pytest

from chatstack.context.histories.conversations import Wait


@pytest.mark.parametrize(
    ("latest_user", "sizes", "goes_on"),
    [
        (3, (320, 64), True),
        (3, (330, 66), True),
        (3, (331, 64), False),
        (3, (320, 67), False),
        (3, (319, 64), False),
        (5, (320, 64), False),
    ],
    ids=["the same", "hardly grown", "grown", "another size has grown", "shrunk", "the user has spoken"],
)
def test_a_layer_waits_until_the_user_speaks_or_the_context_is_another(
    latest_user: int, sizes: tuple[int, ...], goes_on: bool
) -> None:
    assert Wait(3, (320, 64)).goes_on(latest_user, sizes) is goes_on
