"""Pictures that tools return, to OpenAI's own chat completions: only text may stand in a result there."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from chatstack import ChatRequest, ChatStack, File, FunctionInvoker, Image, Message, Text, ToolCall, ToolResult, tool
from chatstack.providers.openai import OpenAIChatClient
from chatstack.providers.openai.chat_results import takes_text_alone, with_text_results
from tests.servers import http_library

PNG = Image.from_bytes(b"png", "image/png")
PDF = File(data="cGRm", media_type="application/pdf", name="report.pdf")
NOTE = Text("[Pictures and files of this result follow in the next user message.]")
CALLS = Message.assistant(ToolCall("c1", "screenshot", "{}"), ToolCall("c2", "report", "{}"))


def result(call_id: str, name: str, *output: Text | Image | File) -> Message:
    return Message("tool", (ToolResult(call_id, name, output),))


def test_pictures_follow_the_last_result_of_their_round() -> None:
    history = [
        Message.user("look"),
        CALLS,
        result("c1", "screenshot", Text("done"), PNG),
        result("c2", "report", PDF),
        Message.user("and now?"),
    ]
    assert with_text_results(history) == (
        history[0],
        CALLS,
        result("c1", "screenshot", Text("done"), NOTE),
        result("c2", "report", NOTE),
        Message.user(Text("Result of screenshot (c1):"), PNG, Text("Result of report (c2):"), PDF),
        history[4],
    )


def test_what_comes_later_leaves_the_beginning_as_it_was() -> None:
    history = [Message.user("look"), CALLS, result("c1", "screenshot", PNG), Message.tool("c2", "fine")]
    sent = with_text_results(history)
    later = with_text_results([*history, Message.assistant("seen"), Message.user("thanks")])
    assert later[: len(sent)] == sent


def test_a_history_without_pictures_in_results_stays_the_same_objects() -> None:
    history = [Message.user(PNG), CALLS, result("c1", "screenshot", Text("done")), Message.tool("c2", "fine")]
    assert all(a is b for a, b in zip(with_text_results(history), history, strict=True))


@pytest.mark.parametrize(
    ("host", "is_strict"),
    [
        ("api.openai.com", True),
        ("eu.api.openai.com", True),
        ("mine.openai.azure.com", True),
        ("127.0.0.1", False),
        ("notopenai.azure.com", False),
    ],
)
def test_servers_of_openai_take_text_alone(host: str, is_strict: bool) -> None:
    assert takes_text_alone(host) is is_strict


@tool
def screenshot() -> Image:
    """Take a picture of the screen."""
    return PNG


@pytest.mark.parametrize("base_url", ["https://api.openai.com/v1", "http://127.0.0.1:1/v1"])
def test_a_tool_that_returns_a_picture_is_sent_as_the_server_takes_it(base_url: str) -> None:
    http, bodies = http_library(of_openai=True), list[Any]()

    def answer(request: Any) -> Any:
        bodies.append(json.loads(request.content))
        call = {"id": "c1", "type": "function", "function": {"name": "screenshot", "arguments": "{}"}}
        message = {"role": "assistant", "tool_calls": [call]} if len(bodies) == 1 else {"content": "a cat"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return http.Response(200, json={"id": "i", "object": "chat.completion", "choices": [choice]})

    async def asked() -> str:
        async with http.AsyncClient(transport=http.MockTransport(answer)) as http_client:
            model = OpenAIChatClient("m", api_key="k", base_url=base_url, http_client=http_client, max_retries=0)
            client = ChatStack(model).use(FunctionInvoker, tools=[screenshot]).build()
            return (await client.get_response("what do you see?")).text

    assert asyncio.run(asked()) == "a cat"
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}
    _, _, *rest = bodies[1]["messages"]
    if base_url.startswith("http:"):
        assert rest == [{"role": "tool", "tool_call_id": "c1", "content": [shown]}]
    else:
        named = {"type": "text", "text": "Result of screenshot (c1):"}
        assert rest == [
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": NOTE.text}]},
            {"role": "user", "content": [named, shown]},
        ]


def test_a_request_is_not_changed_by_being_sent() -> None:
    request = ChatRequest((Message.user("look"), CALLS, result("c1", "screenshot", PNG)))
    before = request.messages
    with_text_results(request.messages)
    assert request.messages == before
