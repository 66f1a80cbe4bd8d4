"""The requests that an ``OpenAIChatClient`` makes of a server, without one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from chatstack.providers.openai import OpenAIChatClient
from tests.servers import http_library


def bodies_of(
    base_url: str, ask: Callable[[OpenAIChatClient], Awaitable[object]], *answers: dict[str, object]
) -> list[Any]:
    """The bodies of the requests to that address. The answers have these messages, the last one again and again."""
    http, bodies = http_library(of_openai=True), list[Any]()
    messages = answers or ({"content": "fine"},)

    def answer(request: Any) -> Any:
        bodies.append(json.loads(request.content))
        choice = {"index": 0, "message": messages[min(len(bodies), len(messages)) - 1], "finish_reason": "stop"}
        return http.Response(200, json={"id": "i", "object": "chat.completion", "choices": [choice]})

    async def asked() -> None:
        async with http.AsyncClient(transport=http.MockTransport(answer)) as http_client:
            await ask(OpenAIChatClient("m", api_key="k", base_url=base_url, http_client=http_client, max_retries=0))

    asyncio.run(asked())
    return bodies
