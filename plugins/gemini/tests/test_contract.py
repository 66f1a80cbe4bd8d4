"""Gemini keeps the contract of every provider, over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

from standin import answer_reply, check_request, error_reply

from chatstack import ChatClient
from chatstack.testing import ProviderContract
from chatstack.testing.provider_contract import ModelAnswer, ProviderSettings, ServerRefusal, ServerReply, event_bytes
from chatstack.testing.provider_server import Delivery, ReceivedRequest, ScriptedServer
from chatstack_gemini import GeminiChatClient


class TestGeminiChatClient(ProviderContract):
    def make(self, settings: ProviderSettings) -> ChatClient:
        return GeminiChatClient(
            settings.model,
            api_key=settings.api_key,
            base_url=settings.base_url,
            timeout_seconds=settings.timeout_seconds,
            window_tokens=settings.window_tokens,
            max_retries=0,
        )

    @asynccontextmanager
    async def serving(
        self, script: Delivery | Callable[[ReceivedRequest], Delivery], *, timeout_seconds: float = 20.0
    ) -> AsyncGenerator[tuple[ChatClient, ScriptedServer], None]:
        """Hold every request of every check to the SDK's types."""
        async with super().serving(script, timeout_seconds=timeout_seconds) as (client, server):
            yield client, server
            for request in server.requests:
                check_request(request)

    def answer(self, said: ModelAnswer, *, stream: bool) -> ServerReply:
        parts: list[dict[str, Any]] = [{"text": said.text}] if said.text else []
        if said.unknown:  # a field that the SDK has, and the client does not know
            parts.append({"text": "", "partMetadata": {"later": said.unknown}})
        return answer_reply(said, parts, stream=stream)

    def refusal(self, said: ServerRefusal) -> ServerReply:
        return error_reply(said)

    def failure_in_stream(self) -> bytes:
        return event_bytes({"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}})
