"""wrap: a request that a layer has edited is retried as one that none has."""

from __future__ import annotations

import asyncio

import anthropic
import openai
import pytest

from chatstack import ChatStack, Truncate, wrap
from chatstack.testing.provider_server import Delivery, ServerReply
from tests.providers.test_wrapping import chunks, completion, history, message, serving

EDITED = ChatStack().use(Truncate, max_tokens=400)
CUT = Delivery(None, then="cut")


@pytest.mark.parametrize("streams", [False, True])
def test_a_broken_connection_is_retried_by_the_sdk(streams: bool) -> None:
    async def run() -> None:
        async with serving(CUT, chunks({"content": "fine"}) if streams else completion("fine")) as served:
            client = wrap(served.openai.with_options(max_retries=1), EDITED).chat.completions
            raw = await client.with_raw_response.create(model="m", messages=history(8), stream=streams)
            assert raw.retries_taken == 1
            assert served.body(0) == served.body(1)
            assert len(served.body(0)["messages"]) < 17
        async with serving(CUT, ServerReply.json(message({"type": "text", "text": "fine"}))) as served:
            other = wrap(served.anthropic.with_options(max_retries=1), EDITED).messages
            raw = await other.with_raw_response.create(model="claude", max_tokens=9, messages=history(8))
            assert raw.retries_taken == 1

    asyncio.run(run())


def test_a_broken_connection_is_an_error_of_the_sdk_when_retries_are_over() -> None:
    async def run() -> None:
        async with serving(CUT, CUT) as served:
            with pytest.raises(openai.APIConnectionError):
                await wrap(served.openai, EDITED).chat.completions.create(model="m", messages=history(8))
            with pytest.raises(anthropic.APIConnectionError):
                await wrap(served.anthropic, EDITED).messages.create(model="claude", max_tokens=9, messages=history(8))

    asyncio.run(run())
