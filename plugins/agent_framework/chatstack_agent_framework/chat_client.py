"""A stack as a chat client of Agent Framework's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Collection, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from agent_framework import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponseUpdate,
    FunctionInvocationLayer,
    ResponseStream,
)
from agent_framework import ChatResponse as TheirResponse
from agent_framework import Message as TheirMessage

from chatstack import ChatRequest, ChatStream, find
from chatstack.client.protocol import ChatClient
from chatstack.nodes.whole_stack import WholeStack, Within, tool_names
from chatstack_agent_framework.answers import TheirStream, their_response, their_updates, whole_of
from chatstack_agent_framework.client import AgentFrameworkClient
from chatstack_agent_framework.contents import FRAMEWORK, Counterparts, counterparts_now, from_theirs
from chatstack_agent_framework.options import from_their_options

_CONVERSATION = "chatstack_conversation_id"


class ChatStackClient(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient[Any]):
    """A chat client of Agent Framework's over a whole stack: ``Agent(client=ChatStackClient(stack.build()), ...)``.

    Goes wherever Agent Framework takes a chat client: agents, workflows. The stack's layers see each call of the model;
    the agent's session keeps every message. The agent's tools are carried out by Agent Framework; those of the stack's
    own tool loop run inside, and are in the response for information. The span of a model call is the stack's. The
    conversation's id is that of the agent's session. Errors are chatstack's. Raises ``WiringError`` for what is no
    client.
    """

    OTEL_PROVIDER_NAME: ClassVar[str] = "chatstack"
    DEFAULT_EXCLUDE: ClassVar[set[str]] = {*BaseChatClient.DEFAULT_EXCLUDE, "client", "_stack", "_below"}

    def __init__(self, client: ChatClient, **options: Any) -> None:
        self._stack = WholeStack(client, owner="ChatStackClient")
        self.client = client
        self.model = self._stack.info.model if self._stack.info is not None else ""
        self._below = find(client, AgentFrameworkClient)
        if self._below is not None:  # an agent asks who keeps the history
            vars(self)["STORES_BY_DEFAULT"] = getattr(self._below.client, "STORES_BY_DEFAULT", False)
        super().__init__(**options)

    def get_response(self, messages: Any, **given: Any) -> Any:
        """Answer as every chat client of theirs does."""
        kwargs: dict[str, Any] = dict(given.get("client_kwargs") or {})
        session: object = getattr(kwargs.get("session"), "session_id", None)
        if isinstance(session, str):
            given["client_kwargs"] = {**kwargs, _CONVERSATION: session}
        return super().get_response(messages, **given)

    def _inner_get_response(
        self, *, messages: Sequence[TheirMessage], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Awaitable[TheirResponse[Any]] | TheirStream:
        conversation_id: str | None = kwargs.get(_CONVERSATION)
        known = Counterparts()
        ours = tuple(from_theirs(message, known) for message in messages)
        if self._below is None:
            self._stack.refuse_items(ours, FRAMEWORK)
        request = ChatRequest(ours, from_their_options(options), conversation_id, stream=stream)
        response_format = options.get("response_format")
        if not stream:
            return self._whole(request, known, response_format)
        return self._streamed(request, known, response_format)

    async def _whole(self, request: ChatRequest, known: Counterparts, response_format: Any) -> TheirResponse[Any]:
        async with await self._sent(request, known) as stream:
            return their_response(await stream.response(), self._own_tools(request), response_format)

    def _streamed(self, request: ChatRequest, known: Counterparts, response_format: Any) -> TheirStream:
        opened: list[ChatStream] = []

        async def updates() -> AsyncIterator[ChatResponseUpdate]:
            opened.append(await self._sent(request, known))
            async with aclosing(their_updates(opened[0], self._own_tools(request))) as told:
                async for update in told:
                    yield update

        return ResponseStream(updates(), finalizer=lambda seen: whole_of(opened[0], seen, response_format))

    async def _sent(self, request: ChatRequest, known: Counterparts) -> ChatStream:
        return await self._stack.send(request, Within(counterparts_now, known))

    def _own_tools(self, request: ChatRequest) -> Collection[str] | None:
        """Return the names of the agent's tools. None if all calls are the agent's to answer: without a tool loop, that
        of a tool that nobody has, too."""
        return tool_names(request) if self._stack.has_tool_loop else None
