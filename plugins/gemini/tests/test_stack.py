"""Gemini at the bottom of a stack."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from standin import check_request, chunk

from chatstack import ChatStack, FunctionInvoker
from chatstack.testing.provider_server import Delivery, ReceivedRequest, ScriptedServer, ServerReply
from chatstack_gemini import GeminiChatClient


def weather(city: str) -> str:
    """Tell the weather."""
    return f"rain in {city}"


@dataclass
class Weather:
    city: str
    degrees: float


def test_a_tool_loop_streams_and_sends_signatures_back() -> None:
    call = {"functionCall": {"name": "weather", "args": {"city": "Oslo"}}, "thoughtSignature": "c2ln"}
    replies = [
        ServerReply.events(chunk([{"text": "hm", "thought": True}]), chunk([call], finishReason="STOP")),
        ServerReply.events(chunk([{"text": "It "}]), chunk([{"text": "rains."}], finishReason="STOP")),
    ]

    async def work() -> tuple[str, list[dict[str, Any]]]:
        def script(request: ReceivedRequest) -> Delivery:
            return Delivery(replies[len(server.requests) - 1])

        async with ScriptedServer(script) as server:
            provider = GeminiChatClient("gemini-3.8-flash", api_key="k", base_url=server.base_url)
            client = ChatStack(provider).use(FunctionInvoker, tools=[weather]).build()
            async with client:
                stream = client.get_streaming_response("Weather in Oslo?")
                said = "".join([update.text async for update in stream])
            return said, [check_request(each) for each in server.requests]

    said, (_, second) = asyncio.run(work())
    assert said == "It rains."
    assert second["contents"][1:] == [
        {"role": "model", "parts": [{"text": "hm", "thought": True}, call]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "weather", "response": {"output": "rain in Oslo"}}}],
        },
    ]


def test_an_answer_has_the_type_that_was_asked_for() -> None:
    reply = ServerReply.json(chunk([{"text": '{"city": "Oslo", "degrees": 3.5}'}], finishReason="STOP"))

    async def work() -> tuple[object, dict[str, Any]]:
        async with ScriptedServer(lambda request: Delivery(reply)) as server:
            provider = GeminiChatClient("gemini-3.8-flash", api_key="k", base_url=server.base_url)
            async with ChatStack(provider).build() as client:
                answer = await client.get_response("Weather in Oslo?", output_type=Weather)
            return answer.parsed, check_request(server.requests[0])

    parsed, body = asyncio.run(work())
    assert parsed == Weather("Oslo", 3.5)
    assert body["generationConfig"]["responseMimeType"] == "application/json"
    assert body["generationConfig"]["responseJsonSchema"]["required"] == ["city", "degrees"]
