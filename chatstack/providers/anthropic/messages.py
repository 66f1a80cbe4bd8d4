"""Anthropic's Messages API, on the official SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from chatstack.client.options import NonNegativeInt, PositiveFloat, PositiveInt
from chatstack.providers.anthropic.blocks import PROVIDER
from chatstack.providers.anthropic.events import AnswerFold
from chatstack.providers.anthropic.sdk import exchange, input_tokens, sdk_client, sdk_info, traced_once, window_told
from chatstack.providers.anthropic.wire import DEFAULT_MAX_TOKENS, request_to_wire
from chatstack.providers.extras import WireObject
from chatstack.providers.failures import misshapen
from chatstack.providers.sdk_provider import SdkProvider
from chatstack.providers.sending import sendable
from chatstack.providers.settings import BaseUrl, check_settings
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate


class AnthropicChatClient(SdkProvider):
    """Claude, and every server that speaks Anthropic's Messages API, by ``base_url``. The innermost of a stack.

    The key is ``api_key`` or ``ANTHROPIC_API_KEY``; a ``client`` of yours (``AsyncAnthropic``, or its kin for other
    clouds) brings its own. The SDK's own spans are left out where a ``ModelTracer`` opens one. Retries are the SDK's:
    ``max_retries`` of them, with its back-off. ``timeout_seconds`` is for one attempt; ``stall_seconds`` for a
    silence on the wire while an answer streams (None: no limit). ``window_tokens`` states the model's window where
    nobody else knows it.

    The API demands a bound on every answer: 8,192 tokens where the options name none. ``options.extra`` goes into the
    body; its ``betas``, a list of names, becomes the header ``anthropic-beta``:
    ``extra={"betas": ["context-management-2025-06-27"], "context_management": {...}}``.

    Raises ``WiringError`` when the SDK or the key is missing or a setting is wrong, and the ``ProviderError`` that fits
    from ``send``. A stream that ends before its ``message_stop`` is a ``BrokenStreamError``, never a short answer.
    """

    __slots__ = ("_client",)

    def __init__(
        self,
        model: str,
        *,
        client: object | None = None,
        api_key: str | None = None,
        base_url: BaseUrl | None = None,
        timeout_seconds: PositiveFloat | None = None,
        max_retries: NonNegativeInt | None = None,
        stall_seconds: PositiveFloat | None = 120,
        http_client: object | None = None,
        window_tokens: PositiveInt | None = None,
    ) -> None:
        check_settings(
            "AnthropicChatClient",
            model=model,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
            stall_seconds=stall_seconds,
            window_tokens=window_tokens,
        )
        self._client = sdk_client(
            "AnthropicChatClient",
            client,
            api_key=api_key,
            base_url=base_url,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
            http_client=http_client,
        )
        info = sdk_info(self._client, model, window_tokens)
        # The SDK would close an HTTP client of the caller's with its own.
        close = self._client.close if client is None and http_client is None else None
        SdkProvider.__init__(self, model, info, stall_seconds=stall_seconds, close=close)

    async def window_tokens(self, model: str = "") -> int | None:
        """The model's window by the models endpoint (``max_input_tokens``); None where nothing is told."""
        return await window_told(self._client, model or self.model)

    async def count_tokens(self, request: ChatRequest, /) -> int | None:
        """The input of that request in tokens by the count endpoint; None on a cloud that has none."""
        return await input_tokens(self._client, self._body(request))

    def _body(self, request: ChatRequest) -> WireObject:
        return sendable(request, lambda: {"model": self.model, **request_to_wire(request)})

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        body = self._body(request)
        body["stream"] = is_streamed = request.stream or _must_stream(body)
        fold = AnswerFold()
        raw: object = None
        async with aclosing(exchange(traced_once(self._client), body, stall_seconds=self.stall_seconds)) as events:
            async for event, sent in events:
                raw = sent
                with misshapen(PROVIDER, streaming=is_streamed):
                    shown = list(fold.updates(event))
                for update in shown:
                    yield update
                if fold.is_done:
                    break
        with misshapen(PROVIDER, streaming=is_streamed):
            last = list(fold.ended(_as_sdk_message(fold.answer) if is_streamed else raw))
        for update in last:
            yield update


def _must_stream(body: WireObject) -> bool:
    """Whether an answer of that size must stream: the SDK refuses it whole, by a ``ValueError``, for some models."""
    bound = body.get("max_tokens")
    return isinstance(bound, int) and bound > DEFAULT_MAX_TOKENS


def _as_sdk_message(answer: WireObject) -> object:
    """A streamed answer as the object that it would have been, had it come whole."""
    from anthropic.types import Message

    return Message.construct(**answer)  # type: ignore[arg-type]
