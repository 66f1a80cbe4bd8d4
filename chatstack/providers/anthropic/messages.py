"""Anthropic's Messages API, on the official SDK."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from chatstack.client.options import NonNegativeInt, PositiveFloat, PositiveInt
from chatstack.providers.anthropic.blocks import PROVIDER
from chatstack.providers.anthropic.events import AnswerFold
from chatstack.providers.anthropic.marks import CacheLifetime
from chatstack.providers.anthropic.native import HOST, is_capable, problem_with
from chatstack.providers.anthropic.sdk import (
    ANTHROPIC,
    AnthropicCloud,
    card_told,
    created,
    input_tokens,
    traced_once,
    window_told,
)
from chatstack.providers.anthropic.wire import DEFAULT_MAX_TOKENS, request_to_wire
from chatstack.providers.cards import Cards
from chatstack.providers.extras import WireObject
from chatstack.providers.failures import misshapen
from chatstack.providers.sdk_provider import SdkProvider
from chatstack.providers.sending import sendable
from chatstack.providers.settings import BaseUrl, check_choice
from chatstack.tokens.caching import CACHE_SECONDS, LONG_CACHE_SECONDS
from chatstack.values.native import NativeEdit
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic  # noqa: F401 - in quotes below

_SECONDS: Mapping[CacheLifetime, float] = {"5m": CACHE_SECONDS, "1h": LONG_CACHE_SECONDS}


class AnthropicChatClient(SdkProvider["AsyncAnthropic"]):
    """Claude, and every server that speaks Anthropic's Messages API, by ``base_url``. The innermost of a stack.

    The key is ``api_key`` or ``ANTHROPIC_API_KEY``; a ``client`` of yours (``AsyncAnthropic``, or the SDK's class
    for another cloud) brings its own. ``cloud`` makes that class's client, which reads its credentials, region and
    project from the environment. The SDK's own spans are left out where a ``ModelTracer`` opens one. Retries
    are the SDK's: ``max_retries`` of them, with its backoff. ``timeout_seconds`` is for one attempt;
    ``stall_seconds`` for a silence on the wire while an answer streams (None: no limit). ``window_tokens`` states
    the model's window, for models of which neither the API nor the published table has it; it wins over both.

    The API demands a limit on the output tokens of every call: 8,192 if the options name none. ``options.extra`` goes
    into the body; its ``betas``, a list of names, becomes the header ``anthropic-beta``: ``extra={"betas":
    ["context-management-2025-06-27"], "context_management": {...}}``. The API has no ``seed``: that of the options is
    not sent. The container that an answer's code ran in is named in the next round of the turn, unless ``extra`` names
    one.

    Requests are marked for the prompt cache, which caches nothing without: behind the tools, the system prompt, the
    last edit and the last message, where the prefix is likely to be sent again. ``cache`` is the lifetime: five minutes
    (a write costs 1.25 times the input, a read a tenth), an hour (twice), or ``"off"``, for a server that refuses
    ``cache_control``. Marks of your own stay, and count: the API takes four.

    Raises ``WiringError`` when the SDK or the key is missing or a setting is wrong, and the matching ``ProviderError``
    from ``send``. A stream that ends before its ``message_stop`` is a ``BrokenStreamError``, never a short answer.
    """

    __slots__ = ("_cards", "cache")

    _sdk = ANTHROPIC

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
        cache: CacheLifetime = "5m",
        cloud: AnthropicCloud | None = None,
    ) -> None:
        check_choice(type(self).__name__, "cache", cache, CacheLifetime)
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
            cloud=cloud,
        )
        self.cache: CacheLifetime = cache
        self._cards = Cards(lambda name: card_told(self._client, name))
        self.info = replace(self.info, reads_compactions=True, cache_seconds=_SECONDS.get(cache))

    async def window_tokens(self, model: str = "") -> int | None:
        """Return the model's window from the models endpoint (``max_input_tokens``); None if it reports none."""
        return await window_told(self._client, model or self.model)

    async def count_tokens(self, request: ChatRequest, /) -> int | None:
        """Return the input of that request in tokens from the count endpoint; None on a cloud that has none."""
        return await input_tokens(self._client, self._body(request))

    def native_problem(self, edit: NativeEdit, /) -> str:
        """Return why the API cannot carry out that edit; "" if it can."""
        return problem_with(edit)

    async def edits_natively(self, edit: NativeEdit, model: str = "") -> bool:
        """Return True if this is Anthropic's own server, and its models endpoint says that the model has that edit."""
        return self.info.server_address == HOST and is_capable(await self._cards.of(model or self.model), edit)

    def _body(self, request: ChatRequest) -> WireObject:
        def written() -> WireObject:
            return {"model": self.model, **request_to_wire(request, cache=self.cache, model=self.model)}

        return sendable(request, written)

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        body = self._body(request)
        body["stream"] = is_streamed = request.stream or _must_stream(body)
        fold = AnswerFold(asked=str(body["model"]))
        raw: object = None
        events = ANTHROPIC.exchange(
            lambda: created(traced_once(self._client), body), streaming=is_streamed, stall_seconds=self.stall_seconds
        )
        async with aclosing(events):
            async for event, sent in events:
                raw = sent
                with misshapen(PROVIDER, streaming=is_streamed):
                    shown = list(fold.updates(event))
                for update in shown:
                    yield update
        with misshapen(PROVIDER, streaming=is_streamed):
            last = list(fold.ended(_as_sdk_message(fold.answer) if is_streamed else raw))
        for update in last:
            yield update


def _must_stream(body: WireObject) -> bool:
    """Return True if an answer of that size must stream: for some models the SDK refuses to fetch it whole
    (``ValueError``)."""
    bound = body.get("max_tokens")
    return isinstance(bound, int) and bound > DEFAULT_MAX_TOKENS


def _as_sdk_message(answer: WireObject) -> object:
    """Return a streamed answer as the SDK's object for the same answer unstreamed."""
    from anthropic.types import Message

    return Message.construct(**answer)  # type: ignore[arg-type]
