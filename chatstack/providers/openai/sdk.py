"""The openai SDK, as both of its APIs use it: its request fields, and its models endpoint for the window.

Works with openai 2 (from 2.54) and 3.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

from chatstack.providers.asking import told_window
from chatstack.providers.extras import WireObject
from chatstack.providers.failures import failure
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.prompt_cache import ResponsesCache, with_cache
from chatstack.providers.openai.responses_answers import ENDS
from chatstack.providers.sdk import Sdk
from chatstack.providers.sdk_provider import SdkProvider
from chatstack.telemetry.propagation import trace_headers
from chatstack.values.requests import ChatRequest

if TYPE_CHECKING:
    from openai import AsyncOpenAI  # noqa: F401 - in quotes below

OpenAICloud: TypeAlias = Literal["azure"]

Create: TypeAlias = Callable[..., Awaitable[object]]
"""The ``create`` of one of the SDK's resources."""

_NOT_BODY = frozenset({"self", "extra_headers", "extra_query", "extra_body", "timeout"})


class OpenAISdk(Sdk["AsyncOpenAI"]):
    """The openai SDK."""

    name = PROVIDER
    client_name = "OpenAI"
    key_error = "OpenAIError"
    keys = ("api_key", "admin_api_key")
    resource = "chat"
    default_url = "https://api.openai.com/v1"
    clouds = MappingProxyType({"azure": "AsyncAzureOpenAI"})
    dict_options = MappingProxyType({"warnings": False})

    def whole(self, answer: object) -> Iterable[WireObject]:
        """Return the whole answer. Raises the error if it is one, which some servers send with status 200."""
        found = self.fields_of(answer, streaming=False)
        if found.get("error"):
            raise failure(self.name, body=found)
        return (found,)

    def is_last(self, event: Mapping[str, object]) -> bool:
        """Return True for the event that ends a response. Chat completions have none: the SDK knows their end."""
        return event.get("type") in ENDS


OPENAI = OpenAISdk()


class OpenAIProvider(SdkProvider["AsyncOpenAI"]):
    """The base of the clients on OpenAI's APIs; each names the ``create`` that it calls, and sets its ``cache``."""

    __slots__ = ("cache",)

    _sdk = OPENAI
    cache: ResponsesCache

    @property
    @abstractmethod
    def _create(self) -> Create:
        """The SDK's method that answers a request."""

    async def window_tokens(self, model: str = "") -> int | None:
        """Return the model's window, if the server lists it with its models (vLLM, llama.cpp, OpenRouter); else
        None."""
        client = self._client
        if getattr(client, "models", None) is None:
            return None
        name = model or self.model
        return await told_window(
            lambda: client.models.retrieve(name, extra_headers=trace_headers() or None),
            lambda: client.get("/models", cast_to=object, options={"headers": trace_headers()}),
            name,
            OPENAI.translated,
        )

    def _exchange(self, body: WireObject, request: ChatRequest) -> AsyncGenerator[tuple[WireObject, object], None]:
        """Make one call: yield the whole answer, or every event of the stream, each with the SDK's object."""
        body = with_cache(body, request, self.cache, self.info.server_address)
        create, fields = self._create, body_fields(self._create)
        known = {name: value for name, value in body.items() if fields is None or name in fields}
        others = {name: value for name, value in body.items() if name not in known}
        beside = {name: value for name, value in (("extra_body", others), ("extra_headers", trace_headers())) if value}
        return OPENAI.exchange(
            lambda: create(**known, **beside), streaming=bool(body.get("stream")), stall_seconds=self.stall_seconds
        )


def body_fields(create: Create) -> frozenset[str] | None:
    """Return the fields that ``create`` takes by name; None if it takes any. Other fields go by ``extra_body``."""
    return _fields_taken(getattr(create, "__func__", create))


@functools.lru_cache(maxsize=16)
def _fields_taken(create: Create) -> frozenset[str] | None:
    parameters = inspect.signature(create).parameters.values()
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters) - _NOT_BODY
