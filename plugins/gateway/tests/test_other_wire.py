"""Upstream speaks another wire than the caller: what both can say is said, and a 400 names the rest."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from answers import PATHS, STREAMS, WHOLE
from asks import body, history
from jobs import JOBS, READ
from scripted_model import DONE, LOOKS, ScriptedModel
from test_fail_open import OVERFLOW, Raising, answer, ask
from upstreams import Seen, Wire, serving, upstream

from chatstack import BudgetExceeded, ChatClient, ChatStack, ClearThenDrop, ContextWindowGuard, Message
from chatstack.cli import main
from chatstack.providers.wires import AnswerReader, read_request
from chatstack_gateway import Settings, Upstream
from chatstack_gateway.events import EventSplitter, decoded

F = {"name": "f"}
PAIRS = [(form, api) for form in PATHS for api in PATHS if form != api]


def clearing(provider: ChatClient) -> ChatStack:
    return ChatStack(provider).use(ClearThenDrop, max_tokens=2_000)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_the_sdks_do_a_job_with_tools(form: str, api: Any, stream: bool) -> None:
    READ.clear()
    model = ScriptedModel()
    with (
        upstream(model) as there,
        serving(Settings(Upstream(there.url), api=api, model="theirs"), clearing) as gateway,
    ):
        assert (JOBS[form](gateway.url, stream), READ) == (DONE, [*range(LOOKS)])
        gateway.settled()
        assert model.asked == LOOKS + 1
        outcomes = gateway.gateway.activity.outcomes
        assert outcomes["edited"] > 0, outcomes
        assert set(outcomes) <= {"edited", "as it came"}, outcomes
        assert sum(gateway.gateway.activity.statuses.values()) == LOOKS + 1
        for seen in there.requests:
            assert f" {PATHS[api]} " in seen.line
            body = json.loads(seen.body)
            asked = read_request(api, body)
            assert asked.options.model == "theirs"
            assert bool(body.get("stream")) == stream
            system = asked.options.instructions or asked.messages[0].text
            assert system == "be brief"
            assert [each.name for each in asked.options.tools] == ["look"]  # type: ignore[union-attr]
            key = seen.header("x-api-key") if api == "messages" else seen.header("authorization")
            assert key == ("k" if api == "messages" else "Bearer k")
            assert (seen.header("anthropic-version") is not None) == (api == "messages")
        asked = [read_request(api, json.loads(each.body)) for each in there.requests]
        calls = {call.arguments for request in asked for message in request.messages for call in message.calls}
        assert sorted(json.loads(each)["page"] for each in calls) == [*range(LOOKS)]


def asked(form: str, **fields: object) -> bytes:
    items = {"input" if form == "responses" else "messages": [{"role": "user", "content": "hello"}]}
    return json.dumps({"model": "m", **({"max_tokens": 9} if form == "messages" else {}), **items, **fields}).encode()


CITING = {"enabled": True}


def documented(**fields: object) -> list[dict[str, Any]]:
    """A question about a document with these fields."""
    source = {"type": "url", "url": "http://x/a.pdf"} if "citations" in fields else PDF
    return [{"role": "user", "content": [{"type": "document", "source": source, **fields}]}]


PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAAA"}
UNSAYABLE: list[tuple[str, str, dict[str, Any], str]] = [
    ("chat", "messages", {"n": 2}, "n"),
    ("chat", "messages", {"logprobs": True}, "logprobs"),
    ("chat", "messages", {"temperature": 1.5}, "temperature"),
    ("chat", "messages", {"response_format": {"type": "json_object"}}, "response_format"),
    ("chat", "responses", {"stop": ["x"]}, "stop"),
    ("chat", "responses", {"audio": {"voice": "x"}}, "audio"),
    ("messages", "chat", {"top_k": 3}, "top_k"),
    ("messages", "chat", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ("messages", "responses", {"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    ("chat", "messages", {"verbosity": "low"}, "verbosity"),
    ("responses", "messages", {"text": {"verbosity": "low"}}, "text.verbosity"),
    ("messages", "chat", {"messages": documented(context="of 1999")}, "messages[0].content[0].context"),
    ("messages", "responses", {"messages": documented(citations=CITING)}, "messages[0].content[0].citations"),
    (
        "messages",
        "chat",
        {"tools": [{"name": "f", "input_schema": {}, "input_examples": [{}]}]},
        "tools[0].input_examples",
    ),
    ("responses", "chat", {"previous_response_id": "r"}, "previous_response_id"),
    ("responses", "messages", {"conversation": "c"}, "conversation"),
    ("responses", "messages", {"background": True}, "background"),
    ("responses", "messages", {"input": [{"type": "item_reference", "id": "x"}]}, "input"),
    ("responses", "messages", {"input": [{"id": "x"}]}, "input"),
]
"""What only one of two wires can say, and the field that a refusal names."""


@pytest.mark.parametrize(("form", "api", "fields", "named"), UNSAYABLE)
def test_what_cannot_be_said_is_a_400_that_names_the_field(
    form: str, api: Any, fields: dict[str, Any], named: str
) -> None:
    with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api)) as gateway:
        got = ask(gateway.url, form, asked(form, **fields))
        error = got.json()["error"]
        assert got.status_code == 400
        assert error["message"].startswith(f"{named}: ")
        assert error["type"] == "invalid_request_error"
        assert form == "messages" or error["param"] == named
        assert not there.requests
        gateway.settled()


@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_what_says_nothing_of_the_answer_is_left_out(form: str, api: Any) -> None:
    idle = {
        "chat": {
            "n": 1,
            "logprobs": False,
            "store": False,
            "frequency_penalty": 0,
            "presence_penalty": 0.0,
            "verbosity": "medium",
            "prediction": {"type": "content", "content": "x"},
            "metadata": {"a": "b"},
            "usage": {"include": True},
        },
        "messages": {
            "metadata": {"user_id": "u"},
            "thinking": {"type": "adaptive"},
            "stop_sequences": [],
            "speed": "standard",
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        },
        "responses": {
            "truncation": "disabled",
            "include": ["reasoning.encrypted_content"],
            "text": {"format": {"type": "text"}},
            "client_metadata": {"x-codex-installation-id": "i"},
            "reasoning": {"context": "all_turns", "summary": "auto"},
        },
    }[form]
    with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api)) as gateway:
        assert ask(gateway.url, form, asked(form, **idle)).status_code == 200
        (seen,) = there.requests
        assert not json.loads(seen.body).keys() & (idle.keys() - {"store", "metadata"})


@pytest.mark.parametrize("said", [{"reasoning": {"effort": "max"}}, {"reasoning_effort": "max"}])
@pytest.mark.parametrize(
    ("api", "heard"),
    [("responses", {"reasoning": {"effort": "xhigh"}}), ("messages", {"output_config": {"effort": "max"}})],
)
def test_an_effort_in_either_form_of_chat_completions_goes_on(
    api: Any, heard: dict[str, Any], said: dict[str, Any]
) -> None:
    with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api)) as gateway:
        assert ask(gateway.url, "chat", asked("chat", **said)).status_code == 200
        (seen,) = there.requests
    assert json.loads(seen.body).items() >= heard.items()


ALLOWED = {
    "chat": {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": F}]},
    },
    "responses": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", **F}]},
}
SCHEMA = {"type": "object", "properties": {}}
OPENAI: dict[str, dict[str, Any]] = {
    "chat": {
        "tools": [{"type": "function", "function": {**F, "parameters": SCHEMA}}],
        "tool_choice": ALLOWED["chat"],
        "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
    },
    "responses": {
        "tools": [{"type": "function", **F, "parameters": SCHEMA, "strict": False}],
        "tool_choice": ALLOWED["responses"],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}, "verbosity": "low"},
    },
}


@pytest.mark.parametrize(("form", "api"), [("chat", "responses"), ("responses", "chat")])
def test_openais_wires_say_each_others_verbosity_and_choice_among_tools(form: str, api: Any) -> None:
    with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api)) as gateway:
        assert ask(gateway.url, form, asked(form, **OPENAI[form])).status_code == 200
        sent = json.loads(there.requests[0].body)
    for name, value in OPENAI[api].items():
        assert sent[name] == value or name == "tools"


@pytest.mark.parametrize("api", ["messages", "responses"])
def test_names_and_refusals_of_chat_completions_are_said_in_words(api: Any) -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    messages = [
        {"role": "system", "name": "rules", "content": "be brief"},
        {"role": "user", "name": "bob", "content": "hi"},
        {"role": "assistant", "name": "al", "content": None, "refusal": "I will not"},
        {"role": "user", "name": "eve", "content": [picture]},
    ]
    with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api)) as gateway:
        assert ask(gateway.url, "chat", asked("chat", messages=messages)).status_code == 200
        (seen,) = there.requests
    read = read_request(api, json.loads(seen.body)).messages
    assert [(each.role, each.text) for each in read] == [
        ("system", "rules: be brief"),
        ("user", "bob: hi"),
        ("assistant", "I will not"),
        ("user", "eve:"),
    ]
    assert len(read[-1].parts) == 2


@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_a_body_that_cannot_be_read_is_a_400(form: str, api: Any) -> None:
    with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api)) as gateway:
        for content in (b"{", b"[]", b'{"model":"m","model":"n"}'):
            got = ask(gateway.url, form, content)
            assert (got.status_code, "error" in got.json()) == (400, True)
        assert not there.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_an_upstreams_refusal_is_told_in_the_callers_wire(form: str, api: Any, stream: bool) -> None:
    told = {"error": {"type": "rate_limit_error", "message": "slow down, please", "code": "rate_limit_exceeded"}}

    async def refuse(seen: Seen, wire: Wire) -> None:
        await wire.whole(json.dumps(told).encode(), 429, "content-type: application/json\r\nretry-after: 7\r\n")

    kinds: dict[str, Any] = {"messages": anthropic.RateLimitError}
    with upstream(refuse) as there, serving(Settings(Upstream(there.url), api=api), clearing) as gateway:
        with pytest.raises(kinds.get(form, openai.RateLimitError), match="slow down, please") as caught:
            JOBS[form](gateway.url, stream)
        assert caught.value.response.headers["retry-after"] == "7"
        assert len(there.requests) == 1


@pytest.mark.parametrize("status", [429, 503, 529])
@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_what_upstream_says_about_trying_again_goes_on(form: str, api: Any, status: int) -> None:
    async def refuse(seen: Seen, wire: Wire) -> None:
        told = b"retry-after: 7\r\nx-should-retry: false\r\ncontent-type: application/json\r\n"
        await wire.whole(b'{"error": {"message": "busy"}}', status, told.decode())

    with upstream(refuse) as there, serving(Settings(Upstream(there.url), api=api), clearing) as gateway:
        content = body(form, history(4)).replace(b'"odd"', b'"metadata"').replace(b"[\n  1.0\n ]", b"{}")
        got = ask(gateway.url, form, content)
    said = got.status_code, got.headers.get("retry-after"), got.headers.get("x-should-retry")
    assert said == (status, "7", "false"), got.text


@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_a_wait_that_upstream_tells_in_words_goes_on_as_a_header(form: str, api: Any) -> None:
    async def refuse(seen: Seen, wire: Wire) -> None:
        await wire.whole(b'{"error": {"message": "Rate limit reached. Please try again in 12s."}}', 429)

    with upstream(refuse) as there, serving(Settings(Upstream(there.url), api=api), clearing) as gateway:
        content = body(form, history(4)).replace(b'"odd"', b'"metadata"').replace(b"[\n  1.0\n ]", b"{}")
        got = ask(gateway.url, form, content)
    assert (got.status_code, got.headers.get("retry-after")) == (429, "12"), got.text


@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_an_overflow_is_sent_again_with_less(form: str, api: Any) -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        if len(seen.body) > 9_000:
            await wire.whole(json.dumps(OVERFLOW[api]).encode(), 400)
        else:
            await answer(seen, wire)

    def guarded(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(ContextWindowGuard, max_context_tokens=50_000, prune_on_overflow=True)

    with upstream(play) as there, serving(Settings(Upstream(there.url), api=api), guarded) as gateway:
        content = body(form, history(4)).replace(b'"odd"', b'"metadata"').replace(b"[\n  1.0\n ]", b"{}")
        got = ask(gateway.url, form, content)
        assert got.status_code == 200, got.text
        assert 2 <= len(there.requests) <= 4


@pytest.mark.parametrize("error", [lambda: BudgetExceeded("the budget is used up"), lambda: RuntimeError("secret")])
@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_layers_refuse_and_fail_as_before_the_same_wire(form: str, api: Any, error: Any) -> None:
    def recipe(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(Raising, error=error)

    with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api), recipe) as gateway:
        got = ask(gateway.url, form, asked(form))
        is_meant = isinstance(error(), BudgetExceeded)
        assert (got.status_code, len(there.requests)) == ((429, 0) if is_meant else (200, 1))
        gateway.settled()
        assert dict(gateway.gateway.activity.outcomes) == {"refused" if is_meant else "failed open": 1}


@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_an_answer_that_breaks_off_is_told_in_the_stream(form: str, api: Any) -> None:
    async def drop(seen: Seen, wire: Wire) -> None:
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for piece in STREAMS[api][:-3] if api == "messages" else STREAMS[api][:-2]:
            await wire.chunk(piece)
        wire.writer.close()

    with upstream(drop) as there, serving(Settings(Upstream(there.url), api=api)) as gateway:
        text = b""
        with (
            pytest.raises(httpx2.RemoteProtocolError),
            httpx2.stream("POST", gateway.url + PATHS[form], content=asked(form, stream=True)) as got,
        ):
            for piece in got.iter_raw():
                text += piece
        assert b"he" in text
        assert b'"error"' in text


def test_a_caller_that_goes_away_closes_upstreams_answer() -> None:
    async def endless(seen: Seen, wire: Wire) -> None:
        await wire.raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        while True:
            await wire.chunk(STREAMS["chat"][0])

    with upstream(endless) as there, serving(Settings(Upstream(there.url), api="chat")) as gateway:
        with httpx2.stream("POST", gateway.url + PATHS["messages"], content=asked("messages", stream=True)) as got:
            next(got.iter_raw())
        assert there.gone.wait(20)
        gateway.settled()


@pytest.mark.parametrize(("form", "api"), PAIRS)
def test_what_is_watched_is_converted_and_not_edited(form: str, api: Any) -> None:
    with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api, observe=True), clearing) as gateway:
        content = body(form, history(6)).replace(b'"odd"', b'"metadata"').replace(b"[\n  1.0\n ]", b"{}")
        assert ask(gateway.url, form, content).status_code == 200
        gateway.settled()
        assert dict(gateway.gateway.activity.outcomes) == {"as it came": 1}
        assert len(read_request(api, json.loads(there.requests[0].body)).messages) == 15


def delta(finish: str | None = None, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def call(index: int, arguments: str, **fields: str) -> dict[str, object]:
    about = {"id": fields["id"]} if fields else {}
    return delta(tool_calls=[{"index": index, **about, "function": {**fields, "arguments": arguments}}])


USAGE = {"prompt_tokens": 5, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}
PARALLEL = [
    delta(reasoning_content="hm, "),
    delta(reasoning_content="two"),
    delta(content="I look."),
    call(0, "", id="a", name="f"),
    call(1, "{", id="b", name="g"),
    call(0, '{"x": 1}'),
    call(1, "}"),
    delta("length"),
    {"choices": [], "usage": USAGE},
]
"""Reasoning, text, and two calls whose pieces come mixed, cut off by the limit."""


@pytest.mark.parametrize("form", ["messages", "responses"])
def test_calls_whose_pieces_come_mixed_are_written_one_after_the_other(form: Any) -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        events = [f"data: {json.dumps({'id': 'c', 'model': 'm', **each})}\n\n".encode() for each in PARALLEL]
        await wire.stream(*events, b"data: [DONE]\n\n")

    thinking = {"thinking": {"type": "adaptive"}} if form == "messages" else {}
    with upstream(play) as there, serving(Settings(Upstream(there.url), api="chat")) as gateway:
        raw = ask(gateway.url, form, asked(form, stream=True, **thinking)).content
    split, reader = EventSplitter(), AnswerReader(form, streaming=True)
    updates = [update for data in (*split.feed(raw), *split.end()) for update in reader.add(decoded(data))]
    updates += reader.finish()
    last = updates[-1]
    assert last.message_done is not None
    assert "".join(each.reasoning for each in updates) == "hm, two"
    assert last.message_done.text == "I look."
    assert [(call.id, call.name, json.loads(call.arguments)) for call in last.message_done.calls] == [
        ("a", "f", {"x": 1}),
        ("b", "g", {}),
    ]
    assert last.finish_reason == "length"
    assert last.usage is not None
    assert (last.usage.input_tokens, last.usage.cache_read_tokens, last.usage.output_tokens) == (5, 3, 4)


def test_a_picture_and_a_failed_result_are_said() -> None:
    shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
    items = [
        {"role": "user", "content": [{"type": "text", "text": "see"}, shown]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "is_error": True, "content": "no"}]},
    ]
    with upstream(answer) as there, serving(Settings(Upstream(there.url), api="chat")) as gateway:
        assert ask(gateway.url, "messages", asked("messages", messages=items)).status_code == 200
        messages = json.loads(there.requests[0].body)["messages"]
        assert messages[0]["content"][1]["image_url"]["url"] == "data:image/png;base64,QUJD"
        assert messages[2] == {"role": "tool", "tool_call_id": "a", "content": "Error: no"}
        items[2]["content"][0]["content"] = [{"type": "text", "text": each} for each in "ab"]  # type: ignore[index]
        assert ask(gateway.url, "messages", asked("messages", messages=items)).status_code == 200
        assert json.loads(there.requests[1].body)["messages"][2]["content"] == "Error: a\nb"
        items[2]["content"][0]["content"] = [{"type": "text", "text": "a map"}, shown]  # type: ignore[index]
        assert ask(gateway.url, "messages", asked("messages", messages=items)).status_code == 200
        result, behind = json.loads(there.requests[2].body)["messages"][2:]
        assert result["content"].startswith("Error:\na map\n[Pictures and files of this result follow")
        assert behind["role"] == "user"
        assert behind["content"][0]["text"] == "Result of f (a):"
        assert behind["content"][1]["image_url"]["url"] == "data:image/png;base64,QUJD"
        there_only = {"type": "document", "source": {"type": "url", "url": "https://x/y.pdf"}}
        items[2]["content"][0]["content"] = [there_only]  # type: ignore[index]
        got = ask(gateway.url, "messages", asked("messages", messages=items))
        assert got.status_code == 400
        assert "messages[2].content[0].content[0]" in got.json()["error"]["message"]


def test_a_model_without_an_api_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--observe", "http://127.0.0.1:1", "--model", "x"]) == 2
    assert "--api" in capsys.readouterr().err


def test_a_whole_answer_has_the_fields_of_its_api() -> None:
    for form, api in PAIRS:
        with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api)) as gateway:  # type: ignore[arg-type]
            got = ask(gateway.url, form, asked(form)).json()
            assert got.keys() >= WHOLE[form].keys()
            assert Message.assistant("hello").text in json.dumps(got)
