"""Two gateways of two processes each behind a load balancer share a store: the prefix is the same, whoever answers."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest
from answers import WHOLE
from asks import LONG, body
from round_robin import round_robin
from test_fail_open import ask, form_of
from test_serve_command import running
from test_sharing import items
from upstreams import Seen, Wire, upstream

from chatstack import Message

PLUGINS = Path(__file__).resolve().parents[2]
sys.path += [str(PLUGINS / name / "tests") for name in ("redis", "postgres")]

PIPELINE = """
provider = { use = "openai", base_url = "%s", model = "unused" }
memory = { store = { %s }, scope = "tenant-1", store_timeout_seconds = 30 }
layers = [{ use = "Summarizer", max_tokens = 2000, keep_recent_turns = 1, counter = "chars" }]
"""
CONVERSATIONS, TURNS = 2, 12


@contextmanager
def redis() -> Iterator[str]:
    from redis_server import redis_server  # type: ignore[import-not-found]

    with redis_server() as server:
        yield f'use = "redis", url = "{server.url}"'


@contextmanager
def postgres() -> Iterator[str]:
    from postgres_server import postgres_server  # type: ignore[import-not-found]

    with postgres_server() as server:
        yield f"use = \"postgres\", conninfo = '''{server.conninfo}'''"


def talking() -> Any:
    """An API that gives long answers, each another one, and as many tokens as there are characters in four."""
    numbers = count()

    async def play(seen: Seen, wire: Wire) -> None:
        form = form_of(seen)
        is_summary = b"odd" not in seen.body
        text = f"summary number {next(numbers)}" if is_summary else f"answer {next(numbers)}: {LONG[:1500]}"
        whole = json.loads(json.dumps(WHOLE[form]))
        if form == "chat":
            whole["choices"][0]["message"]["content"] = text
        else:
            whole["content"][0]["text"] = text
        whole["usage"]["prompt_tokens" if form == "chat" else "input_tokens"] = len(seen.body) // 4
        await wire.whole(json.dumps(whole).encode())

    return play


def said(form: str, answer: Any) -> Message:
    text = answer["choices"][0]["message"]["content"] if form == "chat" else answer["content"][0]["text"]
    return Message.assistant(text)


@pytest.mark.parametrize(("store", "form"), [(redis, "messages"), (postgres, "chat")])
def test_the_prefix_is_the_same_whichever_process_answers(store: Any, form: str, tmp_path: Path) -> None:
    with store() as named, upstream(talking()) as api:
        path = tmp_path / "pipeline.toml"
        path.write_text(PIPELINE % (f"{api.url}/v1", named))
        with (
            running(str(path), "--workers", "2") as (_, one),
            running(str(path), "--workers", "2") as (_, two),
            round_robin([int(each.rpartition(":")[2]) for each in (one, two)]) as url,
        ):
            histories = [[Message.user(f"please look at {number}")] for number in range(CONVERSATIONS)]
            last: dict[int, list[Any]] = {}
            summaries = asked = 0
            for turn in range(TURNS):
                for number, history in enumerate(histories):
                    before = len(api.requests)
                    answered = ask(url, form, body(form, history))
                    assert answered.status_code == 200, answered.text
                    sent = api.requests[before:]
                    now = items(form, sent[-1].body)
                    if len(sent) == 1 and number in last:
                        assert now[: len(last[number])] == last[number], (turn, number)
                    assert len(json.dumps(now)) < 12_000  # what was summed up somewhere is nowhere sent in full
                    assert f"please look at {number}" in str(now)
                    history += [said(form, answered.json()), Message.user(f"and {turn}?")]
                    last[number] = now
                    summaries += len(sent) - 1
                    asked += 1
            # A conversation is summed up by whichever process it meets then, and the others find it.
            assert CONVERSATIONS <= summaries <= asked / 2
            assert len(answering(one, two, asked)) >= 3


def answering(one: str, two: str, asked: int) -> set[str]:
    """The processes that have answered; they tell each other every two seconds."""
    until = time.monotonic() + 30
    while True:
        found: set[str] = set()
        total = 0.0
        for url in (one, two):
            for line in httpx2.get(f"{url}/metrics").text.splitlines():
                if line.startswith("chatstack_gateway_requests_total{"):
                    found.add(url + line.partition('worker="')[2].partition('"')[0])
                    total += float(line.rpartition(" ")[2])
        if total == asked:
            return found
        assert time.monotonic() < until, (total, asked)
        time.sleep(0.3)
