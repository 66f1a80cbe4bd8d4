"""wrap: summaries that are written in the background of the SDK's calls."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest

from chatstack import ChatStack, Summarizer, wrap
from chatstack.testing.provider_server import Delivery, ReceivedRequest, ScriptedServer
from tests.providers.parley_over_http import http
from tests.providers.test_wrapping import chunks

WORDS = "word " * 80


@pytest.mark.slow
@pytest.mark.parametrize("breaks", [False, True])
def test_a_summary_in_the_background_leaves_no_connection_open(breaks: bool) -> None:
    """Written in the form of the call, which streams; that call is over before. The next one needs the connection."""
    summaries = 0

    def script(request: ReceivedRequest) -> Delivery:
        nonlocal summaries
        said = json.loads(request.body)["messages"][-1]["content"]
        if "question" in str(said)[:12]:
            return Delivery(chunks({"content": "fine"}))
        summaries += 1
        return Delivery(chunks({"content": "In short."}), 2 if breaks else None, "cut" if breaks else "end")

    async def talk() -> None:
        limits = http.Limits(max_connections=1)
        async with ScriptedServer(script) as server:
            transport = http.AsyncClient(limits=limits, timeout=http.Timeout(60, pool=10))
            sdk = openai.AsyncOpenAI(
                api_key="k", base_url=f"{server.base_url}/v1", max_retries=0, http_client=transport
            )
            stack = ChatStack().use(Summarizer, max_tokens=800, keep_recent_turns=1, cache_aligned=True, prepare_at=0.6)
            client: Any = wrap(sdk, stack)
            streams: list[Any] = []  # held on to: what is dropped would be closed by the collection
            for number in range(4):
                history = [{"role": "user", "content": f"question {number}"}]
                for _ in range(8):
                    stream = await client.chat.completions.create(model="m", messages=history, stream=True)
                    streams.append(stream)
                    async for _ in stream:
                        pass
                    history += [
                        {"role": "assistant", "content": "fine"},
                        {"role": "user", "content": f"question {WORDS}"},
                    ]
                    await asyncio.sleep(0.02)
            await client.close()

    asyncio.run(talk())
    assert summaries
