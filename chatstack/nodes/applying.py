"""A strategy applied to the messages of a state: by the very layer that would apply it in a stack."""

from __future__ import annotations

from typing import cast

from chatstack.client.protocol import ProviderInfo
from chatstack.client.stack import ChatStack
from chatstack.client.stream import ChatStream
from chatstack.context.memory import ContextMemory
from chatstack.context.strategy import Strategy, StrategyApplier
from chatstack.errors import WiringError
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message
from chatstack.values.requests import ChatOptions, ChatRequest
from chatstack.values.responses import ChatUpdate


class Applied:
    """What a strategy makes of messages: repaired first, earlier decisions replayed, its plan verified and said.

    ``options`` go along with every request that these messages will be in, so they are weighed with them;
    ``window_tokens`` is the model's window, for strategies that ask for it.
    """

    __slots__ = ("_client", "_must_wait", "_name", "_options")

    def __init__(
        self,
        strategy: Strategy,
        *,
        counter: TokenCounter | None = None,
        memory: ContextMemory | None = None,
        telemetry: Telemetry | None = None,
        options: ChatOptions | None = None,
        window_tokens: int | None = None,
    ) -> None:
        def resolve(kind: type) -> object:
            return telemetry if kind is Telemetry else None

        self._name = type(strategy).__name__
        self._options = options or ChatOptions()
        outlet = _Outlet(ProviderInfo(name="nodes", model=self._options.model or "", window_tokens=window_tokens))
        stack = ChatStack(outlet, memory=memory, trace_model_calls=False)
        stack = stack.use(strategy) if counter is None else stack.use(strategy, counter=counter)
        self._client = stack.build(resolve)
        layer = self._client.inner
        # This layer alone is known to wait for nothing but a store; another one may ask a model.
        self._must_wait = type(layer) is not StrategyApplier or layer.memory.shared is not None

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


class _Outlet:
    """Where the request would leave the stack: says what was sent, and answers nothing."""

    __slots__ = ("info",)

    def __init__(self, info: ProviderInfo) -> None:
        self.info = info

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
