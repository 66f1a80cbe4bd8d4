"""The SDKs' own clients for other clouds keep the contract of providers, given as ``client``."""

from __future__ import annotations

from typing import Any, TypeVar

import anthropic
import openai

from chatstack import ChatClient
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.testing.provider_contract import ProviderSettings
from tests.contract import test_providers as at_home
from tests.contract.test_providers import no_certificates

__all__ = ["no_certificates"]


def timing(given: ProviderSettings) -> dict[str, Any]:
    return {"max_retries": 0} | ({} if given.timeout_seconds is None else {"timeout": given.timeout_seconds})


def azure(given: ProviderSettings) -> openai.AsyncAzureOpenAI:
    return openai.AsyncAzureOpenAI(
        azure_endpoint=given.base_url, api_version="2024-10-21", api_key=given.api_key, **timing(given)
    )


P = TypeVar("P", OpenAIChatClient, OpenAIResponsesClient, AnthropicChatClient)


def over(kind: type[P], settings: ProviderSettings, sdk: Any) -> P:
    """The provider on that client of the SDK's, which it closes, too, as the contract looks for open connections."""

    async def aclose(_: object) -> None:
        await sdk.close()

    owner = type(kind.__name__, (kind,), {"__slots__": (), "aclose": aclose})
    made: P = owner(settings.model, client=sdk, window_tokens=settings.window_tokens)
    return made


class TestOpenAIChatClientOnAzure(at_home.TestOpenAIChatClient):
    def make(self, settings: ProviderSettings) -> ChatClient:
        return over(OpenAIChatClient, settings, azure(settings))


class TestOpenAIResponsesClientOnAzure(at_home.TestOpenAIResponsesClient):
    def make(self, settings: ProviderSettings) -> ChatClient:
        return over(OpenAIResponsesClient, settings, azure(settings))


class TestAnthropicChatClientOnVertex(at_home.TestAnthropicChatClient):
    def make(self, settings: ProviderSettings) -> ChatClient:
        client = anthropic.AsyncAnthropicVertex(
            region="europe-west1",
            project_id="contract",
            access_token=settings.api_key,
            base_url=f"{settings.base_url}/v1",
            **timing(settings),
        )
        return over(AnthropicChatClient, settings, client)


class TestAnthropicChatClientOnFoundry(at_home.TestAnthropicChatClient):
    def make(self, settings: ProviderSettings) -> ChatClient:
        client = anthropic.AsyncAnthropicFoundry(
            api_key=settings.api_key, base_url=settings.base_url, **timing(settings)
        )
        return over(AnthropicChatClient, settings, client)


class TestAnthropicChatClientOnBedrock(at_home.TestAnthropicChatClient):
    """Over the endpoint that speaks Anthropic's own API. The older one streams a binary form, by botocore."""

    def make(self, settings: ProviderSettings) -> ChatClient:
        client = anthropic.AsyncAnthropicBedrockMantle(
            api_key=settings.api_key, base_url=settings.base_url, aws_region="eu-west-1", **timing(settings)
        )
        return over(AnthropicChatClient, settings, client)
