"""Several callers of one gateway: what one key meets says nothing of another one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import WHOLE
from asks import body, history
from test_fail_open import FORMS, ask, pruned
from upstreams import Seen, Wire, serving, upstream

from chatstack import ChatClient, ChatStack, ContextWindowGuard, Message, Summarizer
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


@pytest.mark.parametrize("form", FORMS)
def test_an_edit_that_is_refused_leaves_other_conversations_and_callers_alone(form: str) -> None:
    def messages(who: str) -> list[Message]:
        return [Message.user(f"task of {who}"), *history(6, last="continue")]

    async def picky(seen: Seen, wire: Wire) -> None:
        if len(seen.body) < 10_000 and seen.header("authorization") == "Bearer a":
            await wire.whole(b'{"error": {"message": "no"}}', 400)
        else:
            await wire.whole(json.dumps(WHOLE[form]).encode())

    with upstream(picky) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        for who, key, times in (("a", "a", 2), ("a", "a", 1), ("b", "b", 1), ("a", "b", 1)):
            before, sent = len(api.requests), body(form, messages(who))
            assert ask(gateway.url, form, sent, authorization=f"Bearer {key}").status_code == 200
            assert len(api.requests) - before == times
            assert (api.requests[-1].body == sent) is (key == "a")


@pytest.mark.parametrize("form", FORMS)
def test_an_edit_that_is_refused_stays_undone_under_another_system_prompt_and_other_betas(form: str) -> None:
    async def picky(seen: Seen, wire: Wire) -> None:
        if len(seen.body) < 10_000:
            await wire.whole(b'{"error": {"message": "no"}}', 400)
        else:
            await wire.whole(json.dumps(WHOLE[form]).encode())

    def sent(call: int) -> bytes:
        head = f"It is call {call}, and you are {'very ' * call}helpful."
        said = [*history(6), *(Message.user("continue") for _ in range(call))]
        if form == "responses":
            return body(form, said, instructions=head)
        return body(form, [Message.system(head), *said])

    with upstream(picky) as api, serving(Settings(Upstream(api.url)), pruned) as gateway:
        for call in range(3):
            headers = {"x-api-key": "k", "anthropic-beta": f"beta-{call}"}
            assert ask(gateway.url, form, sent(call), **headers).status_code == 200
        assert [len(each.body) < 10_000 for each in api.requests] == [True, False, False, False]


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
