"""The SDKs' own clients for other clouds keep the contract of providers, given as ``client``."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from typing import Any, TypeVar

import anthropic
import openai
import pytest

from chatstack import ChatClient
from chatstack.providers.anthropic import AnthropicChatClient
from chatstack.providers.openai import OpenAIChatClient, OpenAIResponsesClient
from chatstack.testing.provider_contract import ModelAnswer, ProviderSettings, ServerReply
from tests.contract import test_providers as at_home

pytestmark = pytest.mark.slow


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


class TestAnthropicChatClientOnBedrockMantle(at_home.TestAnthropicChatClient):
    """Over the endpoint that speaks Anthropic's own API."""

    def make(self, settings: ProviderSettings) -> ChatClient:
        client = anthropic.AsyncAnthropicBedrockMantle(
            api_key=settings.api_key, base_url=settings.base_url, aws_region="eu-west-1", **timing(settings)
        )
        return over(AnthropicChatClient, settings, client)


def frame(payload: dict[str, Any], **headers: str) -> bytes:
    """One message of the binary form that AWS streams in: lengths, headers, payload, and a checksum after each part."""
    named = [(f":{name.replace('_', '-')}".encode(), value.encode()) for name, value in headers.items()]
    head = b"".join(
        struct.pack(">B", len(name)) + name + struct.pack(">BH", 7, len(value)) + value for name, value in named
    )
    body = json.dumps(payload).encode()
    lengths = struct.pack(">II", len(head) + len(body) + 16, len(head))
    message = lengths + struct.pack(">I", zlib.crc32(lengths)) + head + body
    return message + struct.pack(">I", zlib.crc32(message))


class TestAnthropicChatClientOnBedrock(at_home.TestAnthropicChatClient):
    """Over the older endpoint, where a stream is one of binary messages, which the SDK reads by botocore."""

    def make(self, settings: ProviderSettings) -> ChatClient:
        pytest.importorskip("botocore")
        client = anthropic.AsyncAnthropicBedrock(
            api_key=settings.api_key, base_url=settings.base_url, aws_region="eu-west-1", **timing(settings)
        )
        return over(AnthropicChatClient, settings, client)

    def answer(self, said: ModelAnswer, *, stream: bool) -> ServerReply:
        reply = super().answer(said, stream=stream)
        if not stream:
            return reply
        events = (each.partition(b"data: ")[2].strip() for each in reply.pieces)
        chunks = ({"bytes": base64.b64encode(event).decode()} for event in events)
        frames = (frame(each, message_type="event", event_type="chunk") for each in chunks)
        return ServerReply(tuple(frames), content_type="application/vnd.amazon.eventstream")

    def failure_in_stream(self) -> bytes:
        return frame({"message": "down"}, message_type="exception", exception_type="serviceUnavailableException")
