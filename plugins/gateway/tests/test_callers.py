"""Several callers of one gateway: what one key meets says nothing of another one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import WHOLE
from test_fail_open import ask
from upstreams import Seen, Wire, serving, upstream

from chatstack import ChatClient, ChatStack, ContextWindowGuard, Summarizer
from chatstack_gateway import Settings, Upstream

CARD = {"id": "own-model", "object": "model", "max_input_tokens": 16_000}


def talk(who: str) -> list[dict[str, Any]]:
    """A conversation of about 40,000 tokens."""
    found = [{"role": "user", "content": f"task of {who}"}]
    for turn in range(10):
        found += [
            {"role": "assistant", "content": f"ok {turn}"},
            {"role": "user", "content": f"{turn} {'word ' * 4000}"},
        ]
    return found


def asked(who: str) -> bytes:
    return json.dumps({"model": "own-model", "max_tokens": 99, "messages": talk(who)}).encode()


def guarded(provider: ChatClient) -> ChatStack:
    return ChatStack(provider).use(ContextWindowGuard, max_context_tokens="auto", prune_on_overflow=True)


@pytest.mark.parametrize("status", [401, 403, 404, 429])
def test_a_key_that_is_refused_leaves_the_window_to_the_others(status: int) -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        if seen.header("authorization") != "Bearer good":
            await wire.whole(b'{"error": {"message": "no"}}', status)
        else:
            await wire.whole(json.dumps(CARD if seen.line.startswith("GET") else WHOLE["chat"]).encode())

    with upstream(play) as api, serving(Settings(Upstream(api.url)), guarded) as gateway:
        assert ask(gateway.url, "chat", asked("a"), authorization="Bearer bad").status_code == status
        sent = asked("b")
        assert ask(gateway.url, "chat", sent, authorization="Bearer good").status_code == 200
        assert len(api.requests[-1].body) < len(sent) / 2


def test_a_limit_for_those_without_a_beta_is_none_for_those_with_it() -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        if seen.line.startswith("GET"):
            await wire.whole(json.dumps({**CARD, "max_input_tokens": 1_000_000}).encode())
        elif not seen.header("anthropic-beta") and len(seen.body) > 100_000:
            told = {"type": "invalid_request_error", "message": "prompt is too long: 40000 tokens > 20000 maximum"}
            await wire.whole(json.dumps({"type": "error", "error": told}).encode(), 400)
        else:
            await wire.whole(json.dumps(WHOLE["messages"]).encode())

    key = {"x-api-key": "k"}
    with upstream(play) as api, serving(Settings(Upstream(api.url)), guarded) as gateway:
        assert ask(gateway.url, "messages", asked("a"), **key).status_code == 200
        assert len(api.requests[-1].body) < 100_000
        sent = asked("b")
        beta = {"anthropic-beta": "context-1m-2025-08-07"}
        assert ask(gateway.url, "messages", sent, **key, **beta).status_code == 200
        assert api.requests[-1].body == sent


def test_a_key_that_asks_too_often_leaves_summaries_to_the_others() -> None:
    async def play(seen: Seen, wire: Wire) -> None:
        if seen.header("authorization") != "Bearer good":
            await wire.whole(b'{"error": {"code": "rate_limit_exceeded"}}', 429)
        else:
            await wire.whole(json.dumps(WHOLE["chat"]).encode())

    def summarized(provider: ChatClient) -> ChatStack:
        return ChatStack(provider).use(Summarizer, max_tokens=8_000)

    with upstream(play) as api, serving(Settings(Upstream(api.url)), summarized) as gateway:
        assert ask(gateway.url, "chat", asked("a"), authorization="Bearer limited").status_code == 429
        sent = asked("b")
        assert ask(gateway.url, "chat", sent, authorization="Bearer good").status_code == 200
        assert len(api.requests[-1].body) < len(sent) / 2
