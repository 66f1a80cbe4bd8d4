"""Recorded exchanges with OpenAI's chat completions: everything that was sent and answered can be ours and back."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState

from chatstack import ChatOptions, ChatRequest, ChatResponse, Message, Usage
from chatstack.providers.openai import OpenAIChatClient
from chatstack.providers.openai.chat_answers import ChatAnswer
from chatstack.providers.openai.chat_wire import (
    messages_from_wire,
    messages_to_wire,
    request_from_wire,
    request_to_wire,
)
from chatstack.providers.openai.usages import chat_usage
from tests.servers import answering_with

pytestmark = pytest.mark.data

DATA = (Path(__file__).resolve().parents[2] / "../shared/data").resolve() / "provider_pairs.dev.jsonl.gz"
MISSING = "the recorded exchanges (shared/data) are not beside this checkout"

NOT_OURS = {
    "several choices": "a request with n > 1: our answer is the first choice, the others are in raw alone",
}
"""What cannot be had of a recorded answer, and why."""


@functools.cache
def exchanges() -> list[dict[str, Any]]:
    with gzip.open(DATA, "rt") as lines:
        return [row for row in map(json.loads, lines) if row["kind"] == "openai-chat"]


def rows(*, streamed: bool | None = None) -> list[dict[str, Any]]:
    if not DATA.exists():
        pytest.skip(MISSING)
    return [row for row in exchanges() if streamed is None or bool(row.get("response_sse")) is streamed]


def answer_of(row: dict[str, Any]) -> dict[str, Any]:
    found = row["response"]
    answer: dict[str, Any] = json.loads(found) if isinstance(found, str) else found
    return answer


def normal(value: Any) -> Any:
    """A request's body in one of its equal spellings; each line is an equivalence that openai_wire documents."""
    body = json.loads(json.dumps(value))
    if not body.get("stream"):
        body.pop("stream", None)
    else:
        body.setdefault("stream_options", {"include_usage": True})
    for message in body["messages"]:
        content = message.get("content")
        if isinstance(content, list) and len(content) == 1 and content[0].keys() == {"type", "text"}:
            message["content"] = content[0]["text"]
        if message["role"] == "assistant":
            message.setdefault("content", None)
    return body


def test_there_are_exchanges_of_every_kind() -> None:
    found = rows()
    assert len(found) == 158
    assert sum(bool(row.get("response_sse")) for row in found) == 34
    assert any(row["has_media"] for row in found)


def test_every_recorded_request_goes_out_as_it_came() -> None:
    for row in rows():
        request = request_from_wire(row["request"])
        assert normal(request_to_wire(request)) == normal(row["request"]), row["id"]


def test_every_recorded_history_is_the_same_after_two_turns_through_the_wire() -> None:
    for row in rows():
        messages = messages_from_wire(row["request"]["messages"])
        assert messages_from_wire(messages_to_wire(messages)) == messages, row["id"]


def test_every_recorded_result_knows_the_name_of_its_call() -> None:
    results = [
        result
        for row in rows()
        for message in messages_from_wire(row["request"]["messages"])
        for result in message.results
    ]
    assert len(results) == 77
    assert all(result.name for result in results)


def test_every_recorded_answer_goes_out_as_it_came() -> None:
    for row in rows(streamed=False):
        for choice in answer_of(row)["choices"]:
            answer = ChatAnswer()
            whole = {"choices": [{**choice, "index": 0}]}
            *_, last = [*answer.add(whole, streaming=False), *answer.finish(None)]
            assert last.message_done is not None
            (wire,) = messages_to_wire([last.message_done])
            assert said(wire) == said(choice["message"]), row["id"]


def test_every_recorded_usage_is_read_with_cached_and_reasoning_tokens() -> None:
    for row in rows():
        assert chat_usage(row["usage"]) == expected_usage(row["usage"]), row["id"]
    totals = [expected_usage(row["usage"]) for row in rows()]
    assert sum(usage.reasoning_tokens for usage in totals) > 0


def test_every_recorded_answer_comes_through_the_sdk_and_our_stream() -> None:
    several = 0
    for row in rows(streamed=False):
        recorded = answer_of(row)
        response = replay(row, json.dumps(recorded).encode(), "application/json", stream=False)
        several += len(recorded["choices"]) > 1
        assert_is(response, recorded, row["id"])
    assert several == 1, NOT_OURS["several choices"]


def test_every_recorded_stream_comes_through_the_sdk_and_our_stream() -> None:
    for row in rows(streamed=True):
        sse = row["response_sse"]
        response = replay(row, sse.encode(), "text/event-stream", stream=True)
        assert_is(response, folded_by_the_sdk(sse), row["id"])


def test_the_raw_answer_of_a_recorded_stream_is_the_whole_completion() -> None:
    for row in rows(streamed=True):
        sse = row["response_sse"]
        raw = replay(row, sse.encode(), "text/event-stream", stream=True).raw
        assert isinstance(raw, openai.types.chat.ChatCompletion), row["id"]
        assert completion(raw.to_dict(warnings=False)) == completion(folded_by_the_sdk(sse)), row["id"]


def test_a_recorded_answer_is_the_same_streamed_and_whole() -> None:
    for row in rows(streamed=True):
        sse = row["response_sse"]
        streamed = replay(row, sse.encode(), "text/event-stream", stream=True)
        whole = replay(row, json.dumps(folded_by_the_sdk(sse)).encode(), "application/json", stream=False)
        assert streamed.messages == whole.messages, row["id"]
        assert (streamed.usage, streamed.finish_reason) == (whole.usage, whole.finish_reason), row["id"]


def assert_is(response: ChatResponse, recorded: dict[str, Any], id: str) -> None:
    choice = recorded["choices"][0]
    (message,) = response.messages
    assert said(messages_to_wire([message])[0]) == said(choice["message"]), id
    assert response.usage == expected_usage(recorded.get("usage") or {}), id
    assert (response.id, response.model) == (recorded["id"], recorded["model"]), id
    expected = {"function_call": "tool_calls", "content_filter": "refused"}.get(
        choice["finish_reason"], choice["finish_reason"]
    )
    if choice["message"].get("refusal"):
        expected = "refused"
    elif expected == "stop" and message.calls:
        expected = "tool_calls"  # a named tool was forced
    assert response.finish_reason == expected, id


def expected_usage(usage: dict[str, Any]) -> Usage:
    prompt, completion = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
    return Usage(
        usage.get("prompt_tokens", 0),
        usage.get("completion_tokens", 0),
        prompt.get("cached_tokens") or 0,
        prompt.get("cache_write_tokens") or 0,
        completion.get("reasoning_tokens") or 0,
    )


def said(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the fields that say nothing."""
    return {name: value for name, value in message.items() if value not in (None, [], "")}


def completion(fields: dict[str, Any]) -> dict[str, Any]:
    """A completion without the fields that say nothing."""
    choices = [{**said(choice), "message": said(choice["message"])} for choice in fields["choices"]]
    return {**said(fields), "choices": choices}


def folded_by_the_sdk(sse: str) -> dict[str, Any]:
    """The second opinion: the SDK's own accumulation of the same chunks, parsed helpers left out."""
    state = ChatCompletionStreamState()
    for chunk in chunks_of(sse):
        state.handle_chunk(openai.types.chat.ChatCompletionChunk.model_validate(chunk))
    folded = state.current_completion_snapshot.to_dict(warnings=False)
    folded.pop("obfuscation", None)  # a chunk's padding, which releases before 3 leave in
    for choice in folded["choices"]:  # type: ignore[attr-defined]
        message = choice["message"]
        message.pop("parsed", None)
        for call in message.get("tool_calls") or []:
            call.pop("index", None)
            call["function"].pop("parsed_arguments", None)
    return folded


def chunks_of(sse: str) -> Iterator[dict[str, Any]]:
    for line in sse.splitlines():
        if line.startswith("data: ") and line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def replay(row: dict[str, Any], body: bytes, content_type: str, *, stream: bool) -> ChatResponse:
    """The recorded bytes as the answer of a transport, read by the real SDK."""

    async def ask() -> ChatResponse:
        async with answering_with(body, content_type) as http_client:
            client = OpenAIChatClient(row["model"] or "gpt", api_key="none", http_client=http_client, max_retries=0)
            request = ChatRequest((Message.user("again"),), ChatOptions(), None, stream)
            return await (await client.send(request)).response()

    return asyncio.run(ask())
