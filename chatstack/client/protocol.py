"""The one method that everything here is made of."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from typing import Final, Literal, Protocol, TypeAlias, TypeGuard, TypeVar, get_args, runtime_checkable

import msgspec

from chatstack.client.stream import ChatStream
from chatstack.values.requests import ChatRequest

T = TypeVar("T")


@runtime_checkable
class ChatClient(Protocol):
    """Anything that answers a request. A class that has ``send`` is one; nothing needs to be imported or inherited.

    ``send`` is *primed*: it returns once the model has begun to answer (or has finished an empty message), and raises
    if the request is refused before that. So whoever retries does it around ``await inner.send(...)``, and never
    after a delta has reached the caller.
    """

    async def send(self, request: ChatRequest, /) -> ChatStream: ...


@runtime_checkable
class TellsWindow(Protocol):
    """A provider whose API tells how much fits into a model's context. Optional: look for it with ``chain``.

    ``window_tokens`` asks the API, each time, about ``model``, or about the provider's own model for "". None means
    that this API does not tell. Raises the ``ProviderError`` that fits when it cannot be asked. Whoever needs the
    answer more than once asks ``Windows``, which remembers it.
    """

    async def window_tokens(self, model: str = "") -> int | None: ...


@runtime_checkable
class CountsTokens(Protocol):
    """A provider whose API counts a request without answering it. Optional: look for it with ``chain``.

    ``count_tokens`` is the input in tokens, tools and instructions included, of what ``send`` would send; room
    reserved for the answer is not in it. None means that this API does not count. Raises what ``send`` would raise
    for a request that cannot be sent, and the ``ProviderError`` that fits when the API cannot be asked.
    """

    async def count_tokens(self, request: ChatRequest, /) -> int | None: ...


LayerKind: TypeAlias = Literal["context", "tool_loop", "reporter", "tracer", "fallback", "budget", "stack", "plain"]
"""What a layer is to the layers around it.

``context``: it decides which messages are sent, so it belongs behind the tool loop, and into a node's context manager.
``tool_loop``: it asks the model several times a turn. ``reporter``: it opens the turn's span. ``tracer``: it opens the
span of a model call. ``fallback``: it asks one of several providers. ``budget``: it ends what costs too much.
``stack``: a built client. ``plain``: none of these; it may stand anywhere.
"""
LAYER_KINDS: Final[tuple[LayerKind, ...]] = get_args(LayerKind)


@runtime_checkable
class TellsKind(Protocol):
    """A layer that says what it is to others, so that a wrong order is told, and nodes accept it. Optional.

    ``kind`` is a class attribute: ``kind: ClassVar[LayerKind] = "context"``.
    """

    @property
    def kind(self) -> LayerKind: ...


def layer_kind(layer: object) -> LayerKind | Literal[""]:
    """Return what a layer, or its class, says it is; "" where it says nothing, or what nobody knows."""
    kind = getattr(layer, "kind", "")
    return kind if isinstance(kind, str) and kind in LAYER_KINDS else ""


class ProviderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider says about itself in its attribute ``info``: for spans, and to find the model's window.

    ``name`` is a GenAI provider name (``openai``, ``anthropic``). ``window_tokens`` is what was stated when
    it was made, None where nothing was. ``default_max_tokens`` is the room that it reserves for an answer whose options
    name none.
    """

    name: str
    model: str = ""
    server_address: str = ""
    server_port: int | None = None
    window_tokens: int | None = None
    default_max_tokens: int = 0


def is_client(value: object) -> TypeGuard[ChatClient]:
    """Whether it has a ``send`` that is its own: a class, a coroutine and a generator have one, too."""
    return callable(getattr(value, "send", None)) and not isinstance(value, type | Coroutine | Generator)


def chain(client: object) -> Iterator[object]:
    """The client itself, then what it wraps, down to the provider."""
    seen: set[int] = set()
    current: object | None = client
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = getattr(current, "inner", None)


def find(client: object, kind: type[T]) -> T | None:
    """The outermost layer of that type in a built client, or None."""
    for layer in chain(client):
        if isinstance(layer, kind):
            return layer
    return None


def provider_info(client: object) -> ProviderInfo | None:
    """What the provider at the bottom says about itself, if it does."""
    info: object = getattr(client, "info", None)  # nearly always asked of the provider itself
    if type(info) is ProviderInfo:
        return info
    for layer in chain(client):
        info = getattr(layer, "info", None)
        if isinstance(info, ProviderInfo):
            return info
    return None
