"""OpenAI's chat completions, and every server that speaks them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

from chatstack.client.options import NonNegativeInt, PositiveFloat, PositiveInt
from chatstack.errors import BrokenStreamError, ServerError
from chatstack.providers.extras import WireObject
from chatstack.providers.failures import misshapen, stream_ended
from chatstack.providers.openai.chat_answers import ChatAnswer
from chatstack.providers.openai.chat_completions import CompletionFold
from chatstack.providers.openai.chat_ids import ids_taken, with_ids
from chatstack.providers.openai.chat_options import MaxTokensField, tools_known
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.chat_results import takes_text_alone, with_joined_texts, with_text_results
from chatstack.providers.openai.chat_wire import request_to_wire
from chatstack.providers.openai.prompt_cache import ChatCache, with_cache_told
from chatstack.providers.openai.sdk import Create, OpenAICloud, OpenAIProvider
from chatstack.providers.sending import sendable
from chatstack.providers.settings import BaseUrl, check_choice
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate


class OpenAIChatClient(OpenAIProvider):
    """OpenAI's chat completions, and every server that speaks them, by ``base_url``. The innermost of a stack.

    The key is ``api_key`` or ``OPENAI_API_KEY``; a ``client`` of yours (``AsyncOpenAI``, ``AsyncAzureOpenAI``) brings
    its own. ``cloud="azure"`` makes the SDK's client for Azure, which reads key, address and the API's version from
    the environment. Retries are the SDK's: ``max_retries`` of them, with its backoff. ``timeout_seconds`` is for one
    attempt; ``stall_seconds`` for the silence in a stream, before its first event too (None: no limit).
    ``max_tokens_field="max_tokens"`` is for servers that know only the older name. ``window_tokens`` states the model's
    window, for models of which neither the server nor the published table has it; it wins over both.

    ``cache`` is about OpenAI's prompt cache. ``"auto"`` sends OpenAI itself a ``prompt_cache_key``, a digest of the
    conversation's id, which brings the calls of one conversation to where its prefix is cached; other servers get none,
    as they may refuse what they do not know. ``"key"`` sends it to any server (Azure knows it, too), ``"24h"`` also
    asks, for models that support it, that prefixes are kept for a day (``prompt_cache_retention``), ``"off"`` sends
    neither.

    Pictures and files that tools return go to OpenAI itself, and to Azure, in a message of the user's behind the
    results, as their API takes only text in a result; to other servers they go within it. Ids of calls that are too
    long for them, as other servers give them, are replaced, and so are those that Mistral does not take.

    Reasoning that one such server sent goes to each other one, too (``reasoning_content`` and the like): hosts of one
    model need it there. A server that knows no such field may refuse the request.

    Raises ``WiringError`` when the SDK or the key is missing or a setting is wrong, and the matching ``ProviderError``
    from ``send``. A stream that ends without a finish reason is a ``BrokenStreamError``, never a short answer.
    """

    __slots__ = ("max_tokens_field",)

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
        max_tokens_field: MaxTokensField = "max_completion_tokens",
        window_tokens: PositiveInt | None = None,
        cache: ChatCache = "auto",
        cloud: OpenAICloud | None = None,
    ) -> None:
        check_choice(type(self).__name__, "cache", cache, ChatCache)
        check_choice(type(self).__name__, "max_tokens_field", max_tokens_field, MaxTokensField)
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
        self.max_tokens_field: MaxTokensField = max_tokens_field
        self.cache = cache
        self.info = with_cache_told(self.info, cache)

    @property
    def _create(self) -> Create:
        return self._client.chat.completions.create

    async def count_tokens(self, request: ChatRequest, /) -> int | None:
        """Always None: chat completions have no endpoint that counts."""
        return None

    def _written(self, request: ChatRequest) -> WireObject:
        is_openais = takes_text_alone(self._client, self.info.server_address)
        if is_openais and request.options.tools:
            request = request.but(options=request.options.but(tools=tools_known(request.options.tools)))
        body = request_to_wire(request, model=self.model, max_tokens_field=self.max_tokens_field)
        messages = cast("list[WireObject]", body["messages"])
        ids = ids_taken(self.info.server_address, is_openais=is_openais)
        if ids is not None:
            messages = with_ids(messages, ids)
        body["messages"] = with_text_results(messages) if is_openais else with_joined_texts(messages)
        return body

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        body = sendable(request, lambda: self._written(request))
        answer = ChatAnswer(request)
        completion = CompletionFold()
        raw: object = None
        async with aclosing(self._exchange(body, request)) as events:
            try:
                async for chunk, sdk_chunk in events:
                    with misshapen(PROVIDER, streaming=request.stream):
                        shown = list(answer.add(chunk, streaming=request.stream))
                        if request.stream:
                            calls = [each.call_delta.index for each in shown if each.call_delta is not None]
                            completion.add(chunk, calls)
                    raw = sdk_chunk
                    for update in shown:
                        yield update
            except BrokenStreamError:
                # After a finish reason, at most the usage can be lost.
                if not answer.is_complete:
                    raise
        if not answer.is_complete:
            if request.stream:
                raise stream_ended(PROVIDER, "a finish reason")
            raise ServerError(f"{PROVIDER}: the answer has no finish reason: it is not complete", provider=PROVIDER)
        with misshapen(PROVIDER, streaming=request.stream):
            last = list(answer.finish(completion.whole() if request.stream else raw))
        for update in last:
            yield update
