"""Gemini keeps the contract of every provider, over real HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from standin import answer_reply, error_reply

from chatstack import ChatClient
from chatstack.testing import ProviderContract
from chatstack.testing.provider_contract import ModelAnswer, ProviderSettings, ServerRefusal, ServerReply, event_bytes
from chatstack_gemini import GeminiChatClient


@pytest.fixture(autouse=True)
def no_certificates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Plain HTTP needs none, and loading them is nearly all of the time that a client is made in."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))


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

    def answer(self, said: ModelAnswer, *, stream: bool) -> ServerReply:
        parts: list[dict[str, Any]] = [{"text": said.text}] if said.text else []
        if said.unknown:  # a field that the SDK has, and the client does not know
            parts.append({"text": "", "partMetadata": {"later": said.unknown}})
        return answer_reply(said, parts, stream=stream)

    def refusal(self, said: ServerRefusal) -> ServerReply:
        return error_reply(said)

    def failure_in_stream(self) -> bytes:
        return event_bytes({"error": {"code": 503, "message": "overloaded", "status": "UNAVAILABLE"}})
