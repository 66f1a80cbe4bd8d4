"""Routes around the three where upstream speaks another wire, as the makers' own SDKs ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx2
import openai
import pytest
from upstreams import Seen, Server, Wire, serving, upstream
from upstreams import Upstream as Api

from chatstack_gateway import Settings, Upstream

NAMES = [f"model-{number}" for number in range(45)]
OPENAI_CARDS: list[dict[str, Any]] = [
    {"id": each, "object": "model", "created": 1_700_000_000, "owned_by": "x"} for each in NAMES
]
OPENAI_CARDS[3]["max_model_len"] = 32_768
ANTHROPIC_CARDS: list[dict[str, Any]] = [
    {"type": "model", "id": each, "display_name": each.title(), "created_at": "2023-11-14T22:13:20Z"} for each in NAMES
]
ANTHROPIC_CARDS[3]["max_input_tokens"] = 200_000


async def answer(seen: Seen, wire: Wire) -> None:
    """An API with 45 models, of the provider whose key it is shown."""
    is_anthropic = seen.header("x-api-key") is not None
    path = seen.line.split()[1].partition("?")[0]
    cards = ANTHROPIC_CARDS if is_anthropic else OPENAI_CARDS
    if path == "/v1/models":
        about: dict[str, Any] = {"has_more": False} if is_anthropic else {"object": "list"}
        await wire.whole(json.dumps({"data": cards, **about}).encode())
    elif path.rpartition("/")[2] in NAMES:
        await wire.whole(json.dumps(cards[NAMES.index(path.rpartition("/")[2])]).encode())
    else:
        told = {"type": "not_found_error", "message": "there is no such model"}
        await wire.whole(json.dumps({"type": "error", "error": told}).encode(), 404)


@contextmanager
def gateway(api: Any, **settings: Any) -> Iterator[tuple[Server, Api]]:
    with upstream(answer) as there, serving(Settings(Upstream(there.url), api=api, **settings)) as running:
        yield running, there


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_models_of_openai_are_listed_for_anthropics_sdk(api: str) -> None:
    with (
        gateway(api) as (running, there),
        anthropic.Anthropic(base_url=running.url, api_key="k", max_retries=0) as client,
    ):
        listed = [*client.models.list()]  # which asks for every page
        assert [each.id for each in listed] == NAMES
        assert [each.id for each in client.models.list(limit=1000)] == NAMES
        assert {(each.type, each.created_at.year) for each in listed} == {("model", 2023)}
        last = client.models.list(before_id=NAMES[30], limit=10)
        assert ([each.id for each in last.data], last.has_more) == (NAMES[20:30], True)
        assert [each.max_input_tokens for each in listed[2:5]] == [None, 32_768, None]
        assert client.models.retrieve(NAMES[3]).max_input_tokens == 32_768
        with pytest.raises(anthropic.NotFoundError, match="there is no such model"):
            client.models.retrieve("none")
        for seen in there.requests:
            assert (seen.header("authorization"), seen.header("x-api-key")) == ("Bearer k", None)
            assert seen.header("anthropic-version") is None


def test_models_of_anthropic_are_listed_for_openais_sdk() -> None:
    with (
        gateway("messages", key="servers") as (running, there),
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="k", max_retries=0) as client,
    ):
        listed = [*client.models.list()]
        assert [each.id for each in listed] == NAMES
        assert {each.created for each in listed} == {1_700_000_000}
        assert client.models.retrieve(NAMES[3]).object == "model"
        assert [(each.model_extra or {}).get("context_length") for each in listed[2:5]] == [None, 200_000, None]
        with pytest.raises(openai.NotFoundError, match="there is no such model"):
            client.models.retrieve("none")
        assert {seen.header("x-api-key") for seen in there.requests} == {"servers"}


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_models_of_the_callers_own_provider_are_forwarded(api: str) -> None:
    with gateway(api) as (running, _):
        headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"} if api == "messages" else {}
        cards = ANTHROPIC_CARDS if headers else OPENAI_CARDS
        assert httpx2.get(f"{running.url}/v1/models", headers=headers).json()["data"] == cards


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_tokens_are_counted_for_anthropics_sdk(api: str) -> None:
    with (
        gateway(api) as (running, there),
        anthropic.Anthropic(base_url=running.url, api_key="k", max_retries=0) as client,
    ):

        def counted(text: str, **fields: Any) -> int:
            asked: Any = [{"role": "user", "content": text}]
            return client.messages.count_tokens(model="gpt-5-mini", messages=asked, **fields).input_tokens

        short = counted("hello")
        assert 3 <= short <= 20
        assert 900 <= counted("hello " * 1000) - short <= 1_100
        tools = [{"name": "look", "description": "Look at a page.", "input_schema": {"type": "object"}}]
        assert short < counted("hello", system="be brief") < counted("hello", system="be brief", tools=tools)
        with pytest.raises(anthropic.BadRequestError, match=r"tools\[0\].type"):
            counted("hello", tools=[{"type": "web_search_20250305", "name": "web_search"}])
        assert not there.requests


@pytest.mark.parametrize("api", ["chat", "messages"])
def test_tokens_are_counted_for_openais_sdk(api: str) -> None:
    with (
        gateway(api) as (running, there),
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="k", max_retries=0) as client,
    ):
        counted = client.responses.input_tokens.count(model="m", input="hello " * 1000)
        assert (900 <= counted.input_tokens <= 1_500, counted.object) == (True, "response.input_tokens")
        assert not there.requests


def test_behind_a_prefix_the_routes_around_answer_too() -> None:
    with (
        gateway("chat") as (running, there),
        anthropic.Anthropic(base_url=f"{running.url}/anthropic", api_key="k", max_retries=0) as client,
    ):
        asked: Any = [{"role": "user", "content": "hello"}]
        assert 3 <= client.messages.count_tokens(model="gpt-5-mini", messages=asked).input_tokens <= 20
        assert [each.id for each in client.models.list(limit=1000)] == NAMES
        assert client.models.retrieve(NAMES[3]).id == NAMES[3]
        assert [seen.line.split()[1] for seen in there.requests] == ["/v1/models", f"/v1/models/{NAMES[3]}"]


def test_what_cannot_be_counted_or_asked_for_is_told_in_the_wires_form() -> None:
    with gateway("chat", token="tok") as (running, there):
        shown = {"x-chatstack-token": "tok", "anthropic-version": "2023-06-01"}
        count = f"{running.url}/v1/messages/count_tokens"
        for content, more in ((b"{", {}), (b"\xff", {}), (b"\x1f\x8b", {"content-encoding": "gzip"}), (b"[]", {})):
            got = httpx2.post(count, content=content, headers={**shown, **more})
            assert (got.status_code, got.json()["type"]) == (400, "error")
        assert httpx2.post(count, content=b"{}").status_code == 401
        assert httpx2.get(f"{running.url}/v1/models").status_code == 401
        assert not there.requests
    with serving(Settings(Upstream("http://127.0.0.1:9"), api="chat")) as running:
        got = httpx2.get(f"{running.url}/v1/models", headers={"anthropic-version": "2023-06-01"})
        assert (got.status_code, got.json()["type"]) == (502, "error")
