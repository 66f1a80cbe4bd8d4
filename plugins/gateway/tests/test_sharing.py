"""Several processes, and several gateways, with one store: a request that meets another one finds the same prefix."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from answers import WHOLE
from asks import LONG, body
from test_fail_open import FORMS, ask, form_of
from test_serve_command import running
from upstreams import Seen, Wire, serving, upstream

from chatstack import Message
from chatstack_gateway import Settings, Upstream
from chatstack_gateway.workers import merged_activity, merged_metrics

PIPELINE = """
provider = { use = "openai", base_url = "%s", model = "unused" }
memory = { store = { use = "sqlite", path = "%s" }, scope = "tenant-1" }
layers = [{ use = "Summarizer", max_tokens = 2000, keep_recent_turns = 1, counter = "chars" }]
"""


def turns(count: int) -> list[Message]:
    """A conversation of so many turns, the last one a question."""
    found = [Message.user("please look")]
    for turn in range(count):
        found += [Message.assistant(f"{turn}: {LONG[:1500]}"), Message.user(f"and {turn}?")]
    return found


def summarizing() -> Any:
    """An API whose every summary is another one."""
    written = 0

    async def play(seen: Seen, wire: Wire) -> None:
        nonlocal written
        form = form_of(seen)
        whole = json.loads(json.dumps(WHOLE[form]))
        if b"odd" not in seen.body:  # no request of the caller's
            written += 1
            text = f"summary number {written} of what was said"
            if form == "chat":
                whole["choices"][0]["message"]["content"] = text
            elif form == "messages":
                whole["content"][0]["text"] = text
            else:
                whole["output"][0]["content"][0]["text"] = text
        await wire.whole(json.dumps(whole).encode())

    return play


def items(form: str, raw: bytes) -> list[Any]:
    return list(json.loads(raw)["input" if form == "responses" else "messages"])


@pytest.mark.parametrize("form", FORMS)
def test_what_one_gateway_decided_another_replays(form: str, tmp_path: Path) -> None:
    with upstream(summarizing()) as api:
        path = tmp_path / "pipeline.toml"
        path.write_text(PIPELINE % (f"{api.url}/v1", tmp_path / "decisions.sqlite"))
        settings = Settings(Upstream(api.url), pipeline=str(path))
        with serving(settings) as one, serving(settings) as other:
            last: list[Any] = []
            asked = 0
            for count in range(3, 12):
                gateway = one if count % 2 else other
                answered = ask(
                    gateway.url, form, body(form, turns(count)), **{"authorization": "Bearer k", "idempotency-key": "i"}
                )
                assert answered.status_code == 200
                own = [each for each in api.requests if b"odd" in each.body]
                now = items(form, own[-1].body)
                summaries = len(api.requests) - len(own)
                if last and summaries == asked:
                    assert now[: len(last)] == last, count
                last, asked = now, summaries
            assert 1 <= asked <= 4
            assert all(each.header("authorization") == "Bearer k" for each in api.requests)
            asides = [each for each in api.requests if b"odd" not in each.body]
            assert all(each.header("idempotency-key") is None for each in asides)
            assert b"summary number" in api.requests[-1].body


def test_workers_share_decisions_figures_and_the_switch(tmp_path: Path) -> None:
    with upstream(summarizing()) as api:
        path = tmp_path / "pipeline.toml"
        path.write_text(PIPELINE % (f"{api.url}/v1", tmp_path / "decisions.sqlite"))
        with running(str(path), "--workers", "2", CHATSTACK_ADMIN_TOKEN="adm") as (_, url):
            workers: set[str] = set()
            last: list[Any] = []
            asked, sent = 0, 0
            until = time.monotonic() + 60
            for count in [3, 4, *[5] * 40]:
                ask(url, "chat", body("chat", turns(count)))  # each on a connection of its own
                sent += 1
                own = [each for each in api.requests if b"odd" in each.body]
                summaries = len(api.requests) - len(own)
                now = items("chat", own[-1].body)
                if last and summaries == asked:
                    assert now[: len(last)] == last
                last, asked = now, summaries
            assert asked <= 2
            while True:
                text = httpx2.get(f"{url}/metrics").text
                workers = {line.split('worker="')[1].split('"')[0] for line in text.splitlines() if "worker=" in line}
                figures = httpx2.get(f"{url}/chatstack/activity").json()
                if len(workers) == 2 and sum(figures["outcomes"].values()) == sent:
                    break
                assert time.monotonic() < until, (workers, figures["outcomes"], sent)
                time.sleep(0.2)

            admin = {"authorization": "Bearer adm"}
            assert httpx2.put(f"{url}/chatstack/editing", json={"editing": False}, headers=admin).status_code == 200
            changed = time.monotonic()
            came, streak = body("chat", turns(6)), 0
            while streak < 20:
                ask(url, "chat", came)
                streak = streak + 1 if api.requests[-1].body == came else 0
                assert time.monotonic() < changed + 30
            assert time.monotonic() - changed < 25


def test_a_worker_with_a_bad_pipeline_never_starts(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = tmp_path / "p.toml"
    path.write_text('provider = { use = "openai", model = "m" }\nlayers = ["NoSuchLayer"]')
    command = [sys.executable, "-m", "chatstack", "serve", str(path), "--workers", "2", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "'NoSuchLayer' is no layer" in done.stderr
    assert "Traceback" not in done.stderr


def test_metrics_of_several_processes_are_one_exposition() -> None:
    one = '# HELP a_total x\n# TYPE a_total counter\na_total{b="1"} 2.0\n# HELP c y\n# TYPE c gauge\nc 1.0\n'
    assert merged_metrics([("1", one), ("2", one)]) == (
        '# HELP a_total x\n# TYPE a_total counter\na_total{worker="1",b="1"} 2.0\na_total{worker="2",b="1"} 2.0\n'
        '# HELP c y\n# TYPE c gauge\nc{worker="1"} 1.0\nc{worker="2"} 1.0\n'
    )


def test_figures_of_several_processes_are_sums() -> None:
    one = {
        "started": 2.0,
        "outcomes": {"edited": 1, "gave_up": 0},
        "bytes_came": 5,
        "observed": {"usd": 0.5, "cuts": 0},
        "latest": [{"at": 3.0}],
    }
    two = {
        "started": 1.0,
        "outcomes": {"undone": 2},
        "bytes_came": 7,
        "observed": {"usd": 0.25, "cuts": 0},
        "latest": [{"at": 1.0}],
    }
    assert merged_activity([one, two]) == {
        "started": 1.0,
        "outcomes": {"edited": 1, "gave_up": 0, "undone": 2},
        "bytes_came": 12,
        "observed": {"usd": 0.75, "cuts": 0},
        "latest": [{"at": 1.0}, {"at": 3.0}],
    }
