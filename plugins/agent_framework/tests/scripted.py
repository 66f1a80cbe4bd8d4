"""A chat client of Agent Framework's that plays answers, with all layers that theirs have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    FunctionInvocationLayer,
    Message,
)
from agent_framework.observability import ChatTelemetryLayer


class TheirError(Exception):
    """As an SDK's."""

    def __init__(self, text: str, status_code: int) -> None:
        super().__init__(text)
        self.status_code = status_code


class TheirClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], ChatTelemetryLayer[Any], BaseChatClient[Any]):
    """Plays its answers in order, the last one again and again, and keeps what it was asked."""

    OTEL_PROVIDER_NAME: ClassVar[str] = "openai"

    def __init__(self, answers: Sequence[str | list[Content] | Exception], **options: Any) -> None:
        super().__init__(**options)
        self.model = "gpt-5-mini"
        self.answers = list(answers)
        self.asked: list[list[Message]] = []
        self.options: list[Mapping[str, Any]] = []
        self.closed = 0

    def _next(self, messages: Sequence[Message], options: Mapping[str, Any]) -> list[Content]:
        self.asked.append(list(messages))
        self.options.append(options)
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return [Content.from_text(answer)] if isinstance(answer, str) else answer

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        usage = {"input_token_count": 100, "output_token_count": 7, "cache_read_input_token_count": 64}
        if not stream:

            async def whole() -> ChatResponse:
                await asyncio.sleep(0)
                contents = self._next(messages, options)
                return ChatResponse(
                    messages=Message("assistant", contents),
                    model=self.model,
                    response_id="r-1",
                    finish_reason="stop",
                    usage_details=usage,
                    response_format=options.get("response_format"),
                )

            return whole()

        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            try:
                for content in self._next(messages, options):
                    pieces = [content]
                    if content.type == "text":
                        words = (content.text or "").split(" ")
                        pieces = [Content.from_text(w if w is words[0] else f" {w}") for w in words]
                    for piece in pieces:
                        await asyncio.sleep(0)
                        yield ChatResponseUpdate(contents=[piece], role="assistant", response_id="r-1")
                yield ChatResponseUpdate(contents=[Content.from_usage(usage)], model=self.model, finish_reason="stop")
            finally:
                self.closed += 1

        return self._build_response_stream(updates(), response_format=options.get("response_format"))
