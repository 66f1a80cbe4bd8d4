"""The dashboards that are shipped work on what ``chatstack serve`` really exports: Prometheus scrapes two processes of
it, and Phoenix gets their spans. Both are real; what is not installed skips."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from answers import WHOLE
from asks import body, history
from test_fail_open import ask, form_of
from test_serve_command import running
from upstreams import Seen, Wire, upstream

sys.path.append(str(Path(__file__).resolve().parents[3]))  # the dashboards' own tests

from tests.dashboards import phoenix_server  # type: ignore[import-not-found]
from tests.dashboards.prometheus_server import prometheus_server  # type: ignore[import-not-found]
from tests.dashboards.shipped import ALERTS, QUERIES  # type: ignore[import-not-found]

MODEL = "gpt-5-mini"  # which has a price
PIPELINE = """
provider = { use = "openai", base_url = "%s/v1", model = "any" }
layers = [{ use = "ContextWindowGuard", max_context_tokens = 2000, prune_on_overflow = true }]
"""
OF_TOOLS = {"Duration of a tool call (p95), by tool", "Failed tool calls per minute, by tool and error"}
"""Panels without data: a gateway's callers run their tools."""
STREAMED = 5
TURNS = 8 + STREAMED
STREAM = [
    *[f'data: {{"id":"c","model":"{MODEL}","choices":[{{"index":0,"delta":{{"content":"x "}}}}]}}\n\n'] * 5,
    'data: {"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    'data: {"choices":[],"usage":{"prompt_tokens":500,"completion_tokens":5}}\n\ndata: [DONE]\n\n',
]


async def play(seen: Seen, wire: Wire) -> None:
    asked = json.loads(seen.body)
    if b"break down" in seen.body:
        await wire.whole(b'{"error":{"message":"down"}}', 500)
    elif asked.get("stream"):
        await wire.stream(*(each.encode() for each in STREAM))
    else:
        whole = json.loads(json.dumps(WHOLE[form_of(seen)]))
        usage = whole["usage"]
        usage["input_tokens" if "input_tokens" in usage else "prompt_tokens"] = len(seen.body) // 4
        await wire.whole(json.dumps({**whole, "model": MODEL}).encode())


def a_little_of_everything(url: str) -> None:
    """Calls on three wires, streamed and not: with edits, with one that cannot be cut, and one that fails."""
    for form in ("chat", "messages", "responses"):
        for turns in (1, 6):
            sent = body(form, history(turns), model=MODEL)
            assert ask(url, form, sent, **{"x-chatstack-conversation": f"{form}-{turns}"}).status_code == 200
    for _ in range(STREAMED):
        assert ask(url, "chat", body("chat", history(6), model=MODEL, stream=True)).status_code == 200
    assert ask(url, "chat", body("chat", history(0, last="x" * 9_000), model=MODEL)).status_code == 200
    assert ask(url, "chat", body("chat", history(1, last="break down"), model=MODEL)).status_code == 500


@pytest.fixture
def gateway(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    told: dict[str, str] = getattr(request, "param", {})
    with upstream(play) as api:
        path = tmp_path / "pipeline.toml"
        path.write_text(PIPELINE % api.url)
        with running(str(path), "--workers", "2", **told) as (_, url):
            yield url


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_every_panel_of_the_dashboard_but_those_of_tools_finds_what_is_exported(gateway: str, tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    folder.mkdir()

    def turns_seen(server: Any) -> float:
        return float(sum(value for _, value in server.query("gen_ai_invoke_agent_duration_seconds_count")))

    with prometheus_server(folder, scrapes=gateway.removeprefix("http://"), rules=ALERTS, job="gateway") as server:
        for time in (1, 2, 3, 4):  # until both processes have counted, with scrapes in between
            a_little_of_everything(gateway)
            server.wait_until(lambda times=time: turns_seen(server) == times * TURNS)
        silent = set()
        for query in QUERIES:
            found = server.query(query.expression)
            kept = set(re.findall(r"\w+", ", ".join(re.findall(r"\bby \(([^)]*)\)", query.expression)))) - {"le"}
            assert all(kept <= labels.keys() for labels, _ in found), query
            if not any(value > 0 for _, value in found):
                silent.add(query.panel)
        assert silent == OF_TOOLS
        ((_, failed),) = server.query(next(each.expression for each in QUERIES if each.panel == "Turns that failed"))
        assert failed == pytest.approx(1 / TURNS)
        assert {rule["health"] for rule in server.rules()} == {"ok"}
        assert server.values_of("job", "gen_ai_client_token_usage_sum") == ["gateway"]


@pytest.mark.timeout(3_600)
@pytest.mark.skipif(not phoenix_server.PYTHON, reason="CHATSTACK_PHOENIX names no Python that has arize-phoenix")
def test_phoenix_shows_the_turns_behind_a_gateway(tmp_path: Path) -> None:
    with phoenix_server.phoenix(tmp_path) as server, upstream(play) as api:
        path = tmp_path / "pipeline.toml"
        path.write_text(PIPELINE % api.url)
        told = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{server.url}/v1/traces",
            "OTEL_RESOURCE_ATTRIBUTES": "openinference.project.name=behind",
        }
        with running(str(path), "--workers", "2", **told) as (_, url):
            a_little_of_everything(url)
        # Sent at the latest when it stops, and each request's span after those within it.
        requests = {span.id: span for span in server.arrived("behind", TURNS, parent_id="null")}
        assert all(span.name.startswith("POST") for span in requests.values())
        roots = server.arrived("behind", TURNS, name="invoke_agent chat")
        spans = server.spans("behind")
        kinds = {(span.name.split()[0], span.kind) for span in spans if not span.name.startswith("POST")}
        assert kinds >= {("invoke_agent", "AGENT"), ("chat", "LLM"), ("context_guard", "GUARDRAIL")}
        assert {root.parent_id for root in roots} == requests.keys()
        warned = server.spans("behind", attribute="chatstack.severity:WARN")
        assert {span.trace_id for span in warned} <= {root.trace_id for root in roots}
        assert any("context_window_exceeded" in str(span.attributes) for span in warned)
        assert {span.attributes.get("session.id") for span in roots} >= {"chat-6", "messages-6", "responses-6"}
        failed = server.where("behind", "status_code == 'ERROR'")
        assert failed & requests.keys()
        assert "please look" not in json.dumps([dict(span.attributes) for span in spans])
