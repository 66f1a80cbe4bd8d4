"""The context layers of a stack around the model calls of LangChain's agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, NamedTuple, TypeAlias, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    Message,
)
from chatstack.client.blocking import Blocking
from chatstack.client.wiring import Resolver
from chatstack.nodes.conversions import Conversions
from chatstack.nodes.in_place import InPlace
from chatstack.values.requests import DeclaredTool
from chatstack_langchain.client import answer_of, info_of
from chatstack_langchain.errors import errors_as_theirs
from chatstack_langchain.graphs import thread_id
from chatstack_langchain.options import declared
from chatstack_langchain.turns import content_of, plainly
from chatstack_langgraph import to_langchain
from chatstack_langgraph.pieces import pieces_of

Request: TypeAlias = ModelRequest[Any]
Response: TypeAlias = ModelResponse[Any]

_MOST_KEPT = 20_000
"""Maximum number of edited messages that are kept; then all are made again."""


class StackMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Puts a stack's context layers around every model call of an agent: ``create_agent(..., middleware=[this])``.

    The layers decide what the model is sent; the agent's state and its checkpoints keep every message. Messages that no
    layer has edited go on as the objects that they are, and the model's response comes back untouched. The agent's own
    model answers; the provider of the stack is asked only for summaries, for its window and for counts, as in a
    ``StackContextManager``: ``ChatStack(LangChainClient(model))``. The conversation's id is the ``thread_id``.

    As the innermost of several middlewares it weighs what is really sent: put it last. An overflow that the model
    reports is seen by the layers, which may retry; what then surfaces is LangChain's exception. Works with ``invoke``
    and ``ainvoke``. Raises ``WiringError`` for a layer that cannot work there: a tool loop, a reporter, a fallback.
    """

    def __init__(self, stack: ChatStack, *, resolve: Resolver | None = None) -> None:
        super().__init__()
        self._layers = InPlace(stack, owner="StackMiddleware", whole="ChatStackModel", resolve=resolve)
        self._known = Conversions(plainly, content_of)
        self._blocking = Blocking()
        self._edited: dict[int, _Edited] = {}
        self._declared: tuple[list[Any], tuple[DeclaredTool, ...]] = ([], ())

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        """Answer a call of ``agent.invoke``."""
        call = _Call(request, self._asked(request), self._edited)
        with errors_as_theirs():
            return self._blocking.run(lambda ask: self._answer(call, ask), handler)

    async def awrap_model_call(self, request: Request, handler: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer a call of ``agent.ainvoke``."""
        call = _Call(request, self._asked(request), self._edited)
        with errors_as_theirs():
            return await self._answer(call, handler)

    async def _answer(self, call: _Call, ask: Callable[[Request], Awaitable[Response]]) -> Response:
        async with await self._layers.send(call.asked, lambda sent: call.answer(sent, ask)) as stream:
            answer = await stream.response()
        return call.response or ModelResponse(result=to_langchain(answer.messages))

    def _asked(self, request: Request) -> ChatRequest:
        """Return the request as the layers see it."""
        head = [] if request.system_message is None else [request.system_message]
        messages = tuple(self._known.of(each)[0] for each in [*head, *request.messages])
        options = ChatOptions(model=self._other_model(request.model), tools=self._tools(request.tools))
        return ChatRequest(messages, options, thread_id())

    def _tools(self, tools: list[Any]) -> tuple[DeclaredTool, ...]:
        """Return the declarations of the tools: those of the call before, where the tools are the same."""
        known, found = self._declared
        if len(known) != len(tools) or any(one is not other for one, other in zip(known, tools, strict=True)):
            found = declared(tools)
            self._declared = (list(tools), found)
        return found

    def _other_model(self, model: object) -> str | None:
        """Return the name of a model that is not the stack's own: what is learnt is learnt about it."""
        name = info_of(model).model if isinstance(model, BaseChatModel) else ""
        return name if name and name != self._layers.model else None


class _Edited(NamedTuple):
    """An edited message of ours, the message that it stands for, and its edited form."""

    message: Message
    before: BaseMessage | None
    theirs: list[BaseMessage]


class _Call:
    """One model call of an agent: LangChain's request, and ours; then what came of it. ``edited`` is kept from call to
    call, as layers send the same edited messages until their next edit."""

    def __init__(self, request: Request, asked: ChatRequest, edited: dict[int, _Edited]) -> None:
        head = [] if request.system_message is None else [request.system_message]
        self._request = request
        self._came = dict(zip(map(id, asked.messages), [*head, *request.messages], strict=True))
        self._edited = edited
        self.asked = asked
        self.response: Response | None = None

    async def answer(self, sent: ChatRequest, ask: Callable[[Request], Awaitable[Response]]) -> ChatStream:
        """Ask the agent's model what the layers leave of the request."""
        self.response = await ask(self._theirs(sent))
        said = [each for each in self.response.result if isinstance(each, AIMessage)]
        return await ChatStream.primed(_updates(said[-1] if said else AIMessage("")))

    def _theirs(self, sent: ChatRequest) -> Request:
        if sent.messages is self.asked.messages:
            return self._request
        messages = [each for message in sent.messages for each in self._as_theirs(message)]
        system = messages[0] if messages and isinstance(messages[0], SystemMessage) else None
        messages = messages if system is None else messages[1:]
        return self._request.override(messages=cast("Any", messages), system_message=system)

    def _as_theirs(self, message: Message) -> list[BaseMessage]:
        came = self._came.get(id(message))
        if came is not None:
            return [came]
        before = self._came.get(id(message.original))
        known = self._edited.get(id(message))
        if known is not None and known.message is message and known.before is before:
            return known.theirs
        theirs = self._copied(message, before)
        if len(self._edited) >= _MOST_KEPT:
            self._edited.clear()
        self._edited[id(message)] = _Edited(message, before, theirs)
        return theirs

    def _copied(self, message: Message, before: BaseMessage | None) -> list[BaseMessage]:
        """Return the message that was edited, with what the edit changed; a new one for a message of a layer's."""
        plain = [] if before is None else pieces_of(message)
        if before is None or len(plain) != 1:
            return to_langchain([message])
        changed = {
            name: getattr(plain[0], name)
            for name in ("content", "tool_calls", "invalid_tool_calls")
            if hasattr(plain[0], name)
        }
        calls = ("tool_calls", "function_call")  # in a provider's own words, which some integrations send first
        rest = {name: value for name, value in before.additional_kwargs.items() if name not in calls}
        return [before.model_copy(update={**changed, "additional_kwargs": rest})]


async def _updates(message: AIMessage) -> AsyncGenerator[ChatUpdate, None]:
    for update in answer_of(message):
        yield update
