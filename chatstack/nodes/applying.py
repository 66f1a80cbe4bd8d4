"""Layers applied to the messages of a state: by the very layers that would apply them in a stack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, cast

from chatstack.client.protocol import ChatClient, LayerKind, ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import Resolver
from chatstack.errors import WiringError
from chatstack.stack.recipe import ChatStack
from chatstack.tokens.counter import TokenizerCounter
from chatstack.tokens.published import load_tables
from chatstack.values.messages import Message
from chatstack.values.requests import NO_OPTIONS, ChatOptions, ChatRequest
from chatstack.values.responses import ChatUpdate


class Applied:
    """What the context layers of a recipe make of messages: repaired first, earlier decisions replayed, plans verified.

    ``name`` is what errors call them. ``options`` go along with every request that these messages will be in, so they
    are weighed with them. The recipe's provider is an ``Outlet``.
    """

    __slots__ = ("_alone", "_client", "_name", "_options", "waits")

    def __init__(
        self, stack: ChatStack, name: str, *, options: ChatOptions | None = None, resolve: Resolver | None = None
    ) -> None:
        self._name = name
        self._options = options or NO_OPTIONS
        self._client = replace(stack, trace_model_calls=False).build(resolve)
        self.waits = next((called for called, layer in self.layers if getattr(layer, "may_wait", True)), "")
        """The first layer that may have to wait for a model, a store or an API, by its name; "" if none does."""
        self._alone: ChatClient | None = None
        if not self.waits:  # without what lies behind the outlet, so that nobody is asked
            provider = cast("Outlet", stack.provider)
            self._alone = replace(stack, provider=Outlet(provider.info), trace_model_calls=False).build(resolve)

    @property
    def layers(self) -> list[tuple[str, object]]:
        """The layers that are applied, by their names."""
        return list(zip(self._client.names, self._client.layers, strict=True))

    async def to(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages as they would be sent: the very same tuple, if there is nothing to do."""
        return await self._applied(self._client, messages)

    async def _applied(self, client: ChatClient, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        stream = await client.send(ChatRequest(messages, self._options))
        if stream.sent is None:
            raise WiringError(
                f"{self._name}: its layer gives a stream of its own, which does not say what was sent; use a stack",
                layer=self._name,
            )
        return stream.sent.messages

    def at_once(self, messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
        """The same without an event loop; None where that cannot be, because something has to be waited for."""
        if self._alone is None:
            return None
        _load_tables(self._client.layers)
        step = self._applied(self._alone, messages)
        try:
            step.send(None)
        except StopIteration as done:
            return cast("tuple[Message, ...]", done.value)
        step.close()  # it did wait: nothing more comes of it
        return None


def _load_tables(layers: Iterable[object]) -> None:
    """Load what the layers would wait for: whoever trims synchronously has asked to be held up."""
    for layer in layers:
        if getattr(layer, "needs_window", True):
            load_tables()
        counter = getattr(layer, "counter", None)
        if isinstance(counter, TokenizerCounter):
            counter.count_text("any")


class Outlet:
    """Where the request would leave the stack: says what was sent, and answers nothing.

    Behind it is the client that a layer may ask for something of its own, if there is one; whoever looks for that asks
    below all context layers, of which this is one.
    """

    __slots__ = ("info", "inner")

    kind: ClassVar[LayerKind] = "context"

    def __init__(self, info: ProviderInfo, inner: ChatClient | None = None) -> None:
        self.info = info
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        stream = ChatStream(_Nothing())
        stream.sent = request
        return stream


class _Nothing:
    """An answer without an update."""

    async def __anext__(self) -> ChatUpdate:
        raise StopAsyncIteration

    async def aclose(self) -> None:
        return None
