"""What no provider should send, over every wire: an error of the tree, or a value that can be kept and sent again."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from chatstack import ChatRequest, ChatResponse, ChatStream, Message
from chatstack.errors import BrokenStreamError, ServerError
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.providers.openai.chat_answers import ChatAnswer
from tests.servers import answering_with

CHAT, RESPONSES, ANTHROPIC = OpenAIChatClient, OpenAIResponsesClient, AnthropicChatClient
DEEP = b"[" * 50_000 + b"]" * 50_000
HALF = "a\ud800b"
KINDS = [CHAT, RESPONSES, ANTHROPIC]


def answer(kind: type[Any], body: object, *, stream: bool = False) -> ChatResponse:
    """The answer for those bytes, that object, or those events."""
    if isinstance(body, bytes):
        data = body
    elif stream:
        events: Any = body
        data = b"".join(_event(each) for each in events)
    else:
        data = json.dumps(body).encode()

    async def asked() -> ChatResponse:
        form = "text/event-stream" if stream else "application/json"
        async with answering_with(data, form, of_openai=kind is not AnthropicChatClient) as http_client:
            client = kind("m", api_key="k", http_client=http_client, max_retries=0)
            sent: ChatStream = await client.send(ChatRequest((Message.user("hi"),), stream=stream))
            return await sent.response()

    return asyncio.run(asked())


def _event(fields: Any) -> bytes:
    name = f"event: {fields['type']}\n" if "type" in fields else ""
    return f"{name}data: {json.dumps(fields)}\n\n".encode()


def whole_answers(text: str, **odd: object) -> dict[type[Any], dict[str, object]]:
    message = {"role": "assistant", "content": text, **odd}
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text, **odd}], **odd}
    block = {"type": "text", "text": text, **odd}
    return {
        CHAT: {"id": "i", "choices": [{"message": message, "finish_reason": "stop"}]},
        RESPONSES: {"id": "i", "status": "completed", "output": [item, {"type": "odd", **odd}]},
        ANTHROPIC: {
            "id": "i",
            "type": "message",
            "content": [block, {"type": "odd", **odd}],
            "stop_reason": "end_turn",
        },
    }


def streamed_answers(text: str, **odd: object) -> dict[type[Any], list[dict[str, object]]]:
    whole = whole_answers(text, **odd)
    begun = {**whole[ANTHROPIC], "content": [], "stop_reason": None}
    return {
        CHAT: [{"id": "i", "choices": [{"delta": {"content": text, **odd}, "finish_reason": "stop"}]}],
        RESPONSES: [
            {"type": "response.output_text.delta", "delta": text},
            {"type": "response.completed", "response": whole[RESPONSES]},
        ],
        ANTHROPIC: [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "", **odd}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
            {"type": "message_stop"},
        ],
    }


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (CHAT, {"choices": []}),
        (CHAT, {"choices": [{"message": None}]}),
        (CHAT, {"choices": [{"message": None, "finish_reason": "stop"}]}),
        (CHAT, {"choices": [{"finish_reason": "stop"}]}),
        (CHAT, {"choices": [{"message": {"content": "hi"}}]}),
        (CHAT, {"choices": [{"message": {"content": "hi"}, "finish_reason": None}]}),
        (RESPONSES, {"output": []}),
        (RESPONSES, {"status": "completed"}),
        (RESPONSES, {"status": "completed", "output": None}),
        (RESPONSES, {"status": None, "output": []}),
        (RESPONSES, {"status": ["completed"], "output": []}),
        (ANTHROPIC, {"content": []}),
        (ANTHROPIC, {"content": [{"type": "text", "text": "hi"}], "stop_reason": None}),
        (ANTHROPIC, {"content": None, "stop_reason": "end_turn"}),
        (ANTHROPIC, {"content": [{"type": "tool_use"}], "stop_reason": "tool_use"}),
        (ANTHROPIC, {"content": [], "stop_reason": "end_turn", "usage": 5}),
        (ANTHROPIC, {"content": [], "stop_reason": ["end_turn"]}),
    ],
)
def test_an_answer_that_is_not_one_is_the_servers_failure(kind: type[Any], body: object) -> None:
    with pytest.raises(ServerError):
        answer(kind, body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_answer_is_read(kind: type[Any]) -> None:
    found = answer(kind, whole_answers("fine")[kind])
    assert (found.text, found.finish_reason) == ("fine", "stop")


def test_a_stream_without_a_stop_reason_is_broken() -> None:
    events = [each for each in streamed_answers("fine")[ANTHROPIC] if each["type"] != "message_delta"]
    with pytest.raises(BrokenStreamError, match="stop_reason"):
        answer(ANTHROPIC, events, stream=True)


def test_the_last_event_says_the_status_where_the_response_does_not() -> None:
    output = whole_answers("fine")[RESPONSES]["output"]
    found = answer(RESPONSES, [{"type": "response.incomplete", "response": {"output": output}}], stream=True)
    assert (found.text, found.finish_reason) == ("fine", "other")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_half_a_character_is_replaced_wherever_it_is(kind: type[Any], stream: bool) -> None:
    answers: dict[type[Any], Any] = streamed_answers(HALF, odd=HALF) if stream else whole_answers(HALF, odd=HALF)
    found = answer(kind, answers[kind], stream=stream)
    assert found.text == "a\ufffdb"
    assert b"\xef\xbf\xbd" in msgspec.json.encode(found.messages)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("noise", [DEEP, b"4" * 5000], ids=["deep", "huge number"])
def test_json_that_cannot_be_read_is_an_error_of_the_tree(kind: type[Any], stream: bool, noise: bytes) -> None:
    body = b'{"type": "message_start", "odd": ' + noise + b"}"
    data = b"event: message_start\ndata: " + body + b"\n\n" if stream else body
    with pytest.raises(BrokenStreamError if stream else ServerError):
        answer(kind, data, stream=stream)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_json_that_nests_deeply_is_read_or_refused_and_never_a_raw_error(kind: type[Any], stream: bool) -> None:
    for depth in (200, 280, 400, 900):
        deep: object = "x"
        for _ in range(depth):
            deep = {"a": deep}
        answers: dict[type[Any], Any] = streamed_answers("t", odd=deep) if stream else whole_answers("t", odd=deep)
        text = "refused"
        with suppress(BrokenStreamError if stream else ServerError):
            text = answer(kind, answers[kind], stream=stream).text
        assert text == "t" or (text == "refused" and depth > 250)


def test_many_deltas_of_reasoning_are_joined_once_at_the_end() -> None:
    fold = ChatAnswer()
    for _ in range(20_000):
        list(fold.add({"choices": [{"delta": {"reasoning_content": "x" * 50}}]}, streaming=True))
    (part,) = list(fold.finish(None))[-1].message_done.parts  # type: ignore[union-attr]
    assert part.text == "x" * 1_000_000  # type: ignore[union-attr]


def test_fields_of_a_delta_grow_each_in_its_way() -> None:
    fold = ChatAnswer()
    for delta in (
        {"refusal": "no", "list": [1], "object": {"text": "a", "other": 1, "none": None}, "one": 1},
        {"refusal": " way", "list": [2], "object": {"text": "b", "other": 2}, "one": None},
    ):
        list(fold.add({"choices": [{"delta": delta}]}, streaming=True))
    (done,) = fold.finish(None)
    assert done.message_done is not None
    assert json.loads(done.message_done.extra_json)["openai-chat"] == {
        "refusal": "no way",
        "list": [1, 2],
        "object": {"text": "ab", "other": 2, "none": None},
        "one": 1,
    }
