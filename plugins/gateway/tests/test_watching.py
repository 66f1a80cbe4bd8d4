"""Observe mode: everything goes on untouched, and what the pipeline would have done is told."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import httpx2
import pytest
from answers import PATHS, WHOLE
from asks import body, history
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from test_fail_open import FORMS, answer, ask, form_of, pruned
from upstreams import Seen, Server, Wire, serving, upstream

from chatstack import ChatClient, ChatStack, ContextWindowGuard, Message, Summarizer
from chatstack.cli import main
from chatstack_gateway import Settings, Upstream


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
        text = httpx2.get(f"{gateway.url}/metrics").text
        for name in (
            "gen_ai_client_operation_duration_seconds_count",
            "gen_ai_client_token_usage",
            "gen_ai_invoke_agent_duration_seconds_count",
            "chatstack_compaction_",
            "chatstack_gateway_requests_total{",
            "chatstack_gateway_open_requests",
        ):
            assert name in text, name
        assert 'outcome="edited"' in text
