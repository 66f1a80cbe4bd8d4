"""The conversation that the README's figures are about."""

from __future__ import annotations

import asyncio

from tests.long_conversation import LIMIT, conversation


def test_the_layers_send_less_break_few_prefixes_and_lose_no_task() -> None:
    async def both() -> None:
        bare, layered = await conversation("bare"), await conversation("layered", layers=True)
        assert bare.largest > LIMIT >= layered.largest
        assert layered.cost < bare.cost / 2
        assert (layered.invalid, layered.without_task) == (0, 0)
        assert 1 <= layered.broken <= 5

    asyncio.run(both())
