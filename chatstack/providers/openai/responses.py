"""The provider on OpenAI's Responses API. Import it from ``chatstack.providers.openai``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from msgspec.structs import replace

from chatstack.client.options import NonNegativeInt, PositiveFloat, PositiveInt
from chatstack.providers.asking import counted, translating
from chatstack.providers.failures import misshapen, stream_ended
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.hosts import is_openai
from chatstack.providers.openai.prompt_cache import ResponsesCache, with_cache_told
from chatstack.providers.openai.responses_answers import ResponsesAnswer
from chatstack.providers.openai.responses_options import problem_with, request_to_wire
from chatstack.providers.openai.sdk import OPENAI, Create, OpenAICloud, OpenAIProvider, body_fields
from chatstack.providers.sending import sendable
from chatstack.providers.settings import BaseUrl, check_choice
from chatstack.telemetry.propagation import trace_headers
from chatstack.values.native import NativeEdit
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate


class OpenAIResponsesClient(OpenAIProvider):
    """OpenAI's Responses API. The innermost of a stack.

    Takes the arguments of ``OpenAIChatClient``, save ``max_tokens_field``. ``cache="12h"`` sends the key, too, and
    asks, from GPT-5.6 on, that prefixes are kept for twelve hours (``prompt_cache_options``). Reasoning items,
    server-side tools and compactions are kept in the answer's message and go back as they came, to the server they came
    from alone. To keep reasoning where the server stores nothing, ask for it: ``ChatOptions(extra={"store": False,
    "include": ["reasoning.encrypted_content"]})``; what comes without is not sent back there. With a ``conversation``
    in ``extra``, the results of its calls are sent without what it holds already.

    Raises ``WiringError`` when the SDK or the key is missing or a setting is wrong, and the matching ``ProviderError``
    from ``send``. A stream without its last event is a ``BrokenStreamError``, never a short answer.
    """

    __slots__ = ()

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
        cache: ResponsesCache = "auto",
        cloud: OpenAICloud | None = None,
    ) -> None:
        check_choice(type(self).__name__, "cache", cache, ResponsesCache)
        OpenAIProvider.__init__(
            self,
            model,
            client=client,
            api_key=api_key,
            base_url=base_url,
            timeout_seconds=timeout_seconds,
            max_retries=max_retries,
            stall_seconds=stall_seconds,
            http_client=http_client,
            window_tokens=window_tokens,
            cloud=cloud,
        )
        self.cache = cache
        self.info = replace(with_cache_told(self.info, cache), reads_compactions=True)

    def native_problem(self, edit: NativeEdit, /) -> str:
        """Return why the API cannot carry out that edit; "" if it can."""
        return problem_with(edit)

    async def edits_natively(self, edit: NativeEdit, model: str = "") -> bool:
        """Return True if this is OpenAI's own server, and the edit a compaction."""
        return is_openai(self.info.server_address) and not problem_with(edit)

    @property
    def _create(self) -> Create:
        return self._client.responses.create

    async def count_tokens(self, request: ChatRequest, /) -> int | None:
        """Return the input of that request in tokens, by the count endpoint of this API; None if the SDK has none."""
        inputs = getattr(self._client.responses, "input_tokens", None)
        if inputs is None:
            return None
        body = sendable(request, lambda: request_to_wire(request, model=self.model, server=self.info.server_address))
        fields = body_fields(inputs.count)
        taken = {name: value for name, value in body.items() if fields is None or name in fields}
        with translating(OPENAI.translated):
            found: object = await inputs.count(**taken, extra_headers=trace_headers() or None)
        return counted(getattr(found, "input_tokens", None), PROVIDER)

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        body = sendable(request, lambda: request_to_wire(request, model=self.model, server=self.info.server_address))
        answer = ResponsesAnswer(server=self.info.server_address)
        raw: object = None
        async with aclosing(self._exchange(body, request)) as events:
            async for event, sdk_event in events:
                with misshapen(PROVIDER, streaming=request.stream):
                    shown = list(answer.add(event, streaming=request.stream))
                # A stream ends with an event that contains the response.
                raw = getattr(sdk_event, "response", sdk_event)
                for update in shown:
                    yield update
        if not answer.is_complete:
            raise stream_ended(PROVIDER, "response.completed")
        with misshapen(PROVIDER, streaming=request.stream):
            last = list(answer.finish(raw))
        for update in last:
            yield update
