"""Checks of clients: what is none, or breaks the protocol, is named in the error, with what to write instead."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Awaitable, Mapping
from types import CoroutineType, MappingProxyType
from typing import Any, Self, TypeVar, cast

from chatstack.client.collecting import call_postponed
from chatstack.client.protocol import ChatClient, is_client
from chatstack.client.stream import ChatStream
from chatstack.errors import WiringError
from chatstack.values.requests import ChatRequest

T = TypeVar("T")

_SDKS: Mapping[str, str] = MappingProxyType(
    {
        "openai": "OpenAIChatClient(model, client=...)",
        "anthropic": "AnthropicChatClient(model, client=...)",
    }
)
"""The chat clients of this package over the clients of two SDKs."""
_MADE = "ChatStream.primed(updates) makes one"


def why_no_client(given: object) -> str:
    """Return what a value is in place of a chat client, with the remedy, to be read after "is"; "" if it is one."""
    kind = type(given).__name__
    package = type(given).__module__.partition(".")[0]
    if isinstance(given, type):
        return f"the class {given.__name__} itself; pass an instance"
    if isinstance(given, str):
        model = re.sub("^(openai|anthropic)[:/]", "", given)  # as other libraries name models
        client = "AnthropicChatClient" if "claude" in model else "OpenAIChatClient"
        return f"a name, and no chat client; write {client}({model!r})"
    if inspect.iscoroutine(given):
        return "a coroutine, and no chat client; await it first"
    if not is_client(given):
        if callable(getattr(given, "build", None)):
            return "a recipe, and no chat client; pass what its build() returns"
        remedy = f"; write {_SDKS[package]}, or keep your client with wrap(client, stack)" if package in _SDKS else ""
        return f"of type {kind}, and no chat client{remedy or ': it has no send()'}"
    if inspect.isasyncgenfunction(given.send):
        return f"of type {kind}, whose send() has a 'yield': it must return a ChatStream; {_MADE}"
    return ""


def check_client(given: object, owner: str, parameter: str) -> None:
    """Raise ``WiringError`` for what is no chat client, with the names of the layer and its parameter."""
    told = why_no_client(given)
    if told:
        raise WiringError(f"{owner}: {parameter} is {told}", layer=owner, parameter=parameter)


class OwnCopy:
    """Mixin for what is its own copy, and cannot be pickled: clients, and the services that they share."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        raise WiringError(
            f"{type(self).__name__}: cannot be pickled, as it holds connections, locks and tasks of this process; "
            "build one in each process, from a recipe that is made there: stack.build()"
        )


def wraps_a_client(kind: type[T]) -> type[T]:
    """Class decorator of a layer: no client, as in ``.use(Guard(limit=5))``, or a value that is none in its place,
    raises an error with the remedy."""
    made = cast("Any", kind).__init__

    @functools.wraps(made)
    def checked(self: object, *args: object, **options: object) -> None:
        if not args and "inner" not in options:
            named = "".join(f", {name}=..." for name in options)
            raise WiringError(
                f"{kind.__name__}: there is no client that it wraps; in a recipe pass the class and its options: "
                f".use({kind.__name__}{named})",
                layer=kind.__name__,
                parameter="inner",
            )
        check_client(args[0] if args else options["inner"], kind.__name__, "inner")
        made(self, *args, **options)

    cast("Any", kind).__init__ = checked
    return kind


async def send_to(client: ChatClient, request: ChatRequest) -> ChatStream:
    """Send the request. Raises ``TypeError`` that names the client if its ``send`` breaks the protocol.

    Every layer asks the client inside by this, whether it reads the stream or hands it on: further out, nobody could
    tell which of them has made the mistake.
    """
    call_postponed()
    coming: Any = client.send(request)
    if type(coming) is not CoroutineType and (not isinstance(coming, Awaitable) or isinstance(coming, ChatStream)):
        raise TypeError(f"{type(client).__name__}: send() is no coroutine function: write 'async def send'; {_MADE}")
    # In no variable: a refusal that somebody keeps also keeps this frame, and must not keep a later answer with it.
    return _stream_of(client, await coming)  # pyright: ignore[reportUnknownArgumentType] - a cast would be a call


def _stream_of(client: ChatClient, stream: object) -> ChatStream:
    if isinstance(stream, ChatStream):
        return stream  # pyright: ignore[reportUnknownVariableType] - as above
    name, given = type(client).__name__, type(stream).__name__
    remedy = "write 'return await self.inner.send(request)'" if hasattr(client, "inner") else _MADE
    raise TypeError(f"{name}: send() gave a {given}, not a ChatStream: {remedy}")
