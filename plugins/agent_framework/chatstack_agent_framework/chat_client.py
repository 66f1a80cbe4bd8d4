"""A stack as a chat client of Agent Framework's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, cast

from agent_framework import BaseChatClient, ChatMiddlewareLayer, ChatResponseUpdate, FunctionInvocationLayer
from agent_framework import ChatResponse as TheirResponse
from agent_framework import Message as TheirMessage

from chatstack import ChatRequest, ChatStream, ToolDeclaration, WiringError
from chatstack.client.protocol import ChatClient, is_client, provider_info
from chatstack.telemetry.agent_turns import count_round
from chatstack_agent_framework.answers import TheirStream, their_response, their_updates
from chatstack_agent_framework.contents import from_theirs
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
    DEFAULT_EXCLUDE: ClassVar[set[str]] = {*BaseChatClient.DEFAULT_EXCLUDE, "client"}

    def __init__(self, client: ChatClient, **options: Any) -> None:
        if not is_client(client):
            told = f"client is a {type(client).__name__}, which has no send(); pass a chat client, e.g. stack.build()"
            raise WiringError(f"ChatStackClient: {told}", parameter="client")
        self.client = client
        info = provider_info(client)
        self.model = info.model if info is not None else ""
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
        request = ChatRequest(
            tuple(map(from_theirs, messages)), from_their_options(options), conversation_id, stream=stream
        )
        response_format = options.get("response_format")
        if not stream:
            return self._whole(request, response_format)
        return cast(
            "TheirStream", self._build_response_stream(self._streamed(request), response_format=response_format)
        )

    async def _whole(self, request: ChatRequest, response_format: Any) -> TheirResponse[Any]:
        async with await self._sent(request) as stream:
            return their_response(await stream.response(), _names(request), response_format)

    async def _streamed(self, request: ChatRequest) -> AsyncIterator[ChatResponseUpdate]:
        async with aclosing(their_updates(await self._sent(request), _names(request))) as told:
            async for update in told:
                yield update

    def _sent(self, request: ChatRequest) -> Awaitable[ChatStream]:
        count_round(self, request)
        return self.client.send(request)


def _names(request: ChatRequest) -> set[str]:
    return {tool.name for tool in request.options.tools if isinstance(tool, ToolDeclaration)}
