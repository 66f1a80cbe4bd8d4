"""Models of other frameworks as providers: their streams, and what their exceptions and finish reasons say."""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Final, cast

from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.errors import ProviderError
from chatstack.providers.failures import causes, failure, transport_failure
from chatstack.providers.overflow import Overflow, overflow_in
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate, FinishReason

_OVERFLOW = "ContextOverflowError"
"""Name of LangChain's exception class for an overflow, from which those of its integrations derive."""
_FINISHES: Final[dict[str, FinishReason]] = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "completed"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens"), "length"),
    **dict.fromkeys(("tool_calls", "tool_call", "tool_use", "function_call"), "tool_calls"),
    **dict.fromkeys(("content_filter", "refusal", "safety"), "refused"),
    "pause_turn": "paused",
    "error": "other",
}


class ForeignClient(ChatFronts):
    """Base of a provider that asks a model of another framework's; ``info`` and ``_updates`` are its own.

    ``_updates`` asks the model, and yields the answer. What that raises becomes the matching ``ProviderError``, its
    cause what was raised; an exception that does not come from the model's side surfaces as it is.
    """

    info: ProviderInfo

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = await foreign_stream(self.info.name, self._updates(request))
        stream.sent = request
        return stream

    def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.info.name!r}, {self.info.model!r})"


async def foreign_stream(provider: str, updates: AsyncGenerator[ChatUpdate, None]) -> ChatStream:
    """Return the answer of another framework's model as a stream; exceptions are translated as by
    ``foreign_failure``."""
    return await ChatStream.primed(_translated(provider, updates))


async def _translated(provider: str, updates: AsyncGenerator[ChatUpdate, None]) -> AsyncGenerator[ChatUpdate, None]:
    try:
        async with aclosing(updates):
            async for update in updates:
                yield update
    except Exception as error:
        known = foreign_failure(provider, error)
        if known is None or known is error:
            raise
        raise known from error


def finish_reason_of(theirs: object) -> FinishReason | None:
    """Return the finish reason for another framework's word for it, in any case; None for a word that is unknown."""
    return _FINISHES.get(str(theirs).lower())


def foreign_failure(provider: str, error: BaseException) -> ProviderError | None:
    """Return our error for an exception of another framework's model, which the caller sets as its cause.

    None for an exception that does not come from the model's side, which should surface as it is. It is told by its
    fields (``status_code``, ``body``, ``response.headers``, as the SDKs of OpenAI and Anthropic, and Pydantic AI, have
    them), by an overflow in its text, or by its class, if that is the transport's; else so by its causes.
    """
    if isinstance(error, ProviderError):
        return error
    chain = tuple(causes(error))
    for each in chain:
        if isinstance(each, ProviderError):
            return copy.copy(each)  # its numbers are exact; the caller sets its cause, which stands above it
    return next((known for each in chain if (known := _said_by(provider, each)) is not None), None)


def _said_by(provider: str, error: BaseException) -> ProviderError | None:
    status, text = _status_of(error), str(error)
    told = overflow_in(status, "", "", text)
    if told is None and any(kind.__name__ == _OVERFLOW for kind in type(error).__mro__):
        told = Overflow()
    if not status and told is None:
        return transport_failure(provider, error)
    body, headers = getattr(error, "body", None), _headers_of(error)
    return failure(provider, status=status, body=body, text=text, headers=headers, overflow=told)


def _status_of(error: BaseException) -> int:
    for name in ("status_code", "code"):  # google-genai has the status in ``code``
        status: object = getattr(error, name, None)
        if type(status) is int and 400 <= status < 600:
            return status
    return 0


def _headers_of(error: BaseException) -> Mapping[str, str]:
    headers: object = getattr(getattr(error, "response", None), "headers", None)
    return dict(cast("Mapping[str, str]", headers)) if isinstance(headers, Mapping) else {}
