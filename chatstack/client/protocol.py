"""The client protocol: the one method that everything here is made of."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterator
from typing import Final, Literal, Protocol, TypeAlias, TypeGuard, TypeVar, get_args, runtime_checkable

import msgspec

from chatstack.client.stream import ChatStream
from chatstack.errors import InputError, WiringError
from chatstack.values.fields import wrong_type
from chatstack.values.native import NativeEdit
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


@runtime_checkable
class EditsNatively(Protocol):
    """A provider whose API can edit a conversation on its side. Optional: look for it with ``native_editor``.

    ``native_problem`` says in words, for an error, why the API cannot carry out such an edit; "" if it can.
    ``edits_natively`` asks whether it is known to do so for ``model``, or for the provider's own model for "": False
    where nobody can tell, as of a compatible server, or of an API that cannot be asked. It raises nothing, gives the
    same answer for minutes, and so may be asked on every call. ``send`` compiles ``ChatOptions.native_edits``.
    """

    def native_problem(self, edit: NativeEdit, /) -> str: ...

    async def edits_natively(self, edit: NativeEdit, model: str = "") -> bool: ...


LayerKind: TypeAlias = Literal["context", "tool_loop", "reporter", "tracer", "fallback", "budget", "stack", "plain"]
"""The role of a layer, for the layers around it.

``context``: it decides which messages are sent, so it belongs behind the tool loop, and into a node's context manager.
``tool_loop``: it asks the model several times a turn. ``reporter``: it opens the turn's span. ``tracer``: it opens the
span of a model call. ``fallback``: it asks one of several providers. ``budget``: it stops a turn or conversation that
costs too much. ``stack``: a built client. ``plain``: none of these; it may stand anywhere, and changes no message.
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
    kind = own_attribute(layer, "kind")
    return kind if isinstance(kind, str) and kind in LAYER_KINDS else ""


def own_attribute(layer: object, name: str) -> object:
    """Return an attribute of a layer, or of its class; None for one of a client to which it delegates what it lacks."""
    return getattr(layer, name, None) if _is_own(layer, name) else None


def _is_own(layer: object, name: str) -> bool:
    return isinstance(layer, type) or hasattr(type(layer), name) or name in getattr(layer, "__dict__", ())


class ProviderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's description of itself in its attribute ``info``: for spans, and to find the model's window.

    ``name`` is a GenAI provider name (``openai``, ``anthropic``). ``window_tokens`` is the window stated at
    construction, or None. ``default_max_tokens`` is the number of output tokens that it reserves if the options name
    none. ``reports_cache`` says that its usage always tells the tokens read from a prompt cache, so that none means a
    miss; ``cache_seconds`` is the lifetime of that cache, from its last use on, if it was chosen. ``reads_compactions``
    says that it sends compactions (items of its own, that stand for everything before them) back to its API.
    ``returns_unfinished`` says that its caller goes on by itself: a tool loop hands back calls of tools that nobody has
    declared (the API may hold the declarations), and paused answers. ``scope`` is for a provider that sends for callers
    with keys of their own: it tells apart those that the API may treat differently, and the provider states that of the
    running task. What is learnt of windows, and of failed summaries, counts within it. Raises ``InputError`` for a
    ``default_max_tokens`` that is no number of tokens.
    """

    name: str
    model: str = ""
    server_address: str = ""
    server_port: int | None = None
    window_tokens: int | None = None
    default_max_tokens: int = 0
    reports_cache: bool = False
    cache_seconds: float | None = None
    reads_compactions: bool = False
    returns_unfinished: bool = False
    scope: str = ""

    def __post_init__(self) -> None:
        reserved: object = self.default_max_tokens
        if type(reserved) is not int:
            raise wrong_type(self, "default_max_tokens", "a whole number", reserved)
        if reserved < 0:
            raise InputError(f"ProviderInfo: default_max_tokens={reserved} must not be negative")


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
        current = _inside(current)


def _inside(client: object) -> object | None:
    """Return what a client wraps, or None. A mock has no client inside, though it would make one up for any name."""
    inner: object = getattr(client, "inner", None)
    if inner is None or _is_own(client, "inner"):
        return inner
    return None if hasattr(client, "a_name_that_nothing_has") else inner


def find(client: object, kind: type[T]) -> T | None:
    """Return the outermost layer of that type in a built client, or None. Raises ``WiringError`` for what is no client,
    as a recipe that is not built yet, and for what is no class."""
    if isinstance(client, type) or not (is_client(client) or hasattr(client, "inner")):
        given = f"the class {client.__name__}" if isinstance(client, type) else f"a {type(client).__name__}"
        told = f"find: {given} is no client; that of a ChatStack is what its build() returns"
        raise WiringError(told, parameter="client")
    try:
        return next((layer for layer in chain(client) if isinstance(layer, kind)), None)
    except TypeError as error:
        raise WiringError(f"find: kind={kind!r} must be the class of a layer: {error}", parameter="kind") from error


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


def native_editor(client: object) -> EditsNatively | None:
    """Return the provider at the bottom if its API edits conversations; None if it does not, or if somebody else may
    answer in its place: another API would neither know the edit nor read what came of it."""
    for layer in chain(client):
        if layer_kind(layer) == "fallback":
            return None
        if isinstance(layer, EditsNatively):
            return layer
    return None


def reader_of_compactions(client: object) -> ProviderInfo | None:
    """Return the provider at the bottom if it sends its compactions back, and nobody else may answer in its place."""
    info = provider_info(client)
    if info is None or not info.reads_compactions or any(layer_kind(each) == "fallback" for each in chain(client)):
        return None
    return info


def editor_in(client: object) -> object | None:
    """Return the first client in this one that may edit what it is sent: a context layer, or a fallback, for its other
    clients; None if there is none. One of these kinds that edits nothing says ``edits = False``."""
    found = (each for each in chain(client) if layer_kind(each) in ("context", "fallback"))
    return next((each for each in found if own_attribute(each, "edits") is not False), None)
