"""Layers that change answers: it is told where callers do not see it, and handed on where it is asked for."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest
from answers import STREAMS, WHOLE
from asks import body, history
from jobs import JOBS, READ
from msgspec.structs import replace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind
from scripted_model import DONE, LOOKS, ScriptedModel
from test_fail_open import FORMS, answer, ask, pruned
from upstreams import Seen, Wire, serving, upstream

from chatstack import ChatClient, ChatRequest, ChatStack, ChatStream, ChatUpdate, ContextWindowGuard, Message, Text
from chatstack.errors import WiringError
from chatstack.providers.wires import AnswerReader
from chatstack_gateway import Settings, Upstream
from chatstack_gateway.events import EventSplitter, decoded


@dataclass(frozen=True)
class Loud:
    """Says everything in capitals."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._raised(await self.inner.send(request)))

    async def _raised(self, stream: ChatStream) -> AsyncGenerator[ChatUpdate, None]:
        async with stream:
            async for update in stream:
                done = update.message_done
                if done is not None:
                    parts = tuple(Text(each.text.upper()) if isinstance(each, Text) else each for each in done.parts)
                    done = replace(done, parts=parts)
                yield replace(update, text=update.text.upper(), message_done=done)


@dataclass(frozen=True)
class Parrot:
    """Answers by itself."""

    inner: ChatClient

    async def send(self, request: ChatRequest, /) -> ChatStream:
        async def said() -> AsyncGenerator[ChatUpdate, None]:
            yield ChatUpdate(text="by heart")
            yield ChatUpdate(message_done=Message.assistant("by heart"), finish_reason="stop")

        return await ChatStream.primed(said())


def loud(provider: ChatClient) -> ChatStack:
    return ChatStack(provider).use(Loud)


def text_of(form: Any, raw: bytes, stream: bool) -> str:
    reader = AnswerReader(form, streaming=stream)
    split = EventSplitter()
    events = [decoded(each) for each in (*split.feed(raw), *split.end())] if stream else [json.loads(raw)]
    updates = [update for event in events for update in reader.add(event)]
    done = [*updates, *reader.finish()][-1].message_done
    assert done is not None
    return done.text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_changed_answer_that_nobody_hears_is_told(
    form: str, stream: bool, spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), loud) as gateway:
        for _ in range(2):
            got = ask(gateway.url, form, body(form, history(1), stream=stream))
            assert got.content == (b"".join(STREAMS[form]) if stream else json.dumps(WHOLE[form]).encode())
        gateway.settled()
        assert gateway.gateway.activity.unheard == 2
    assert caplog.text.count("start with --rewrite-answers") == 1
    server = [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert [(span.attributes or {}).get("chatstack.gateway.answer_changed") for span in server] == [True, True]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_an_answer_that_nobody_changed_is_not_told(form: str, stream: bool) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        ask(gateway.url, form, body(form, history(6), stream=stream))
        gateway.settled()
        assert gateway.gateway.activity.unheard == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_changed_answer_is_handed_on_where_that_is_asked_for(form: str, stream: bool) -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url), rewrite_answers=True), loud) as gateway:
        sent = body(form, history(1), stream=stream)
        got = ask(gateway.url, form, sent)
        assert text_of(form, got.content, stream) == "HELLO"
        assert [each.body for each in api.requests] == [sent]
        gateway.settled()
        assert gateway.gateway.activity.unheard == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_layers_own_answer_is_handed_on_where_answers_are_written_anew(form: str, stream: bool) -> None:
    settings = Settings(Upstream("http://127.0.0.1:1"), rewrite_answers=True)
    with serving(settings, lambda provider: ChatStack(provider).use(Parrot)) as gateway:
        got = ask(gateway.url, form, body(form, history(1), stream=stream))
        assert text_of(form, got.content, stream) == "by heart"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_sdks_do_a_job_by_answers_written_anew(form: str, stream: bool) -> None:
    READ.clear()
    with (
        upstream(ScriptedModel()) as api,
        serving(Settings(Upstream(api.url), rewrite_answers=True), pruned) as gateway,
    ):
        assert (JOBS[form](gateway.url, stream), READ) == (DONE, [*range(LOOKS)])


@pytest.mark.parametrize("form", FORMS)
def test_an_upstreams_refusal_keeps_its_bytes(form: str) -> None:
    told = b'{"error": {"message": "odd",  "x": 1.0}}'

    async def refuse(seen: Seen, wire: Wire) -> None:
        await wire.whole(told, 418)

    with upstream(refuse) as api, serving(Settings(Upstream(api.url), rewrite_answers=True), loud) as gateway:
        got = ask(gateway.url, form, body(form, history(1)))
        assert (got.status_code, got.content) == (418, told)


def test_what_is_watched_is_not_written_anew() -> None:
    with pytest.raises(WiringError, match="leave --rewrite-answers out"):
        Settings(Upstream("http://127.0.0.1:1"), observe=True, rewrite_answers=True)


@pytest.mark.parametrize("has_card", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_the_window_is_asked_of_upstream_once_where_it_tells(form: str, has_card: bool) -> None:
    card = {"id": "own-model", "object": "model", "max_model_len": 2_000}

    async def play(seen: Seen, wire: Wire) -> None:
        if not seen.line.startswith("GET"):
            await answer(seen, wire)
        elif "/v1/models/own-model " in seen.line:
            await wire.whole(json.dumps(card).encode(), 200 if has_card else 404)
        else:
            await wire.whole(json.dumps({"data": [card]}).encode())

    def guarded(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(ContextWindowGuard, max_context_tokens="auto", prune_on_overflow=True)

    with upstream(play) as api, serving(Settings(Upstream(api.url)), guarded) as gateway:
        for _ in range(3):
            sent = body(form, history(6), model="own-model")
            assert ask(gateway.url, form, sent, authorization="Bearer k").status_code == 200
            assert len(api.requests[-1].body) < len(sent) / 2
        cards = [each for each in api.requests if each.line.startswith("GET")]
        assert len(cards) == (1 if has_card else 2)
        assert {each.header("authorization") for each in cards} == {"Bearer k"}
        assert not any(each.body for each in cards)


def test_an_upstream_that_tells_no_window_costs_nothing_but_the_question() -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        if seen.line.startswith("GET"):
            await wire.whole(b"no", 500)
        else:
            await answer(seen, wire)

    def guarded(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(ContextWindowGuard, max_context_tokens="auto", prune_on_overflow=True)

    with upstream(play) as api, serving(Settings(Upstream(api.url)), guarded) as gateway:
        sent = body("chat", history(6), model="own-model")
        assert [ask(gateway.url, "chat", sent).status_code for _ in range(2)] == [200, 200]
        assert [each.body for each in api.requests if not each.line.startswith("GET")] == [sent, sent]
        assert len(api.requests) == 3
        gateway.settled()
        assert dict(gateway.gateway.activity.outcomes) == {"as it came": 2}
