"""Recorded exchanges with the Messages API: read, written again, and compared with what was recorded."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anthropic import AsyncAnthropic

from chatstack import ChatRequest, ChatResponse, Message, Usage
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.anthropic.blocks import block_to_part
from chatstack.providers.anthropic.wire import (
    DEFAULT_MAX_TOKENS,
    message_of,
    messages_to_wire,
    overhead_from_wire,
    request_from_wire,
    request_to_wire,
    usage_from_wire,
)

DATA = Path(__file__).resolve().parents[2] / "../shared/data/provider_pairs.dev.jsonl.gz"

pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.exists(), reason="the recorded provider exchanges are not on this machine"),
    # The SDK announces the retirement of models that the recordings name.
    pytest.mark.filterwarnings("ignore:The model:DeprecationWarning"),
]

KINDS = ("anthropic-messages", "anthropic-count")
NOT_RECORDED = "the recording holds the request and the usage, and no answer"
CANNOT = {
    "920f16039d8f279c": NOT_RECORDED,
    "61bc5b5980d4dc6a": NOT_RECORDED,
    "915cb1124d6843e1": NOT_RECORDED,
    "45d328d42e18a797": NOT_RECORDED,
}
"""The rows whose answer cannot be compared, and why. Every request is."""


@functools.cache
def exchanges() -> list[Any]:
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        return [row for row in map(json.loads, lines) if row["kind"] in KINDS]


def rows(kinds: Iterable[str] = KINDS, field: str = "request") -> list[Any]:
    if not DATA.exists():
        return []
    wanted = [row for row in exchanges() if row["kind"] in kinds and row.get(field)]
    return [pytest.param(row, id=row["id"]) for row in wanted]


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def normal_blocks(content: Any) -> Any:
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else without_nulls(content)
    for block in blocks:
        if block["type"] == "tool_result":
            if block.get("is_error") is False:
                del block["is_error"]
            if not block.get("content"):
                block.pop("content", None)
    return blocks


def normal(body: Any) -> Any:
    """A request in the one of its equivalent forms that the wire modules list."""
    found = {"max_tokens": DEFAULT_MAX_TOKENS, **without_nulls(body)}
    if found.get("stream") is False:
        del found["stream"]
    if "system" in found:
        found["system"] = normal_blocks(found["system"])
    for tool in found.get("tools", []):
        if tool.get("description") == "":
            del tool["description"]
    found["messages"] = [{**message, "content": normal_blocks(message["content"])} for message in found["messages"]]
    return found


@pytest.mark.parametrize("row", rows())
def test_a_recorded_request_is_written_as_it_was(row: Any) -> None:
    written = request_to_wire(request_from_wire(row["request"]))
    written.pop("betas", None)  # names of a header, which recordings of bodies do not hold
    assert normal(written) == normal(row["request"])


@pytest.mark.parametrize("row", rows())
def test_reading_what_was_written_gives_the_same_values(row: Any) -> None:
    request = request_from_wire(row["request"])
    assert request_from_wire(request_to_wire(request)).messages == request.messages


@pytest.mark.parametrize("row", rows(["anthropic-messages"], "response"))
def test_a_recorded_answer_is_written_as_it_was(row: Any) -> None:
    content = row["response"]["content"]
    assert written(message_of(map(block_to_part, content))) == visible(content)
    assert usage_from_wire(row["response"]["usage"]) == recorded_usage(row)


@pytest.mark.parametrize("row", rows(["anthropic-messages"], "response"))
def test_a_whole_answer_comes_through_the_client(row: Any) -> None:
    answer = asyncio.run(asked(json_of(row["response"]), stream=False))
    assert written(*answer.messages) == visible(row["response"]["content"])
    assert (answer.usage, answer.overhead_usage) == (recorded_usage(row), recorded_overhead(row))
    assert (answer.id, answer.model) == (row["response"]["id"], row["response"]["model"])


@pytest.mark.parametrize("row", rows(["anthropic-messages"], "response_sse"))
def test_a_streamed_answer_equals_the_whole_one(row: Any) -> None:
    events = httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=row["response_sse"])
    whole = asyncio.run(folded_by_the_sdk(row["response_sse"]))
    streamed = asyncio.run(asked(events, stream=True))
    assert written(*streamed.messages) == visible(whole["content"])
    assert (streamed.usage, streamed.overhead_usage) == (recorded_usage(row), recorded_overhead(row))
    unstreamed = asyncio.run(asked(json_of({**whole, "usage": row["usage"]}), stream=False))
    assert comparable(streamed) == comparable(unstreamed)
    assert sdk_message(streamed) == sdk_message(unstreamed)


def written(message: Message) -> Any:
    (wire,) = messages_to_wire([message])
    return without_nulls(wire["content"])


def visible(content: Any) -> Any:
    """The blocks that may be sent back: the API returns text of nothing but white space, and does not take it."""
    return [block for block in without_nulls(content) if block["type"] != "text" or block["text"].strip()]


def test_no_answer_is_left_out_but_those_of_the_table() -> None:
    compared = {case.id for field in ("response", "response_sse") for case in rows(field=field)}
    assert {case.id for case in rows()} - compared == set(CANNOT)


def json_of(body: Any) -> httpx2.Response:
    return httpx2.Response(200, json=body)


async def asked(answer: httpx2.Response, *, stream: bool) -> ChatResponse:
    """What our client makes of that answer of the server's."""
    transport = httpx2.MockTransport(lambda _: answer)
    async with httpx2.AsyncClient(transport=transport) as http_client:
        client = AnthropicChatClient("claude", api_key="none", http_client=http_client)
        opened = await client.send(ChatRequest((Message.user("?"),), stream=stream))
        texts = [update.text async for update in opened]
        response = await opened.response()
    assert "".join(texts) == response.text
    return response


async def folded_by_the_sdk(sse: str) -> dict[str, Any]:
    """What the SDK's own stream helper makes of those events."""
    answer = httpx2.Response(200, headers={"content-type": "text/event-stream"}, text=sse)
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: answer)) as http_client:
        sdk = AsyncAnthropic(api_key="none", http_client=http_client, open_telemetry=False)
        async with sdk.beta.messages.stream(
            model="claude", max_tokens=1, messages=[{"role": "user", "content": "?"}]
        ) as stream:
            message = await stream.get_final_message()
    folded: dict[str, Any] = message.to_dict(mode="json", warnings=False)
    return folded


def comparable(response: ChatResponse) -> tuple[object, ...]:
    """A response without the spacing of its calls' arguments, which a whole answer does not tell, and without nulls,
    which the SDK's stream helper adds."""
    (message,) = response.messages
    kinds = [type(part) for part in message.parts]
    told = (response.usage, response.overhead_usage, response.finish_reason, response.id, response.model)
    return written(message), message.text, kinds, *told


def sdk_message(response: ChatResponse) -> tuple[object, ...]:
    raw: Any = response.raw
    return type(raw), raw.stop_reason, [(block.type, getattr(block, "input", None)) for block in raw.content]


def recorded_usage(row: Any) -> Usage:
    usage = row["usage"]
    read, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    return Usage(
        usage["input_tokens"] + read + written,
        usage["output_tokens"],
        read,
        written,
        (usage.get("output_tokens_details") or {}).get("thinking_tokens", 0),
    )


def recorded_overhead(row: Any) -> Usage:
    return overhead_from_wire(row["usage"]) or Usage()
