"""A whole stack in the place of another framework's model."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar, Token
from typing import Generic, TypeVar, cast

from chatstack.client.checks import check_client, send_to
from chatstack.client.protocol import ChatClient, chain, layer_kind, provider_info
from chatstack.client.stream import ChatStream
from chatstack.errors import InputError
from chatstack.telemetry.agent_turns import count_round
from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem, ToolResult
from chatstack.values.requests import ChatRequest, declared_names

T = TypeVar("T")


class Within(Generic[T]):
    """Sets a context variable while a stream is opened or read, for what stands below: ``ChatStream.watched``."""

    __slots__ = ("_value", "_variable")

    def __init__(self, variable: ContextVar[T], value: T) -> None:
        self._variable = variable
        self._value = value

    def enter(self) -> Token[T]:
        return self._variable.set(self._value)

    def leave(self, token: object, /) -> None:
        self._variable.reset(cast("Token[T]", token))

    def ended(self, answer: object, error: BaseException | None, /) -> None:
        return None


class WholeStack:
    """A chat client where another framework wants a model of its own. ``owner`` is what errors call that model.

    Raises ``WiringError`` for what is no client.
    """

    def __init__(self, client: ChatClient, *, owner: str) -> None:
        check_client(client, owner, "client")
        self.client = client
        self.info = provider_info(client)
        self._owner = owner

    @property
    def has_tool_loop(self) -> bool:
        """True if the stack runs tools of its own."""
        return any(layer_kind(each) == "tool_loop" for each in chain(self.client))

    async def send(self, request: ChatRequest, within: Within[T] | None = None) -> ChatStream:
        """Ask the stack, as a round of the agent's turn; what stands below sees a variable meanwhile."""
        count_round(self.client, request)
        if within is None:
            return await send_to(self.client, request)
        token = within.enter()
        try:
            stream = await send_to(self.client, request)
        finally:
            within.leave(token)
        return ChatStream.watched(stream, within)

    def refuse_items(self, messages: Iterable[Message], framework: str) -> None:
        """Raise ``InputError`` for what a user or a tool gives as an item of the framework's, which nobody sends."""
        for message in messages:
            for part in message.parts if message.role != "assistant" else ():
                for each in part.output if isinstance(part, ToolResult) else (part,):
                    if isinstance(each, ProviderItem) and each.provider == framework:
                        raise InputError(f"{self._owner}: content that cannot be sent: {each.json:.200}")


def tool_names(request: ChatRequest) -> frozenset[str]:
    """Return the names of the tools that the request declares: the agent's, not those of the stack's own loop."""
    return declared_names(request.options.tools)
