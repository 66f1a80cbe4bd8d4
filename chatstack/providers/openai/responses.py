"""The provider on OpenAI's Responses API. Import it from ``chatstack.providers.openai``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from chatstack.client.options import NonNegativeInt, PositiveFloat, PositiveInt
from chatstack.errors import BrokenStreamError
from chatstack.providers.asking import counted, translating
from chatstack.providers.failures import misshapen, stream_ended
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.responses_answers import ResponsesAnswer
from chatstack.providers.openai.responses_options import request_to_wire
from chatstack.providers.openai.sdk import body_fields, exchange, sdk_client, sdk_info, translated, window_told
from chatstack.providers.sdk_provider import SdkProvider
from chatstack.providers.sending import sendable
from chatstack.providers.settings import BaseUrl, check_settings
from chatstack.telemetry.propagation import trace_headers
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate


class OpenAIResponsesClient(SdkProvider):
    """OpenAI's Responses API. The innermost of a stack.

    Takes what ``OpenAIChatClient`` takes. Reasoning items, server-side tools and compactions are kept in the answer's
    message and go back as they came. To have reasoning kept where the server stores nothing, ask for it:
    ``ChatOptions(extra={"store": False, "include": ["reasoning.encrypted_content"]})``.

    Raises ``WiringError`` when the SDK or the key is missing or a setting is wrong, and the ``ProviderError`` that fits
    from ``send``. A stream without its last event is a ``BrokenStreamError``, never a short answer.
    """

    __slots__ = ("_client", "_fields")

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
            "OpenAIResponsesClient",
            model=model,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
            stall_seconds=stall_seconds,
            window_tokens=window_tokens,
        )
        self._client = sdk_client(
            "OpenAIResponsesClient",
            client,
            api_key=api_key,
            base_url=base_url,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
            http_client=http_client,
        )
        self._fields = body_fields(self._client.responses.create)
        info = sdk_info(self._client, model, window_tokens)
        # The SDK would close an HTTP client of the caller's with its own.
        close = self._client.close if client is None and http_client is None else None
        SdkProvider.__init__(self, model, info, stall_seconds=stall_seconds, close=close)

    async def window_tokens(self, model: str = "") -> int | None:
        """The model's window, where the server tells it among its models (vLLM, llama.cpp, OpenRouter); else None."""
        return await window_told(self._client, model or self.model)

    async def count_tokens(self, request: ChatRequest, /) -> int | None:
        """The input of that request in tokens, by the count endpoint of this API; None if the SDK has none."""
        inputs = getattr(self._client.responses, "input_tokens", None)
        if inputs is None:
            return None
        body = sendable(request, lambda: request_to_wire(request, model=self.model))
        fields = body_fields(inputs.count)
        taken = {name: value for name, value in body.items() if fields is None or name in fields}
        with translating(lambda error: translated(error, streaming=False)):
            found: object = await inputs.count(**taken, extra_headers=trace_headers() or None)
        return counted(getattr(found, "input_tokens", None), PROVIDER)

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        body = sendable(request, lambda: request_to_wire(request, model=self.model))
        answer = ResponsesAnswer()
        raw: object = None
        events = exchange(self._client.responses.create, body, self._fields, stall_seconds=self.stall_seconds)
        async with aclosing(events):
            try:
                async for event, sdk_event in events:
                    with misshapen(PROVIDER, streaming=request.stream):
                        shown = list(answer.add(event, streaming=request.stream))
                    # What ends a stream is an event around the response.
                    raw = getattr(sdk_event, "response", sdk_event)
                    for update in shown:
                        yield update
            except BrokenStreamError:
                # Behind the last event there is nothing to lose.
                if not answer.is_complete:
                    raise
        if not answer.is_complete:
            raise stream_ended(PROVIDER, "response.completed")
        with misshapen(PROVIDER, streaming=request.stream):
            last = list(answer.finish(raw))
        for update in last:
            yield update
