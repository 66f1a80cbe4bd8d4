"""Layers applied to the messages of a state: by the very layers that would apply them in a stack."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, cast

from chatstack.client.protocol import ChatClient, ProviderInfo, chain
from chatstack.client.stack import ChatStack
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import Resolver
from chatstack.context.strategy import StrategyApplier
from chatstack.errors import WiringError
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest
from chatstack.values.responses import ChatUpdate


class Applied:
    """What the context layers of a recipe make of messages: repaired first, earlier decisions replayed, plans verified.

    ``name`` is what errors call them. ``options`` go along with every request that these messages will be in, so they
    are weighed with them. The recipe's provider is an ``Outlet``.
    """

    __slots__ = ("_client", "_must_wait", "_name", "_options")

    def __init__(
        self, stack: ChatStack, name: str, *, options: ChatOptions | None = None, resolve: Resolver | None = None
    ) -> None:
        self._name = name
        self._options = options or ChatOptions()
        self._client = replace(stack, trace_model_calls=False).build(resolve)
        self._must_wait = not all(map(_waits_for_nothing, self._client.layers))

    @property
    def layers(self) -> list[tuple[str, object]]:
        """The layers that are applied, by their names."""
        return list(zip(self._client.names, self._client.layers, strict=True))

    async def to(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages as they would be sent: the very same tuple, if there is nothing to do."""
        stream = await self._client.send(ChatRequest(messages, self._options))
        if stream.sent is None:
            raise WiringError(
                f"{self._name}: its layer gives a stream of its own, which does not say what was sent; use a stack",
                layer=self._name,
            )
        return stream.sent.messages

    def at_once(self, messages: tuple[Message, ...]) -> tuple[Message, ...] | None:
        """The same without an event loop; None where that cannot be, because something has to be waited for."""
        if self._must_wait:
            return None
        step = self.to(messages)
        try:
            step.send(None)
        except StopIteration as done:
            return cast("tuple[Message, ...]", done.value)
        step.close()  # it did wait: nothing more comes of it
        return None


def _waits_for_nothing(layer: object) -> bool:
    """Whether that is known of a layer: another one may ask a model, or, for the window, the API."""
    return (
        type(layer) is StrategyApplier
        and layer.memory.shared is None
        and not (layer.strategy.needs_window and next(_behind(layer), None) is not None)
    )


def _behind(layer: StrategyApplier) -> Iterator[object]:
    """What is behind the outlet."""
    outlets = (each for each in chain(layer) if isinstance(each, Outlet))
    return (each.inner for each in outlets if each.inner is not None)


class Outlet:
    """Where the request would leave the stack: says what was sent, and answers nothing.

    Behind it is the client that a layer may ask for something of its own, if there is one; whoever looks for that asks
    below all context layers, of which this is one.
    """

    __slots__ = ("info", "inner")

    kind: ClassVar[str] = "context"

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
