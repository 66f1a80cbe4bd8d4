"""A provider on another cloud, by name: the SDK's client for that cloud is made, and reads where and who from the
environment."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from chatstack import ChatStack, ContextWindowGuard, WiringError, from_config
from chatstack.config.recipes import Allowed
from chatstack.config.schema import pipeline_schema
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.anthropic.sdk import ANTHROPIC, AnthropicCloud
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.providers.openai.sdk import OPENAI, OpenAICloud
from chatstack.testing.provider_contract import ModelAnswer
from chatstack.testing.provider_server import Delivery, ReceivedRequest, ScriptedServer
from tests.contract import test_clouds as contract
from tests.contract import test_providers as at_home
from tests.test_config_schema import errors

NAMES = ("AZURE_", "AWS_", "ANTHROPIC_", "OPENAI_", "CLOUD_ML_", "GOOGLE_")
CLOUDS: dict[tuple[str, str], tuple[Any, dict[str, str], str]] = {
    ("openai", "azure"): (
        at_home.TestOpenAIChatClient,
        {"AZURE_OPENAI_ENDPOINT": "{}", "AZURE_OPENAI_API_KEY": "sk-cloud", "OPENAI_API_VERSION": "2024-10-21"},
        "/openai/deployments/m/chat/completions?api-version=2024-10-21",
    ),
    ("openai-responses", "azure"): (
        at_home.TestOpenAIResponsesClient,
        {"AZURE_OPENAI_ENDPOINT": "{}", "AZURE_OPENAI_API_KEY": "sk-cloud", "OPENAI_API_VERSION": "2024-10-21"},
        "/openai/responses?api-version=2024-10-21",
    ),
    ("anthropic", "bedrock"): (
        contract.TestAnthropicChatClientOnBedrock,
        {"ANTHROPIC_BEDROCK_BASE_URL": "{}", "AWS_REGION": "eu-west-1", "AWS_BEARER_TOKEN_BEDROCK": "sk-cloud"},
        "/model/m/invoke",
    ),
    ("anthropic", "bedrock-mantle"): (
        at_home.TestAnthropicChatClient,
        {"ANTHROPIC_BEDROCK_MANTLE_BASE_URL": "{}", "AWS_REGION": "eu-west-1", "AWS_BEARER_TOKEN_BEDROCK": "sk-cloud"},
        "/v1/messages",
    ),
    ("anthropic", "foundry"): (
        at_home.TestAnthropicChatClient,
        {"ANTHROPIC_FOUNDRY_BASE_URL": "{}", "ANTHROPIC_FOUNDRY_API_KEY": "sk-cloud"},
        "/v1/messages",
    ),
    ("anthropic", "vertex"): (
        at_home.TestAnthropicChatClient,
        {"ANTHROPIC_VERTEX_BASE_URL": "{}", "CLOUD_ML_REGION": "eu", "ANTHROPIC_VERTEX_PROJECT_ID": "p"},
        "/projects/p/locations/eu/publishers/anthropic/models/m:",
    ),
}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(NAMES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


def config(use: str, cloud: str, **options: object) -> dict[str, object]:
    provider = {"use": use, "model": "m", "cloud": cloud, "max_retries": 0, **options}
    return {"provider": provider, "layers": [{"use": "ContextWindowGuard", "max_context_tokens": 1_000}]}


@pytest.mark.parametrize(("use", "cloud"), list(CLOUDS))
@pytest.mark.parametrize("stream", [False, True])
def test_a_config_names_a_cloud_and_the_environment_says_the_rest(
    use: str, cloud: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, environment, path = CLOUDS[use, cloud]
    if cloud == "bedrock":
        pytest.importorskip("botocore")
    known = SimpleNamespace(expired=False, token="sk-cloud")
    monkeypatch.setattr("anthropic.lib.vertex._client.load_auth", lambda project_id: (known, "p"))

    async def run() -> list[ReceivedRequest]:
        reply = suite().answer(ModelAnswer(text="fine"), stream=stream)
        async with ScriptedServer(lambda _: Delivery(reply)) as server:
            for name, value in environment.items():
                monkeypatch.setenv(name, value.format(server.base_url))
            assert errors(config(use, cloud), pipeline_schema()) == []
            async with from_config(config(use, cloud)).build() as client:
                if stream:
                    async with client.get_streaming_response("hello") as answer:
                        assert (await answer.response()).text == "fine"
                else:
                    assert (await client.get_response("hello")).text == "fine"
            await client_of(client).aclose()
            return server.requests

    (request,) = asyncio.run(run())
    assert request.target.startswith(path)
    assert any("sk-cloud" in value for value in request.headers.values())


def client_of(client: Any) -> Any:
    while hasattr(client, "inner"):
        client = client.inner
    return client


def test_each_event_loop_gets_a_client_for_the_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    _, environment, _ = CLOUDS["anthropic", "foundry"]

    async def run(made: list[AnthropicChatClient]) -> str:
        reply = at_home.TestAnthropicChatClient().answer(ModelAnswer(text="fine"), stream=False)
        async with ScriptedServer(lambda _: Delivery(reply)) as server:
            for name, value in environment.items():
                monkeypatch.setenv(name, value.format(server.base_url))
            if not made:
                made.append(AnthropicChatClient("m", cloud="foundry", max_retries=0))
            return (await made[0].get_response("hello")).text

    made: list[AnthropicChatClient] = []
    assert [asyncio.run(run(made)), asyncio.run(run(made))] == ["fine", "fine"]


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        (OpenAIChatClient, {"cloud": "vertex"}, "OpenAIChatClient: cloud must be one of 'azure', not 'vertex'"),
        (AnthropicChatClient, {"cloud": []}, "AnthropicChatClient: cloud must be one of 'bedrock', 'bedrock-mantle', "),
        (OpenAIChatClient, {"cloud": "azure"}, "OpenAIChatClient: cloud='azure': Missing credentials."),
        (AnthropicChatClient, {"cloud": "vertex"}, "AnthropicChatClient: cloud='vertex': No region was given."),
        (AnthropicChatClient, {"cloud": "foundry"}, "AnthropicChatClient: cloud='foundry': Missing credentials."),
        (
            OpenAIResponsesClient,
            {"cloud": "azure", "api_key": "sk-1"},
            "OpenAIResponsesClient: pass api_key, or cloud='azure', whose credentials come from the environment",
        ),
        (AnthropicChatClient, {"cloud": "vertex", "client": object()}, "AnthropicChatClient: pass client, or cloud="),
        (AnthropicChatClient, {"cloud": "vertex", "base_url": "nowhere"}, "AnthropicChatClient: base_url must be like"),
    ],
)
def test_what_cannot_be_made_says_why(kind: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(WiringError) as caught:
        kind("m", **options)
    assert str(caught.value).startswith(told)


def test_a_config_of_somebody_else_chooses_no_cloud_unless_allowed() -> None:
    with pytest.raises(WiringError, match=r"provider\.cloud: this option is not allowed in this config"):
        from_config(config("anthropic", "vertex"), allowed=Allowed(providers=["anthropic"]))
    with pytest.raises(WiringError, match=r"provider\.cloud: expected .*'azure'"):
        from_config(config("openai", "vertex"))
    assert errors(config("openai", "vertex"), pipeline_schema()) != []


def test_the_clouds_of_a_hint_are_those_of_the_sdk() -> None:
    assert set(get_args(OpenAICloud)) == set(OPENAI.clouds)
    assert set(get_args(AnthropicCloud)) == set(ANTHROPIC.clouds)
    assert {cloud for _, cloud in CLOUDS} == {*OPENAI.clouds, *ANTHROPIC.clouds}


def test_a_summary_client_can_be_on_another_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_FOUNDRY_RESOURCE", "here")
    monkeypatch.setenv("ANTHROPIC_FOUNDRY_API_KEY", "sk-cloud")
    writer = {"use": "anthropic", "model": "m", "cloud": "foundry"}
    stack = from_config(
        {"layers": [{"use": "Summarizer", "max_tokens": 500, "summary_client": writer}]},
        ChatStack(AnthropicChatClient("m", cloud="foundry")).use(ContextWindowGuard, max_context_tokens=9).build(),
    )
    made: Any = stack.layers[0].options["summary_client"]
    assert made.info.server_address == "here.services.ai.azure.com"
