"""Observe mode: everything goes on untouched, and what the pipeline would have done is told."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import stat
import sys
from array import array
from pathlib import Path
from typing import Any

import httpx2
import pytest
from answers import PATHS, WHOLE
from asks import body, history
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from test_fail_open import FORMS, answer, ask, form_of, pruned
from upstreams import Seen, Server, Wire, none_left, serving, upstream

from chatstack import (
    ChatClient,
    ChatResponse,
    ChatStack,
    ClearThenDrop,
    ContextMemory,
    ContextWindowGuard,
    Message,
    Summarizer,
    Usage,
)
from chatstack.cli import main
from chatstack.providers.openai import OpenAIChatClient
from chatstack_gateway import Settings, Upstream
from chatstack_gateway.exchange import Exchange
from chatstack_gateway.gateway import Gateway
from chatstack_gateway.handling import ModelRoute
from chatstack_gateway.observing import Prefixes
from chatstack_gateway.tee import Tee


def told(gateway: Server) -> Any:
    gateway.settled()
    observer = gateway.gateway.observer
    assert observer is not None
    asyncio.run_coroutine_threadsafe(observer.settled(), gateway.loop).result(30)
    return httpx2.get(f"{gateway.url}/chatstack/activity").json()


async def priced(seen: Seen, wire: Wire) -> None:
    """Answers that report as many tokens as there are characters in four."""
    form = form_of(seen)
    usage = {"chat": "prompt_tokens", "messages": "input_tokens", "responses": "input_tokens"}[form]
    whole = json.loads(json.dumps(WHOLE[form]))
    whole["usage"][usage] = len(seen.body) // 4
    await wire.whole(json.dumps(whole).encode())


def conversation(form: str, turns: int) -> list[bytes]:
    """The requests of a conversation that grows, one for each turn."""
    found, messages = [], [Message.user("please look")]
    for more in (history(turns)[at : at + 2] for at in range(1, 2 * turns, 2)):
        found.append(body(form, messages, model="gpt-5-mini"))
        messages += more
    return found


@pytest.mark.parametrize("form", FORMS)
def test_what_is_watched_goes_on_untouched_and_is_told(form: str, spans: InMemorySpanExporter) -> None:
    asked = conversation(form, 8)
    with upstream(priced) as api, serving(Settings(Upstream(api.url), observe=True), pruned) as gateway:
        for each in asked:
            assert ask(gateway.url, form, each).status_code == 200
        seen = told(gateway)

        assert [each.body for each in api.requests] == asked
        observed = seen["observed"]
        assert observed["requests"] == len(asked)
        assert seen["outcomes"] == {"as it came": len(asked)}
        assert observed["tokens"] == sum(len(each) // 4 for each in asked)
        assert 0 < observed["would_tokens"] < observed["tokens"] * 0.8
        assert observed["edited"] >= 1
        assert (observed["breaks"], observed["would_breaks"]) == (0, observed["would_breaks"])
        assert 1 <= observed["would_breaks"] <= observed["edited"]
        assert observed["usd"] > observed["would_usd"] > 0
        assert seen["unobserved"] == 0
    (last,) = [each for each in spans.get_finished_spans() if each.name == "observe_context"][-1:]
    attributes = last.attributes or {}
    assert attributes["chatstack.observe.tokens_would_send"] < attributes["chatstack.observe.tokens_sent"]  # type: ignore[operator]
    names = {each.name for each in spans.get_finished_spans()}
    assert not any(name.startswith("compact_context") for name in names), "edits that were not made were told as made"


def test_without_a_pipeline_the_recommended_one_is_tried() -> None:
    with upstream(priced) as api, serving(Settings(Upstream(api.url), observe=True)) as gateway:
        for each in conversation("chat", 4):
            ask(gateway.url, "chat", each)
        observed = told(gateway)["observed"]
        assert observed["requests"] == 4
        assert observed["would_tokens"] <= observed["tokens"]


def test_a_watched_summary_asks_no_model_and_is_paid_for() -> None:
    def summing(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(Summarizer, max_tokens=2_000, keep_recent_turns=1)

    with upstream(priced) as api, serving(Settings(Upstream(api.url), observe=True), summing) as gateway:
        asked = conversation("chat", 6)
        for each in asked:
            ask(gateway.url, "chat", each)
        observed = told(gateway)["observed"]
        assert len(api.requests) == len(asked)
        assert observed["edited"] >= 1
        assert observed["would_tokens"] < observed["tokens"]


def test_the_model_that_a_pipeline_names_for_its_summaries_is_not_asked_while_watching(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "pipeline.json"
    with upstream(priced) as api, upstream(answer) as another:
        writer = {"use": "openai", "model": "small", "base_url": f"{another.url}/v1"}
        layer = {"use": "Summarizer", "max_tokens": 2_000, "keep_recent_turns": 1, "summary_client": writer}
        path.write_text(json.dumps({"layers": [layer]}))

        def summing(provider: ChatClient) -> ChatStack:
            client = OpenAIChatClient("small", base_url=f"{another.url}/v1", api_key="none")
            return ChatStack(provider).use(Summarizer, max_tokens=2_000, keep_recent_turns=1, summary_client=client)

        for settings, recipe in (
            (Settings(Upstream(api.url), observe=True, pipeline=str(path)), None),
            (Settings(Upstream(api.url), observe=True), summing),
        ):
            with serving(settings, recipe) as gateway:
                for each in conversation("chat", 6):
                    ask(gateway.url, "chat", each)
                seen = told(gateway)
            assert seen["unobserved"] == 0
            assert seen["observed"]["edited"] >= 1
        assert another.requests == []


def test_layers_that_change_no_message_are_not_waited_for_while_watching() -> None:
    class Waits:
        kind = "plain"

        def __init__(self, inner: ChatClient) -> None:
            self.inner = inner

        async def send(self, request: object, /) -> Any:
            await asyncio.sleep(3_600)

    with (
        upstream(answer) as api,
        serving(Settings(Upstream(api.url), observe=True), lambda provider: ChatStack(provider).use(Waits)) as gateway,
    ):
        assert ask(gateway.url, "chat", body("chat", history(1))).status_code == 200
        seen = told(gateway)
    assert (seen["observed"]["requests"], seen["unobserved"]) == (1, 0)


def test_a_pipeline_that_fails_on_a_watched_request_hurts_nobody() -> None:
    class Broken:
        def __init__(self, inner: ChatClient) -> None:
            self.inner = inner

        async def send(self, request: object, /) -> Any:
            raise RuntimeError

    with (
        upstream(answer) as api,
        serving(Settings(Upstream(api.url), observe=True), lambda provider: ChatStack(provider).use(Broken)) as gateway,
    ):
        assert ask(gateway.url, "chat", body("chat", history(1))).status_code == 200
        assert told(gateway)["unobserved"] == 1


def test_what_is_watched_is_not_refused() -> None:
    def strict(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(ContextWindowGuard, max_context_tokens=10, strict=True)

    with upstream(answer) as api, serving(Settings(Upstream(api.url), observe=True), strict) as gateway:
        assert ask(gateway.url, "chat", body("chat", history(1))).status_code == 200
        assert len(api.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_recordings_are_read_by_replay(
    form: str, stream: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "recorded"
    with upstream(answer) as api, serving(Settings(Upstream(api.url), record=folder)) as gateway:
        secret = [{"type": "mcp", "server_label": "x", "authorization": "sk-secret", "headers": {"a": "sk-secret"}}]
        asked = history(3)
        ask(gateway.url, form, body(form, asked, stream=stream, tools=secret), authorization="Bearer sk-secret")
        later = [*asked, Message.assistant("hello"), Message.user("thanks")]
        ask(gateway.url, form, body(form, later, stream=stream))
        gateway.settled()
    (path,) = folder.iterdir()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    text = path.read_text()
    assert "sk-secret" not in text
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["status"] for row in rows] == [200, 200]
    assert "hello" in json.dumps(rows[0]["response"])

    assert main(["replay", str(path), "--window", "8000", "--json", str(tmp_path / "out.json")]) in (0, 1)
    said = capsys.readouterr()
    assert "1 conversation" in said.out + said.err, said


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    from chatstack import WiringError

    (tmp_path / "file").write_text("")
    with (
        pytest.raises(WiringError, match=r"--record .*file"),
        serving(Settings(Upstream("http://127.0.0.1:1"), record=tmp_path / "file")),
    ):
        pass


def test_the_page_holds_no_text_and_wants_the_token() -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url), token="tok"), pruned) as gateway:
        shown = {"x-chatstack-token": "tok"}
        ask(gateway.url, "chat", body("chat", history(6), user="someone"), **shown)
        gateway.settled()
        for path in ("/chatstack/", "/chatstack/activity", "/metrics"):
            assert httpx2.get(gateway.url + path).status_code == 401
            assert httpx2.get(gateway.url + path, auth=("any", "tok")).status_code == 200
        page = httpx2.get(f"{gateway.url}/chatstack/", headers=shown)
        assert "default-src 'none'" in page.headers["content-security-policy"]
        seen = httpx2.get(f"{gateway.url}/chatstack/activity", headers=shown)
        assert "please look" not in seen.text
        (one,) = seen.json()["latest"]
        assert one["outcome"] == "edited"
        assert one["sent"] < one["bytes"] / 2
        assert httpx2.post(gateway.url + PATHS["chat"], content=b"{}", auth=("any", "tok")).status_code == 401


def test_metrics_are_what_the_dashboards_ask_for() -> None:
    with upstream(priced) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        ask(gateway.url, "chat", body("chat", history(6)))
        gateway.settled()
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        for form in FORMS:
            ask(gateway.url, form, body(form, history(6), stream=True))
        gateway.settled()
        text = httpx2.get(f"{gateway.url}/metrics").text
        for name in (
            "gen_ai_client_operation_duration_seconds_count",
            "gen_ai_client_operation_time_to_first_chunk_seconds_count",
            "gen_ai_client_operation_time_per_output_chunk_seconds_count",
            "gen_ai_client_token_usage",
            "gen_ai_invoke_agent_duration_seconds_count",
            "chatstack_compaction_",
            "chatstack_gateway_requests_total{",
            "chatstack_gateway_open_requests",
        ):
            assert name in text, name
        assert 'outcome="edited"' in text


def test_what_is_remembered_of_watched_prefixes_is_bounded() -> None:
    held = Prefixes(most=10, most_hashes=1_000)
    for number in range(500):
        length = 1 + number % 90
        hashes = array("q", range(number, number + length))
        held.put(number, hashes, 1.0)
        found = held.before([number, -1])
        assert found is not None
        assert found.hashes == hashes
        assert held.hashes <= 1_000
    alive = [number for number in range(500) if held.before([number, -1])]
    assert len(alive) <= 10
    assert held.hashes == sum(1 + number % 90 for number in alive)


def test_a_prefix_that_is_sent_again_is_counted_once() -> None:
    held = Prefixes()
    for length in (5, 9, 2):
        held.put(1, array("q", range(length)), 1.0)
        assert held.hashes == length


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("observe", [False, True])
def test_nothing_of_an_exchange_is_kept_when_it_is_over(observe: bool, stream: bool) -> None:
    """Connections and timers outlive a request, and must not hold it."""
    with upstream(answer) as api, serving(Settings(Upstream(api.url), observe=observe), pruned) as gateway:
        for _ in range(3):
            ask(gateway.url, "chat", body("chat", history(6), stream=stream))
        if observe:
            told(gateway)
        gateway.settled()
        assert none_left(Exchange, Tee)


def test_what_is_held_does_not_grow_with_the_conversations(
    monkeypatch: pytest.MonkeyPatch, spans: InMemorySpanExporter
) -> None:
    """Every bound is small here, so that it is reached by a few hundred conversations."""
    monkeypatch.setitem(Prefixes.__init__.__kwdefaults__, "most", 40)
    for name in ("sizes._MOST", "activity.LATEST"):
        monkeypatch.setattr(f"chatstack_gateway.{name}", 40)

    def small(provider: ChatClient) -> ChatStack:
        memory = ContextMemory(max_megabytes=0.5, max_entries=50)
        return ChatStack(provider, memory=memory).use(ClearThenDrop, max_tokens=2_000)

    said = ChatResponse(messages=(Message.assistant("hello"),), usage=Usage(input_tokens=9), model="m")

    async def run() -> list[int]:
        gateway = Gateway.of(Settings(Upstream("http://127.0.0.1:9"), observe=True), small)
        assert gateway.observer is not None
        scope = {"headers": [], "path": "/v1/chat/completions", "query_string": b""}
        held: list[int] = []
        for number in range(360):
            raw = body("chat", [Message.user(f"conversation {number}"), *history(1)])
            exchange = ModelRoute(gateway, "chat", "/v1/chat/completions")._exchange(scope, raw)  # type: ignore[arg-type]
            assert isinstance(exchange, Exchange)
            for listener in gateway.listeners:
                listener(exchange, said, 200)
            await gateway.observer.settled()
            if number % 120 == 119:
                spans.clear()  # the test's own
                gc.collect()
                held.append(sys.getallocatedblocks())
        assert gateway.activity.unobserved == 0
        await gateway.aclose()
        return held

    first, second, third = asyncio.run(run())
    # One block for each conversation would be 120.
    assert third - second < 60, (first, second, third)


def test_a_request_whose_model_has_an_endless_name_is_forwarded_unread() -> None:
    with upstream(answer) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        sent = body("chat", history(6), model="m" * 300)
        assert ask(gateway.url, "chat", sent).status_code == 200
        assert api.requests[-1].body == sent
        assert "mmm" not in httpx2.get(f"{gateway.url}/metrics").text
        assert "mmm" not in httpx2.get(f"{gateway.url}/chatstack/activity").text
