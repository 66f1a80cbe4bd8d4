"""Failures of layers never stop a request, and what a layer refuses deliberately is never bypassed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from answers import PATHS, STREAMS, WHOLE
from asks import body, history
from upstreams import Seen, Wire, serving, upstream

from chatstack import (
    BudgetExceeded,
    ChatClient,
    ChatRequest,
    ChatStack,
    ChatStream,
    ContextWindowGuard,
    Message,
    OldestFirst,
    StoreError,
)
from chatstack.errors import RateLimitError
from chatstack_gateway import Settings, Upstream
from chatstack_gateway.running import logger

FORMS = list(PATHS)
OVERFLOW = {
    "chat": {"error": {"message": "maximum context length is 900 tokens", "code": "context_length_exceeded"}},
    "messages": {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8 maximum"},
    },
    "responses": {"error": {"message": "exceeds the context window", "code": "context_length_exceeded"}},
}


def form_of(seen: Seen) -> str:
    return next(form for form, path in PATHS.items() if f"{path} " in seen.line)


async def answer(seen: Seen, wire: Wire) -> None:
    form = form_of(seen)
    if json.loads(seen.body).get("stream"):
        await wire.stream(*STREAMS[form])
    else:
        await wire.whole(json.dumps(WHOLE[form]).encode())


@dataclass(frozen=True)
class Raising:
    inner: ChatClient
    _: KW_ONLY
    error: Callable[[], Exception]
    late: bool = False

    async def send(self, request: ChatRequest, /) -> ChatStream:
        if self.late:
            await self.inner.send(request)
        raise self.error()


def pruned(provider: ChatClient) -> ChatStack:
    return ChatStack(provider).use(OldestFirst, max_tokens=2_000, target_tokens=1_400)


def ask(url: str, form: str, content: bytes, **headers: str) -> httpx2.Response:
    return httpx2.post(url + PATHS[form], content=content, headers=headers, timeout=60)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("error", [RuntimeError, StoreError, KeyError, RecursionError, TimeoutError])
def test_a_layer_that_fails_is_passed_by(
    form: str, error: type[Exception], stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def recipe(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(Raising, error=lambda: error("secret words"))

    with upstream(answer) as api, serving(Settings(Upstream(api.url)), recipe) as gateway:
        sent = body(form, history(3), stream=stream)
        got = ask(gateway.url, form, sent)

        assert got.content == (b"".join(STREAMS[form]) if stream else json.dumps(WHOLE[form]).encode())
        assert [each.body for each in api.requests] == [sent]
    assert (
        f"sent as it came: a layer failed: {'secret words' if error is StoreError else error.__name__}" in caplog.text
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_that_fails_behind_the_answer_changes_nothing(form: str) -> None:
    def recipe(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(Raising, error=RuntimeError, late=True)

    with upstream(answer) as api, serving(Settings(Upstream(api.url)), recipe) as gateway:
        got = ask(gateway.url, form, body(form, history(1)))

        assert got.content == json.dumps(WHOLE[form]).encode()
        assert len(api.requests) == 1


REFUSALS: list[tuple[Callable[[], Exception], int, str]] = [
    (lambda: BudgetExceeded("the budget is used up"), 429, "used up"),
    (lambda: RateLimitError("slow down", retry_after_seconds=7), 429, "slow down"),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("error", "status", "said"), REFUSALS)
def test_a_deliberate_refusal_is_answered_and_not_bypassed(
    form: str, error: Callable[[], Exception], status: int, said: str
) -> None:
    def recipe(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(Raising, error=error)

    with upstream(answer) as api, serving(Settings(Upstream(api.url)), recipe) as gateway:
        got = ask(gateway.url, form, body(form, history(1)))

        assert got.status_code == status
        assert said in got.json()["error"]["message"]
        assert not api.requests
        assert (got.headers.get("retry-after") == "7") == ("slow" in said)


def test_clients_understand_a_strict_limit() -> None:
    def recipe(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(ContextWindowGuard, max_context_tokens=500, strict=True)

    with (
        upstream(answer) as api,
        serving(Settings(Upstream(api.url)), recipe) as gateway,
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="k") as theirs,
        anthropic.Anthropic(base_url=gateway.url, api_key="k") as claude,
    ):
        messages: Any = json.loads(body("chat", history(3)))["messages"]
        with pytest.raises(openai.BadRequestError) as chat:
            theirs.chat.completions.create(model="m", messages=messages)
        with pytest.raises(openai.BadRequestError):
            theirs.responses.create(model="m", input=json.loads(body("responses", history(3)))["input"], stream=True)
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: [0-9]+ tokens > 500 maximum"):
            claude.messages.create(
                model="m", max_tokens=9, messages=json.loads(body("messages", history(3)))["messages"]
            )

        assert chat.value.code == "context_length_exceeded"
        assert not api.requests


@pytest.mark.parametrize("form", FORMS)
def test_edits_are_made_in_the_text_of_the_request(form: str) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        came = body(form, history(6), metadata={"user": "1"})
        assert ask(gateway.url, form, came).status_code == 200

        sent = api.requests[0].body
        assert len(sent) < len(came) / 2
        assert b'"odd": [\n  1.0\n ]' in sent
        assert b"and now?" in sent
        assert b"please look" in sent


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_an_edit_that_upstream_refuses_is_undone_once_and_not_made_again(form: str, stream: bool) -> None:
    came = body(form, history(6), stream=stream)

    async def picky(seen: Seen, wire: Wire) -> None:
        if len(seen.body) < len(came):
            await wire.whole(b'{"error":{"message":"no"}}', 400)
        else:
            await answer(seen, wire)

    with upstream(picky) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        assert ask(gateway.url, form, came).status_code == 200
        assert [each.body == came for each in api.requests] == [False, True]

        later = body(form, [*history(6), Message.assistant("hello"), Message.user("go on")], stream=stream)
        assert ask(gateway.url, form, later).status_code == 200
        assert [each.body for each in api.requests[2:]] == [later]


@pytest.mark.parametrize("form", FORMS)
def test_a_request_that_is_refused_as_it_came_too_says_nothing_of_the_edits(form: str) -> None:
    """What is wrong is a parameter, which the caller then leaves out."""

    async def strict(seen: Seen, wire: Wire) -> None:
        if b"top_k" in seen.body:
            await wire.whole(b'{"error":{"message":"top_k is not supported"}}', 400)
        else:
            await answer(seen, wire)

    with upstream(strict) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        came = body(form, history(6), top_k=5)
        assert ask(gateway.url, form, came).status_code == 400
        assert [each.body == came for each in api.requests] == [False, True]

        assert ask(gateway.url, form, body(form, history(6))).status_code == 200
        assert len(api.requests) == 3
        assert len(api.requests[2].body) < len(came) / 2


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 529])
@pytest.mark.parametrize("form", FORMS)
def test_a_refusal_that_is_not_about_the_edit_is_handed_on_as_it_came(form: str, status: int) -> None:
    said = b'{ "error" : {"message": "x",  "odd": 1}}'

    async def refuse(seen: Seen, wire: Wire) -> None:
        await wire.whole(said, status, "content-type: application/json\r\nretry-after: 12\r\nrequest-id: req_1\r\n")

    with upstream(refuse) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        got = ask(gateway.url, form, body(form, history(6)))

        assert (got.status_code, got.content) == (status, said)
        assert (got.headers["retry-after"], got.headers["request-id"]) == ("12", "req_1")
        assert len(api.requests) == 1


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_request_that_is_too_long_is_sent_again_with_less(form: str, streamed: bool) -> None:
    async def short(seen: Seen, wire: Wire) -> None:
        if len(seen.body) < 9_000:
            await answer(seen, wire)
        elif not streamed:
            await wire.whole(json.dumps(OVERFLOW[form]).encode(), 400)
        else:
            flat = {"type": "error", "code": "context_length_exceeded", "message": "too long"}
            event = flat if form == "responses" else OVERFLOW[form]
            first = STREAMS["responses"][:1] if form == "responses" else []
            await wire.stream(*first, b"data: " + json.dumps(event).encode() + b"\n\n")

    def recipe(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(ContextWindowGuard, max_context_tokens=100_000, prune_on_overflow=True)

    with upstream(short) as api, serving(Settings(Upstream(api.url)), recipe) as gateway:
        got = ask(gateway.url, form, body(form, history(6), stream=streamed))

        assert got.status_code == 200
        assert got.content == (b"".join(STREAMS[form]) if streamed else json.dumps(WHOLE[form]).encode())
        assert 2 <= len(api.requests) <= 4


@pytest.mark.parametrize("form", FORMS)
def test_a_request_that_stays_too_long_is_answered_as_upstream_did(form: str) -> None:
    async def full(seen: Seen, wire: Wire) -> None:
        await wire.whole(json.dumps(OVERFLOW[form]).encode(), 400)

    with upstream(full) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        got = ask(gateway.url, form, body(form, history(6)))

        assert (got.status_code, got.json()) == (400, OVERFLOW[form])
        assert len(api.requests) == 1


UNREADABLE = [
    b"",
    b"nonsense",
    b"[]",
    b'{"messages": 3, "input": {}}',
    b'{"messages":[],"messages":[{"role":"user","content":"x"}],"input":"a","input":"b"}',
    b'{"messages":[{"role":"user","role":"user","content":"x"}],"input":[{"role":"user","content":"x","content":"y"}]}',
    b'{"messages":[{"role":"nobody","content":"x"}],"input":[{"role":7}]}',
    b'{"messages":[{"role":"user","content":"\\ud800"}],"input":[{"role":"user","content":"\\ud800"}]}',
    b'{"messages":[{"role":"user","content":NaN}],"input":NaN}',
    b"\xff\xfe{\x00}\x00",
    b'{"a":' + b"[" * 100_000,
]


@pytest.mark.parametrize("form", FORMS)
def test_what_cannot_be_read_is_upstreams_to_judge(form: str) -> None:
    async def judge(seen: Seen, wire: Wire) -> None:
        await wire.whole(b'{"error": "judged"}', 422)

    with upstream(judge) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        for content in UNREADABLE:
            got = ask(gateway.url, form, content)
            assert (got.status_code, got.content) == (422, b'{"error": "judged"}'), content[:99]
            assert api.requests[-1].body == content


@pytest.mark.parametrize(
    "headers",
    [
        {"content-encoding": "zstd"},
        {"authorization": "AWS4-HMAC-SHA256 Credential=x"},
        {"content-digest": "sha-256=:x:"},
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_compressed_and_signed_bodies_stay_as_they_are(form: str, headers: dict[str, str]) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        came = body(form, history(6))
        assert ask(gateway.url, form, came, **headers).status_code == 200
        assert [each.body for each in api.requests] == [came]


def test_responses_that_refer_to_the_servers_own_items_stay_as_they_are() -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        items = json.loads(body("responses", history(6)))["input"]
        for fields in (
            {"previous_response_id": "r0", "input": items},
            {"input": [{"type": "item_reference", "id": "i"}, *items]},
            {"input": [{"type": None, "id": "i"}, *items]},
        ):
            came = json.dumps({"model": "m", **fields}).encode()
            assert ask(gateway.url, "responses", came).status_code == 200
            assert api.requests[-1].body == came


@pytest.mark.parametrize("form", ["chat", "messages"])
def test_an_edit_that_cannot_be_made_in_the_text_is_not_taken_for_made(form: str) -> None:
    """A layer that changes the system prompt of Anthropic's, or puts in text that stands in no list."""

    class Rewriting:
        def __init__(self, inner: ChatClient) -> None:
            self.inner = inner

        async def send(self, request: ChatRequest, /) -> ChatStream:
            options = request.options.but(instructions="obey", extra={})  # takes fields of the caller's away
            return await self.inner.send(request.but(options=options))

    def recipe(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(Rewriting)

    with upstream(answer) as api, serving(Settings(Upstream(api.url)), recipe) as gateway:
        came = body(form, history(2))
        assert ask(gateway.url, form, came).json() == WHOLE[form]
        gateway.settled()
        assert [each.body for each in api.requests] == [came]
        assert gateway.gateway.activity.outcomes == {"not editable": 1}


def test_a_large_request_is_edited_like_any_other() -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        came = body("chat", history(120))
        assert len(came) > 300_000
        assert ask(gateway.url, "chat", came).status_code == 200
        assert len(api.requests[0].body) < len(came) / 20


def test_editing_can_be_switched_off_and_on(tmp_path: Any) -> None:
    with (
        upstream(answer) as api,
        serving(Settings(Upstream(api.url), admin_token="adm", state=tmp_path), pruned) as gateway,
    ):
        came, switch = body("chat", history(6)), f"{gateway.url}/chatstack/editing"
        assert httpx2.put(switch, json={"editing": False}).status_code == 403
        admin = {"authorization": "Bearer adm"}
        assert httpx2.put(switch, json={"editing": 0}, headers=admin).status_code == 400
        assert httpx2.put(switch, json={"editing": False}, headers=admin).json() == {"editing": False}
        ask(gateway.url, "chat", came)
        assert api.requests[-1].body == came

        httpx2.put(switch, json={"editing": True}, headers=admin)
        ask(gateway.url, "chat", came)
        assert len(api.requests[-1].body) < len(came)
        assert httpx2.get(switch, headers=admin).json() == {"editing": True}
    assert logger.name == "chatstack.gateway"
