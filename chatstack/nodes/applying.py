"""Layers applied to the messages of a state, by the same layers that would apply them in a stack."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, cast

from chatstack.client.checks import send_to
from chatstack.client.protocol import ChatClient, LayerKind, ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import Resolver, wrong
from chatstack.context.requests.asking import on_this_thread
from chatstack.errors import WiringError
from chatstack.stack.recipe import ChatStack
from chatstack.tokens.counter import TokenizerCounter
from chatstack.tokens.published import load_tables
from chatstack.values.messages import Message
from chatstack.values.requests import NO_OPTIONS, ChatOptions, ChatRequest
from chatstack.values.responses import ChatUpdate


def check_call(owner: str, options: object, timeout_seconds: object = None) -> None:
    """Refuse what no call takes. Raises ``WiringError`` that names the node or manager."""
    if not isinstance(options, ChatOptions | None):
        raise wrong(owner, "options", options, "ChatOptions(...)")
    if timeout_seconds is None:
        return
    if isinstance(timeout_seconds, bool) or not (isinstance(timeout_seconds, int | float) and timeout_seconds > 0):
        raise wrong(owner, "timeout_seconds", timeout_seconds, "a number greater than 0, or None")


class Applied:
    """Applies the context layers of a recipe to messages: repairs first, replays earlier decisions, verifies plans.

    ``name`` is what errors call them. ``options`` go along with every request that these messages will be in, so they
    are counted with them. The recipe's provider is an ``Outlet``.
    """

    __slots__ = ("_alone", "_client", "_name", "_options", "waits")

    def __init__(
        self, stack: ChatStack, name: str, *, options: ChatOptions | None = None, resolve: Resolver | None = None
    ) -> None:
        self._name = name
        self._options = options or NO_OPTIONS
        self._client = replace(stack, trace_model_calls=False).build(resolve)
        self.waits = next((called for called, layer in self.layers if getattr(layer, "may_wait", True)), "")
        """Name of the first layer that may have to wait for a model, a store or an API; "" if none does."""
        self._alone: ChatClient | None = None
        if not self.waits:  # without the client behind the outlet, so that no model is called
            provider = cast("Outlet", stack.provider)
            self._alone = replace(stack, provider=Outlet(provider.info), trace_model_calls=False).build(resolve)

    @property
    def layers(self) -> list[tuple[str, object]]:
        """The layers that are applied, with their names."""
        return list(zip(self._client.names, self._client.layers, strict=True))

    async def aclose(self) -> None:
        """End the background work of the layers."""
        await self._client.aclose()

    async def to(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Return the messages as they would be sent; the same tuple if there is nothing to do."""
        return await self._applied(self._client, messages)

    async def _applied(self, client: ChatClient, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        stream = await send_to(client, ChatRequest(messages, self._options))
        if stream.sent is None:
            raise WiringError(
                f"{self._name}: its layer gives a stream of its own, which does not say what was sent; use a stack",
                layer=self._name,
            )
        return stream.sent.messages

    def at_once(self, messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
        """Return the messages without an event loop; None if something has to be awaited."""
        if self._alone is None:
            return None
        _load_tables(self._client.layers)
        step = self._applied(self._alone, messages)
        try:
            with on_this_thread():
                step.send(None)
        except StopIteration as done:
            return cast("tuple[Message, ...]", done.value)
        step.close()  # it did wait: its result is not available here
        return None


def _load_tables(layers: Iterable[object]) -> None:
    """Load tables and tokenizers that layers would wait for: a synchronous caller accepts being blocked."""
    for layer in layers:
        if getattr(layer, "needs_window", True):
            load_tables()
        counter = getattr(layer, "counter", None)
        if isinstance(counter, TokenizerCounter):
            counter.count_text("any")


class Outlet:
    """The end of the stack instead of a provider: records what would be sent, and answers nothing.

    ``inner`` is the client that a layer may ask for a summary of its own, if there is one. It is looked for below all
    context layers, of which this is one.
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
    """A response without an update."""

    async def __anext__(self) -> ChatUpdate:
        raise StopAsyncIteration

    async def aclose(self) -> None:
        return None
