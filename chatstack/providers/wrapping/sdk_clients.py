"""``wrap``: an SDK's own client with a stack around its model calls."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

from msgspec import structs

from chatstack.client.background import runs_in_background
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ProviderInfo, chain, layer_kind, own_attribute
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import Resolver
from chatstack.errors import ChatStackError, InputError, WiringError
from chatstack.providers.anthropic.sdk import ANTHROPIC, window_told
from chatstack.providers.extras import WireObject
from chatstack.providers.openai import OpenAIChatClient
from chatstack.providers.openai.sdk import OPENAI
from chatstack.providers.sdk import Sdk
from chatstack.providers.wrapping.answers import Answering
from chatstack.providers.wrapping.http import HttpClient, HttpRequest, HttpResponse, library, with_seam
from chatstack.providers.wrapping.turns import Post, Send, Turn, current_turn
from chatstack.providers.wrapping.wires import WIRES, Wire
from chatstack.stack.recipe import ChatStack
from chatstack.values.requests import ChatRequest

C = TypeVar("C")

_RAW = "x-stainless-raw-response"
_REBUILT = frozenset({"content-length", "content-type", "host", "transfer-encoding", "x-stainless-retry-count", _RAW})
"""Headers that the SDK writes anew for another body."""
_SIGNATURE = ("authorization", "x-amz-")


class _SdkClient(Protocol):
    _client: HttpClient

    def with_options(self, **options: Any) -> Any: ...

    def post(self, path: str, *, cast_to: object, body: object, options: object) -> Awaitable[HttpResponse]: ...

    async def _prepare_request(self, request: HttpRequest) -> None: ...


class Named(Protocol):
    """A tool, as far as it matters here."""

    @property
    def name(self) -> str: ...


@runtime_checkable
class HasTools(Protocol):
    """A tool loop that tells its tools."""

    @property
    def tools(self) -> Sequence[Named]: ...


_BARE: Mapping[Sdk[Any], WireObject] = {OPENAI: {}, ANTHROPIC: {"middleware": (), "open_telemetry": False}}
"""Options for a bare client, by its SDK."""


def wrap(client: C, stack: ChatStack, *, resolve: Resolver | None = None) -> C:
    """Return an ``AsyncOpenAI`` or ``AsyncAnthropic`` whose model calls go through a stack::

        client = wrap(AsyncOpenAI(), ChatStack().use(ContextWindowGuard, max_context_tokens=100_000))
        answer = await client.chat.completions.create(model="gpt-5-mini", messages=history)

    It is a client of the same class, with the same methods, types, streams, helpers, retries and connections; the one
    that was given is not changed. The stack needs no provider: the client is it. Chat completions, Responses and
    Anthropic's Messages, beta ones included, go through the stack; other calls, WebSockets, and requests that are
    malformed, as they are. A request that no layer edits is sent byte for byte, and its answer comes back so. Of an
    edited one everything that was not edited stays as it was written.

    Tools that the stack runs are not seen by the caller, only the texts of their rounds, as one answer. Errors of
    layers are also errors of the SDK's. Layers cannot leave edits to the provider here, and a ``Fallback`` to another
    client cannot answer. Closing the client closes the layers, and the connections. A call has no ``conversation_id``:
    a ``Budget`` bounds each call by itself.

    Raises ``WiringError`` for a client of another class, a stack that cannot be built, or one with a ``Budget`` of
    conversations.
    """
    sdk = _sdk_of(client)
    if not isinstance(stack, ChatStack):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise WiringError(f"wrap: stack: expected a ChatStack, got {type(stack).__name__}", parameter="stack")
    given = cast("_SdkClient", client)
    http = given._client  # pyright: ignore[reportPrivateUsage]
    bare = _bare(given, sdk)
    provider = WrappedClient(bare, sdk)
    built = replace(stack, provider=provider).build(resolve)
    if any(own_attribute(each, "per") == "conversation" for each in chain(built) if layer_kind(each) == "budget"):
        told = "per='conversation' needs a conversation_id, and calls of the SDK's client have none"
        raise WiringError(f"wrap: Budget: {told}", layer="Budget", parameter="per")
    answering = Answering(built, getattr(sys.modules[sdk.name], f"{sdk.client_name}Error"), _tools_of(built))

    async def send(request: HttpRequest, *, stream: bool = False, **options: Any) -> HttpResponse:
        async def sent(asked: HttpRequest) -> HttpResponse:
            if asked is not request:
                for name in _signature(bare, asked):
                    asked.headers.pop(name)
                await bare._prepare_request(asked)  # pyright: ignore[reportPrivateUsage]
            return await http.send(asked, stream=True, **options)

        turn = _turn_of(request, sdk, sent, _posting(bare))
        if turn is None:
            return await http.send(request, stream=stream, **options)
        return await answering.response(turn, unread=stream)

    return cast("C", given.with_options(http_client=with_seam(http, send, built.aclose)))


class WrappedClient(ChatFronts):
    """The innermost of a wrapped client's stack: it sends the requests of the call that is under way."""

    __slots__ = ("_bare", "_sdk", "info")

    def __init__(self, bare: _SdkClient, sdk: Sdk[Any]) -> None:
        self._bare = bare
        self._sdk = sdk
        self.info: ProviderInfo = structs.replace(sdk.info(bare, "", None), returns_unfinished=True)

    async def send(self, request: ChatRequest, /) -> ChatStream:
        turn = current_turn()
        if turn is None:
            raise WiringError("wrap: this stack answers calls of its SDK's client only")
        turn = turn.beside() if runs_in_background() else turn
        stream = await ChatStream.primed(turn.updates(request))
        stream.sent = request
        return stream

    async def window_tokens(self, model: str = "") -> int | None:
        """Return the model's window, if the API reports it."""
        if not model:
            return None
        if self._sdk is ANTHROPIC:
            return await window_told(cast("Any", self._bare), model)
        return await OpenAIChatClient(model, client=self._bare).window_tokens(model)

    def __repr__(self) -> str:
        return f"WrappedClient({self.info.name!r}, server={self.info.server_address!r})"


def _tools_of(built: object) -> frozenset[str] | None:
    """Return the names of the tools that a stack runs; None for a tool loop that does not tell."""
    loop = next((each for each in chain(built) if layer_kind(each) == "tool_loop"), None)
    if loop is None:
        return frozenset()
    return frozenset(each.name for each in loop.tools) if isinstance(loop, HasTools) else None


def _sdk_of(client: object) -> Sdk[Any]:
    for sdk in _BARE:
        module = sys.modules.get(sdk.name)  # of a client that exists it is loaded
        if module is not None and isinstance(client, getattr(module, f"Async{sdk.client_name}")):
            return sdk
    wanted = " or ".join(f"{sdk.name}.Async{sdk.client_name}(...)" for sdk in _BARE)
    raise WiringError(f"wrap: client: expected {wanted}, got {type(client).__name__}", parameter="client")


def _bare(client: _SdkClient, sdk: Sdk[Any]) -> _SdkClient:
    """Return the client without what the wrapped one has around its calls; older versions of an SDK have less of it."""
    known = inspect.signature(getattr(sys.modules[sdk.name], f"Async{sdk.client_name}").with_options).parameters
    options = {name: value for name, value in _BARE[sdk].items() if name in known}
    return cast("_SdkClient", client.with_options(**options))


def _turn_of(request: HttpRequest, sdk: Sdk[Any], send: Send, post: Post) -> Turn | None:
    """Return the turn for a request; None if it is not one that a stack could answer."""
    wire = _wire_of(request, sdk)
    if wire is None:
        return None
    try:
        body: object = json.loads(request.read())
        if not isinstance(body, dict):
            return None
        return Turn(request, wire, cast("WireObject", body), sdk, send, post)
    except (ChatStackError, InputError, ValueError, RecursionError):
        return None  # the server says what is wrong with it


def _wire_of(request: HttpRequest, sdk: Sdk[Any]) -> Wire | None:
    if request.method != "POST":
        return None
    path = str(request.url.path).rstrip("/")
    return next((wire for wire in WIRES if wire.provider == sdk.name and path.endswith(wire.path)), None)


def _signature(bare: _SdkClient, request: HttpRequest) -> list[str]:
    """Return the headers that the SDK writes anew for another body: a signature (AWS), or credentials that it owns."""
    owns_credentials = getattr(bare, "_provider_runtime", None) is not None  # and refuses those that are there
    if not owns_credentials and "x-amz-date" not in request.headers:
        return []
    return [name.lower() for name, _ in request.headers.items() if name.lower().startswith(_SIGNATURE)]


def _posting(bare: _SdkClient) -> Post:
    """Return a function that sends a body in the place of a request's, with its address, headers and time limits."""

    async def post(request: HttpRequest, body: WireObject) -> HttpResponse:
        dropped = {*_REBUILT, *_signature(bare, request)}
        headers = {name.lower(): value for name, value in request.headers.items() if name.lower() not in dropped}
        options: dict[str, object] = {"headers": {**headers, _RAW: "stream"}}
        module, limits = library(request), request.extensions.get("timeout")
        if limits is not None:
            options["timeout"] = module.Timeout(**limits)
        return await bare.post(str(request.url), cast_to=module.Response, body=body, options=options)

    return post
