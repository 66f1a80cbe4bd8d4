"""Gemini, on Google's official SDK."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing

from chatstack.client.options import NonNegativeInt, PositiveFloat, PositiveInt
from chatstack.errors import InputError
from chatstack.providers.extras import WireObject
from chatstack.providers.failures import misshapen
from chatstack.providers.sdk_provider import SdkProvider
from chatstack.providers.sending import sendable
from chatstack.providers.settings import BaseUrl
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate
from chatstack_gemini.answers import AnswerFold
from chatstack_gemini.parts import PROVIDER
from chatstack_gemini.sdk import GEMINI, Connection, created, input_tokens, window_told
from chatstack_gemini.wire import request_to_wire

_NOT_IN_A_PATH = re.compile(r"[?&#%{}\s]|\.\.")
"""The name is a part of the address; the SDK refuses some of these, and does not say where they are."""


class GeminiChatClient(SdkProvider[Connection]):
    """Gemini by Google's API, or by Google Cloud's. The innermost of a stack.

    The key is ``api_key``, ``GOOGLE_API_KEY`` or ``GEMINI_API_KEY``; a ``client`` of yours (``google.genai.Client``,
    for Google Cloud with ``vertexai=True``) brings its own settings. Retries are the SDK's: ``max_retries`` of them
    (2 unless you say otherwise), with its backoff. ``timeout_seconds`` (600) is for one attempt, and the server's
    deadline for the whole answer, of 10 seconds at least; ``stall_seconds`` is for a silence while an answer streams
    (None: no limit). ``window_tokens`` states the model's window; else the API tells it.

    ``options.extra`` goes into the body, and is merged into what is there: ``extra={"generationConfig":
    {"thinkingConfig": {"includeThoughts": True}}}`` shows the model's thoughts. Tools that run at Google's are
    ``ProviderItem("gcp.gemini", '{"googleSearch": {}}')``. ``parallel_tool_calls=False`` is an ``InputError``: the API
    has no such switch.

    Raises ``WiringError`` when the key is missing or a setting is wrong, and the matching ``ProviderError`` from
    ``send``. A stream that ends before its ``finishReason`` is a ``BrokenStreamError``, never a short answer. A prompt
    that was blocked is an answer without content, with the finish reason ``refused``.
    """

    __slots__ = ()

    _sdk = GEMINI

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
        if client is None:
            timeout_seconds = 600 if timeout_seconds is None else timeout_seconds
            max_retries = 2 if max_retries is None else max_retries
        super().__init__(
            model,
            client=client,
            api_key=api_key,
            base_url=base_url,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
            stall_seconds=stall_seconds,
            http_client=http_client,
            window_tokens=window_tokens,
        )

    async def window_tokens(self, model: str = "") -> int | None:
        """Return the model's limit on input tokens, from its card; None if that has none."""
        return await window_told(self._client, model or self.model)

    async def count_tokens(self, request: ChatRequest, /) -> int | None:
        """Return the input of that request in tokens from the count endpoint."""
        return await input_tokens(self._client, self._model(request), self._body(request))

    def _model(self, request: ChatRequest) -> str:
        model = request.options.model or self.model
        if _NOT_IN_A_PATH.search(model):
            raise InputError("options.model: holds characters that no model's name has")
        return model

    def _body(self, request: ChatRequest) -> WireObject:
        return sendable(request, lambda: request_to_wire(request, self._model(request)))

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        body, stream, fold = self._body(request), request.stream, AnswerFold(request)
        raw: object = None
        chunks = GEMINI.exchange(
            lambda: created(self._client, self._model(request), body, stream=stream),
            streaming=stream,
            stall_seconds=self.stall_seconds,
        )
        async with aclosing(chunks):
            async for chunk, sent in chunks:
                raw = sent
                with misshapen(PROVIDER, streaming=stream):
                    shown = list(fold.updates(chunk))
                for update in shown:
                    yield update
        with misshapen(PROVIDER, streaming=stream):
            last = list(fold.ended(GEMINI.whole_answer(fold.whole()) if stream else raw))
        for update in last:
            yield update
