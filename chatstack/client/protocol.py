"""The client protocol: the one method that everything here is made of."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from typing import Final, Literal, Protocol, TypeAlias, TypeGuard, TypeVar, get_args, runtime_checkable

import msgspec

from chatstack.client.stream import ChatStream
from chatstack.values.requests import ChatRequest

T = TypeVar("T")


@runtime_checkable
class ChatClient(Protocol):
    """Anything that answers a request. Every class with ``send`` is one; nothing needs to be imported or inherited.

    ``send`` is *primed*: it returns once the model has begun to answer (or has finished an empty message), and raises
    if the request is refused before that. So a layer retries around ``await inner.send(...)``, and never after a delta
    has reached the caller.
    """

    async def send(self, request: ChatRequest, /) -> ChatStream: ...


@runtime_checkable
class TellsWindow(Protocol):
    """A provider whose API reports the size of a model's context window. Optional: look for it with ``chain``.

    ``window_tokens`` asks the API, each time, about ``model``, or about the provider's own model for "". None means
    that this API does not report it. Raises the matching ``ProviderError`` when the API cannot be asked. If you need
    the answer more than once, ask ``Windows``, which caches it.
    """

    async def window_tokens(self, model: str = "") -> int | None: ...


@runtime_checkable
class CountsTokens(Protocol):
    """A provider whose API counts the tokens of a request without answering it. Optional: look for it with ``chain``.

    ``count_tokens`` is the input in tokens, tools and instructions included, of the request as ``send`` would send it,
    without the room reserved for the answer. None means that this API does not count. Raises the errors of ``send`` for
    a request that cannot be sent, and the matching ``ProviderError`` when the API cannot be asked.
    """

    async def count_tokens(self, request: ChatRequest, /) -> int | None: ...


LayerKind: TypeAlias = Literal["context", "tool_loop", "reporter", "tracer", "fallback", "budget", "stack", "plain"]
"""The role of a layer, for the layers around it.

``context``: it decides which messages are sent, so it belongs behind the tool loop, and into a node's context manager.
``tool_loop``: it asks the model several times a turn. ``reporter``: it opens the turn's span. ``tracer``: it opens the
span of a model call. ``fallback``: it asks one of several providers. ``budget``: it stops a turn or conversation that
costs too much. ``stack``: a built client. ``plain``: none of these; it may stand anywhere.
"""
LAYER_KINDS: Final[tuple[LayerKind, ...]] = get_args(LayerKind)


@runtime_checkable
class TellsKind(Protocol):
    """A layer that declares its kind, so that a wrong order is detected, and nodes accept it. Optional.

    ``kind`` is a class attribute: ``kind: ClassVar[LayerKind] = "context"``.
    """

    @property
    def kind(self) -> LayerKind: ...


def layer_kind(layer: object) -> LayerKind | Literal[""]:
    """Return the kind that a layer, or its class, declares; "" if there is none, or an unknown one."""
    kind = getattr(layer, "kind", "")
    return kind if isinstance(kind, str) and kind in LAYER_KINDS else ""


class ProviderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's description of itself in its attribute ``info``: for spans, and to find the model's window.

    ``name`` is a GenAI provider name (``openai``, ``anthropic``). ``window_tokens`` is the window stated at
    construction, or None. ``default_max_tokens`` is the number of output tokens that it reserves if the options name
    none. ``reports_cache`` says that its usage always tells the tokens read from a prompt cache, so that none means a
    miss; ``cache_seconds`` is the lifetime of that cache, from its last use on, if it was chosen.
    """

    name: str
    model: str = ""
    server_address: str = ""
    server_port: int | None = None
    window_tokens: int | None = None
    default_max_tokens: int = 0
    reports_cache: bool = False
    cache_seconds: float | None = None


def is_client(value: object) -> TypeGuard[ChatClient]:
    """Return True if the value is an instance with ``send``; classes, coroutines and generators have one, too."""
    return callable(getattr(value, "send", None)) and not isinstance(value, type | Coroutine | Generator)


def chain(client: object) -> Iterator[object]:
    """Yield the client itself, then each client inside it, down to the provider."""
    seen: set[int] = set()
    current: object | None = client
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = getattr(current, "inner", None)


def find(client: object, kind: type[T]) -> T | None:
    """Return the outermost layer of that type in a built client, or None."""
    for layer in chain(client):
        if isinstance(layer, kind):
            return layer
    return None


def provider_info(client: object) -> ProviderInfo | None:
    """Return the ``info`` of the provider at the bottom, or None."""
    info: object = getattr(client, "info", None)  # fast path: the client nearly always is the provider
    if type(info) is ProviderInfo:
        return info
    for layer in chain(client):
        info = getattr(layer, "info", None)
        if isinstance(info, ProviderInfo):
            return info
    return None
