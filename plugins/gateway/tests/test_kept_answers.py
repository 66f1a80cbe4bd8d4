"""Answers written anew on their own wire: upstream's bytes where no layer changed them, signatures and items kept."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import anthropic
import openai
import pytest
from answers import RESPONSE, STREAMS, WHOLE
from asks import body, history
from msgspec.structs import replace
from test_fail_open import FORMS, ask
from test_rewritten_answers import loud, text_of
from upstreams import Seen, Upstream, Wire, serving, upstream

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStream, ChatUpdate, Text
from chatstack_gateway import Settings
from chatstack_gateway import Upstream as Server


def event(**fields: Any) -> bytes:
    return f"event: {fields['type']}\ndata: {json.dumps(fields)}\n\n".encode()


def deltas(index: int, start: dict[str, Any], *pieces: dict[str, Any]) -> list[bytes]:
    return [
        event(type="content_block_start", index=index, content_block=start),
        *(event(type="content_block_delta", index=index, delta=each) for each in pieces),
        event(type="content_block_stop", index=index),
    ]


CITED = {"type": "char_location", "cited_text": "c", "document_index": 0}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"type": "web_search_result", "url": "u"}]}
USE = {"type": "tool_use", "id": "k1", "name": "f", "input": {}}
THINKING = [
    {"type": "thinking_delta", "thinking": "hm"},
    {"type": "signature_delta", "signature": "SIG=="},
]
MESSAGE = {"id": "msg_up", "type": "message", "role": "assistant", "model": "up", "content": []}
MESSAGES = [
    event(type="message_start", message={**MESSAGE, "usage": {"input_tokens": 5, "output_tokens": 1}}),
    event(type="ping"),
    *deltas(0, {"type": "thinking", "thinking": "", "signature": ""}, *THINKING),
    *deltas(1, {"type": "redacted_thinking", "data": "RED"}),
    *deltas(2, SEARCH, {"type": "input_json_delta", "partial_json": '{"query": "q"}'}),
    *deltas(3, FOUND),
    *deltas(4, {"type": "text", "text": ""}, {"type": "text_delta", "text": "1 "}, {"type": "text_delta", "text": "a"}),
    *deltas(
        5,
        {"type": "text", "text": ""},
        {"type": "text_delta", "text": "2"},
        {"type": "citations_delta", "citation": CITED},
    ),
    *deltas(6, {"type": "thinking", "thinking": "", "signature": ""}, *THINKING),
    *deltas(7, USE, *({"type": "input_json_delta", "partial_json": each} for each in ("", '{"a"', ": 1}"))),
    event(type="message_delta", delta={"stop_reason": "tool_use", "stop_sequence": None}, usage={"output_tokens": 9}),
    event(type="message_stop"),
]
REASONED = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": "ENC"}
PATCH = {"type": "custom_tool_call", "id": "ct", "call_id": "cc", "name": "apply_patch", "input": "*** Begin"}
SAID = RESPONSE["output"][0]  # type: ignore[index]
OUTPUT = [REASONED, SAID, PATCH]


def responses() -> list[bytes]:
    part = {"type": "output_text", "text": "", "annotations": []}
    at: dict[str, Any] = {"output_index": 1, "item_id": "m1", "content_index": 0}
    found: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**RESPONSE, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": REASONED},
        {"type": "response.output_item.done", "output_index": 0, "item": REASONED},
        {"type": "response.output_item.added", "output_index": 1, "item": {**SAID, "content": []}},
        {"type": "response.content_part.added", **at, "part": part},
        {"type": "response.output_text.delta", **at, "delta": "he", "logprobs": []},
        {"type": "response.output_text.delta", **at, "delta": "llo", "logprobs": []},
        {"type": "response.output_text.done", **at, "text": "hello", "logprobs": []},
        {"type": "response.content_part.done", **at, "part": {**part, "text": "hello"}},
        {"type": "response.output_item.done", "output_index": 1, "item": SAID},
        {"type": "response.output_item.added", "output_index": 2, "item": {**PATCH, "input": ""}},
        {"type": "response.custom_tool_call_input.delta", "output_index": 2, "item_id": "ct", "delta": "*** Begin"},
        {"type": "response.custom_tool_call_input.done", "output_index": 2, "item_id": "ct", "input": "*** Begin"},
        {"type": "response.output_item.done", "output_index": 2, "item": PATCH},
        {"type": "response.completed", "response": {**RESPONSE, "output": OUTPUT}},
    ]
    return [event(**each, sequence_number=number) for number, each in enumerate(found)]


def chunk(delta: dict[str, Any], index: int = 0, finish: str | None = None) -> bytes:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c1", "created": 7, "model": "up", "choices": [choice]}).encode() + b"\n\n"


CALL = {"index": 0, "id": "k1", "type": "function", "function": {"name": "f", "arguments": ""}}
CHAT = [
    b": PROCESSING\n\n",
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning_content": "hm", "content": None}),
    chunk({"content": "he"}),
    chunk({"content": "other"}, 1),
    chunk({"content": "llo", "annotations": [{"x": 1}]}),
    chunk({"tool_calls": [CALL]}),
    chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a": 1}'}}]}),
    chunk({}, finish="tool_calls"),
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\ndata: [DONE]\n\n',
]
RICH = {"chat": CHAT, "messages": MESSAGES, "responses": responses()}
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "SIG=="},
    {**SEARCH, "input": {"query": "q"}},
    FOUND,
    {"type": "text", "text": "hello", "citations": [CITED]},
    USE,
]
CHOICE = {"role": "assistant", "content": "hello", "annotations": [{"x": 1}], "reasoning_details": [{"y": 2}]}
ANSWERS: dict[str, Any] = {
    "chat": {
        **WHOLE["chat"],
        "choices": [{"index": at, "message": CHOICE, "finish_reason": "stop"} for at in range(2)],
        "system_fingerprint": "fp",
    },
    "messages": {**WHOLE["messages"], "content": BLOCKS, "stop_reason": "tool_use", "container": {"id": "c"}},
    "responses": {**RESPONSE, "output": OUTPUT},
}


@dataclass(frozen=True)
class Ending:
    """Says one thing more behind an answer, and takes text out of it."""

    inner: ChatClient
    _: KW_ONLY
    without: str = ""
    more: str = ""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._ended(await self.inner.send(request)))

    async def _ended(self, stream: ChatStream) -> AsyncGenerator[ChatUpdate, None]:
        async with stream:
            async for update in stream:
                done = update.message_done
                if done is not None:
                    if self.more:
                        yield ChatUpdate(text=self.more)
                    kept = [each for each in done.parts if not isinstance(each, Text) or each.text != self.without]
                    done = replace(done, parts=(*kept, *([Text(self.more)] if self.more else ())))
                if not self.without or update.text != self.without:
                    yield replace(update, message_done=done)


@dataclass(frozen=True)
class Stammering:
    """Says a word once more behind each piece of text that holds it."""

    inner: ChatClient
    _: KW_ONLY
    word: str

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._stammered(await self.inner.send(request)))

    async def _stammered(self, stream: ChatStream) -> AsyncGenerator[ChatUpdate, None]:
        async with stream:
            async for update in stream:
                yield update
                if self.word in update.text:
                    yield ChatUpdate(text=self.word)


def ending(**options: str) -> Callable[[ChatClient], ChatStack]:
    return lambda provider: ChatStack(provider).use(Ending, **options)


def scripted(whole: Any, streams: Any) -> Callable[[Seen, Wire], Any]:
    async def play(seen: Seen, wire: Wire) -> None:
        form = next(form for form in FORMS if {"chat": "completions"}.get(form, form) in seen.line)
        if json.loads(seen.body).get("stream"):
            await wire.stream(*streams[form])
        else:
            await wire.whole(json.dumps(whole[form]).encode())

    return play


def settings(api: Upstream) -> Settings:
    return Settings(Server(api.url), rewrite_answers=True)


@pytest.mark.parametrize("streams", [STREAMS, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("form", FORMS)
def test_a_stream_that_no_layer_changed_keeps_its_bytes(form: str, streams: Any) -> None:
    with upstream(scripted(WHOLE, streams)) as api, serving(settings(api), ending()) as gateway:
        assert ask(gateway.url, form, body(form, history(1), stream=True)).content == b"".join(streams[form])


@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_no_layer_changed_keeps_its_bytes(form: str) -> None:
    with upstream(scripted(ANSWERS, STREAMS)) as api, serving(settings(api), ending()) as gateway:
        assert ask(gateway.url, form, body(form, history(1))).content == json.dumps(ANSWERS[form]).encode()


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_answer_keeps_its_name_and_all_that_was_not_changed(form: str) -> None:
    with upstream(scripted(ANSWERS, STREAMS)) as api, serving(settings(api), loud) as gateway:
        got = ask(gateway.url, form, body(form, history(1))).json()
    came = json.loads(json.dumps(ANSWERS[form]))
    if form == "chat":
        came["choices"][0]["message"]["content"] = "HELLO"
    elif form == "messages":
        came["content"][3] = {"type": "text", "text": "HELLO"}  # as the layer made it
    else:
        came["output"][1]["content"][0]["text"] = "HELLO"
    assert got == came


def messages_of(gateway: Any) -> Any:
    with anthropic.Anthropic(base_url=gateway.url, api_key="k", max_retries=0) as client:
        thinking: Any = {"type": "enabled", "budget_tokens": 2_000}
        asked: Any = [{"role": "user", "content": "hi"}]
        with client.messages.stream(model="m", max_tokens=3_000, thinking=thinking, messages=asked) as stream:
            return stream.get_final_message().to_dict()


def test_a_changed_stream_of_messages_keeps_signatures_and_items() -> None:
    with upstream(scripted(WHOLE, RICH)) as api:
        with serving(settings(api), ending()) as gateway:
            came = messages_of(gateway)
        with serving(settings(api), loud) as gateway:
            got = messages_of(gateway)
        with serving(settings(api), ending(without="2", more="PS")) as gateway:
            ended = messages_of(gateway)
    changed = json.loads(json.dumps(came))
    assert [each["type"] for each in came["content"]][-2:] == ["thinking", "tool_use"]
    changed["content"][4]["text"] = "1 A"
    assert got == changed  # its second text has no capitals, and keeps its citations
    del came["content"][5]
    came["content"].append({"type": "text", "text": "PS"})
    assert ended == came


def test_a_changed_stream_of_responses_keeps_items_and_numbers() -> None:
    with (
        upstream(scripted(WHOLE, RICH)) as api,
        serving(settings(api), loud) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k", max_retries=0) as client,
    ):
        events = [each.to_dict() for each in client.responses.create(model="m", input="hi", stream=True)]
    assert [each["sequence_number"] for each in events] == [*range(len(events))]
    final: Any = events[-1]["response"]
    assert (final["id"], final["usage"], final["output"][0], final["output"][2]) == (
        "r1",
        RESPONSE["usage"],
        REASONED,
        PATCH,
    )
    assert final["output"][1]["content"][0]["text"] == "HELLO"
    places = [each["output_index"] for each in events if each["type"] == "response.output_item.done"]
    assert places == [0, 1, 2]


def test_words_that_a_layer_puts_into_an_item_of_responses_stand_in_all_of_its_events() -> None:
    def stammering(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(Stammering, word="he")

    with upstream(scripted(WHOLE, RICH)) as api, serving(settings(api), stammering) as gateway:
        lines = ask(gateway.url, "responses", body("responses", history(1), stream=True)).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta") == "hehello"
    assert [each["text"] for each in events if each["type"] == "response.output_text.done"] == ["hehello"]
    (final,) = (each["response"] for each in events if each["type"] == "response.completed")
    items = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert items == final["output"]
    assert items[1]["content"][0]["text"] == "hehello"
    assert [items[0], items[2]] == [REASONED, PATCH]


@pytest.mark.parametrize("layer", [loud, ending(without="llo")], ids=["loud", "last words left out"])
@pytest.mark.parametrize(
    ("form", "begins", "ends", "place"),
    [
        ("messages", "content_block_start", "content_block_stop", "index"),
        ("responses", "response.output_item.added", "response.output_item.done", "output_index"),
    ],
)
def test_each_block_that_begins_in_a_changed_stream_ends(
    form: str, begins: str, ends: str, place: str, layer: Callable[[ChatClient], ChatStack]
) -> None:
    with upstream(scripted(WHOLE, RICH)) as api, serving(settings(api), layer) as gateway:
        lines = ask(gateway.url, form, body(form, history(1), stream=True)).text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    begun = [each[place] for each in events if each["type"] == begins]
    assert len(begun) > 2
    assert [each[place] for each in events if each["type"] == ends] == begun


def test_a_changed_stream_of_chat_completions_keeps_all_but_the_words() -> None:
    with upstream(scripted(WHOLE, RICH)) as api, serving(settings(api), loud) as gateway:
        raw = ask(gateway.url, "chat", body("chat", history(1), stream=True)).content
    assert text_of("chat", raw, True) == "HELLO"
    chunks = [json.loads(each[6:]) for each in raw.splitlines() if each.startswith(b"data: {")]
    assert {(each.get("id"), each.get("model"), each.get("created")) for each in chunks[:-1]} == {("c1", "up", 7)}
    assert raw.endswith(CHAT[-1])
    for kept in (CHAT[1], CHAT[2], CHAT[4], *CHAT[6:]):
        assert kept in raw


@pytest.mark.parametrize("form", FORMS)
def test_words_behind_the_answer_come_before_its_end(form: str) -> None:
    with upstream(scripted(WHOLE, RICH)) as api, serving(settings(api), ending(more="PS")) as gateway:
        raw = ask(gateway.url, form, body(form, history(1), stream=True)).content
    assert text_of(form, raw, True).endswith("PS")
    assert raw.startswith(b"".join(RICH[form][:5]))


def test_what_an_api_answers_whole_though_a_stream_was_wanted_is_handed_on_whole() -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        await wire.whole(json.dumps(ANSWERS["chat"]).encode())

    with upstream(play) as api, serving(settings(api), loud) as gateway:
        got = ask(gateway.url, "chat", body("chat", history(1), stream=True))
    assert got.json()["choices"][0]["message"]["content"] == "HELLO"
