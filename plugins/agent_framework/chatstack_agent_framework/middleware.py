"""The context layers of a stack around the model calls of Agent Framework's agents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, cast

import agent_framework.observability as observability
from agent_framework import ChatContext, ChatMiddleware, ChatResponseUpdate, ResponseStream, normalize_messages
from agent_framework import ChatResponse as TheirResponse
from agent_framework.observability import ChatTelemetryLayer

from chatstack import ChatRequest, ChatStack, ChatStackError, ChatStream
from chatstack.client.wiring import Resolver
from chatstack.lru import Lru
from chatstack.nodes.in_place import InPlace, raised_by_call
from chatstack.providers.foreign import foreign_stream
from chatstack.stack.recipe import NO_PROVIDER
from chatstack_agent_framework.answers import TheirAnswer, answered, their_response, their_updates, whole_of
from chatstack_agent_framework.client import AgentFrameworkClient, info_of
from chatstack_agent_framework.contents import Counterparts, from_theirs, to_theirs
from chatstack_agent_framework.options import from_their_options

_MOST_CLIENTS = 100


class StackMiddleware(ChatMiddleware):
    """Puts a stack's context layers around every model call of an agent::

        Agent(client=..., middleware=[StackMiddleware(ChatStack().use(ContextWindowGuard, ...))])


    The layers decide what the model is sent; the agent's session keeps every message, and the caller's list stays as it
    is. Messages and contents that no layer has edited go on as the objects that they are, and the answer comes back
    untouched, streamed or not. The agent's own client answers; it writes the summaries, too, unless the stack has a
    provider. The conversation's id is that of the agent's session. Where the
    service keeps the history, or there is nothing but tool results, layers stand aside.

    It stands within the tool loop, and sees each of its calls. As the last of several middlewares it weighs what is
    really sent. An overflow that the model reports is seen by the layers, which may retry; what then surfaces is the
    client's exception. Where Agent Framework traces model calls, the stack opens no second span for them. Raises
    ``WiringError`` for a layer that cannot work there: a tool loop, a reporter, a fallback.
    """

    def __init__(self, stack: ChatStack, *, resolve: Resolver | None = None) -> None:
        self._stack = stack
        self._resolve = resolve
        self._made: Lru[tuple[int, bool], tuple[Any, InPlace]] = Lru(
            _MOST_CLIENTS
        )  # a client that is held keeps its id
        if not isinstance(stack, ChatStack) or stack.provider is not NO_PROVIDER:  # pyright: ignore[reportUnnecessaryIsInstance]
            InPlace(stack, owner="StackMiddleware", resolve=resolve)  # mistakes show here, not with the first call

    async def process(self, context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        """Answer one model call."""
        counterparts = Counterparts()
        came: Sequence[Any] = context.messages
        messages = tuple(from_theirs(message, counterparts) for message in normalize_messages(came))
        if all(message.role == "tool" for message in messages):
            await call_next()  # their calls are held elsewhere
            return
        session: object = getattr(context.session, "session_id", None)
        conversation_id = session if isinstance(session, str) else None
        request = ChatRequest(messages, from_their_options(context.options), conversation_id, context.stream)

        async def ask() -> TheirAnswer:
            await call_next()
            return cast("TheirAnswer", context.result)

        async def call(sent: ChatRequest) -> ChatStream:
            same = sent.messages is messages
            context.messages = came if same else [to_theirs(message, counterparts) for message in sent.messages]
            return await foreign_stream(info_of(context.client).name, answered(ask))

        stream = await self._layers(context.client).send(request, call)
        response_format = (context.options or {}).get("response_format")
        if context.stream:
            context.result = _theirs(stream, response_format)
            return
        async with stream:
            answer = await stream.response()
        context.result = their_response(answer, None, response_format)

    def _layers(self, client: Any) -> InPlace:
        tracing: tuple[type, ...] = (ChatTelemetryLayer,) if observability.OBSERVABILITY_SETTINGS.ENABLED else ()
        traced = not isinstance(client, tracing)
        made = self._made.get((id(client), traced))
        if made is None:
            stack = self._stack
            if stack.provider is NO_PROVIDER:
                stack = replace(stack, provider=AgentFrameworkClient(client))
            stack = stack if traced else replace(stack, trace_model_calls=False)
            made = client, InPlace(stack, owner="StackMiddleware", resolve=self._resolve)
            self._made.put((id(client), traced), made)
        return made[1]


def _theirs(stream: ChatStream, response_format: Any) -> ResponseStream[ChatResponseUpdate, TheirResponse[Any]]:
    """Return the stream as theirs."""

    async def updates() -> AsyncIterator[ChatResponseUpdate]:
        try:
            async with aclosing(their_updates(stream, None)) as told:
                async for update in told:
                    yield update
        except ChatStackError as error:
            surfacing = raised_by_call(error)
        else:
            return
        raise surfacing

    return ResponseStream(updates(), finalizer=lambda seen: whole_of(stream, seen, response_format))
