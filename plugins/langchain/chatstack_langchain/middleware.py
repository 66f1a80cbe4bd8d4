"""The context layers of a stack around the model calls of LangChain's agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, TypeAlias, cast

from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
from langchain_core.exceptions import ContextOverflowError as TheirOverflowError
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage
from langchain_core.runnables.config import ensure_config

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStackError,
    ChatStream,
    ChatUpdate,
    ContextOverflowError,
    Message,
    WiringError,
)
from chatstack.client.protocol import ChatClient, LayerKind, ProviderInfo, layer_kind, provider_info
from chatstack.client.wiring import Resolver
from chatstack.providers.foreign import foreign_failure
from chatstack.telemetry.agent_turns import count_round
from chatstack.values.requests import DeclaredTool
from chatstack_langchain.blocking import run_blocking
from chatstack_langchain.client import answer_of, info_of
from chatstack_langchain.known import KnownMessages
from chatstack_langchain.options import declared
from chatstack_langchain.turns import plainly
from chatstack_langgraph import to_langchain

Request: TypeAlias = ModelRequest[Any]
Response: TypeAlias = ModelResponse[Any]

_MOST_KEPT = 20_000
"""Maximum number of edited messages that are kept; then all are made again."""
_UNFIT: dict[str, str] = {
    "tool_loop": "the agent runs the tools; leave this layer out",
    "reporter": "an agent's turn is several model calls; open it with agent_turn(...) around the agent",
    "fallback": "the agent's own model answers; use ChatStackModel over the whole stack",
    "stack": "it is built already; pass the recipe",
}


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
        if not isinstance(stack, ChatStack):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"StackMiddleware: stack is a {type(stack).__name__}; pass a ChatStack, not built", parameter="stack"
            )
        self._info = provider_info(stack.provider) or ProviderInfo(name="langchain")
        self._client = replace(stack, provider=_AgentModel(self._info, stack.provider)).build(resolve)
        self._known = KnownMessages(plainly)
        self._edited: dict[int, _Edited] = {}
        self._declared: tuple[list[Any], tuple[DeclaredTool, ...]] = ([], ())
        for name, layer in zip(self._client.names, self._client.layers, strict=True):
            reason = _UNFIT.get(layer_kind(layer))
            if reason is not None:
                raise WiringError(f"StackMiddleware: layer {name!r}: {reason}", layer=name, parameter="stack")

    def wrap_model_call(self, request: Request, handler: Callable[[Request], Response]) -> Response:
        """Answer a call of ``agent.invoke``."""
        call = _Call(request, self._asked(request), self._edited)
        try:
            return run_blocking(lambda ask: self._answer(call, ask), handler)
        except ChatStackError as error:
            theirs = call.surfacing(error)
        raise theirs

    async def awrap_model_call(self, request: Request, handler: Callable[[Request], Awaitable[Response]]) -> Response:
        """Answer a call of ``agent.ainvoke``."""
        call = _Call(request, self._asked(request), self._edited)
        try:
            return await self._answer(call, handler)
        except ChatStackError as error:
            theirs = call.surfacing(error)
        raise theirs

    async def _answer(self, call: _Call, ask: Callable[[Request], Awaitable[Response]]) -> Response:
        call.ask = ask
        count_round(self, call.asked)
        token = _call_now.set(call)
        try:
            async with await self._client.send(call.asked) as stream:
                answer = await stream.response()
        finally:
            _call_now.reset(token)
        return call.response or ModelResponse(result=to_langchain(answer.messages))

    def _asked(self, request: Request) -> ChatRequest:
        """Return the request as the layers see it."""
        head = [] if request.system_message is None else [request.system_message]
        messages = tuple(self._known.of(each)[0] for each in [*head, *request.messages])
        thread = ensure_config().get("configurable", {}).get("thread_id")
        options = ChatOptions(model=self._other_model(request.model), tools=self._tools(request.tools))
        return ChatRequest(messages, options, str(thread) if thread not in (None, "") else None)

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
        return name if name and name != self._info.model else None


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
        self.ask: Callable[[Request], Awaitable[Response]] | None = None
        self.response: Response | None = None
        self.raised: Exception | None = None

    async def answer(self, sent: ChatRequest) -> Response:
        """Ask the agent's model what the layers leave of the request."""
        if self.ask is None:  # pragma: no cover - set before the layers are asked
            raise AssertionError
        try:
            self.response = await self.ask(self._theirs(sent))
        except Exception as error:
            self.raised = error
            raise
        return self.response

    def surfacing(self, error: ChatStackError) -> Exception:
        """Return the exception for the agent: what its model raised, where that is the cause; LangChain's overflow."""
        cause: BaseException | None = error
        while cause is not None:
            if cause is self.raised and isinstance(cause, Exception):
                return cause
            cause = cause.__cause__
        if not isinstance(error, ContextOverflowError):
            return error
        theirs = TheirOverflowError(str(error))
        theirs.__cause__ = error
        return theirs

    def _theirs(self, sent: ChatRequest) -> Request:
        if sent.options != self.asked.options:
            raise WiringError(
                "StackMiddleware: a layer changes the options of the call, which are the agent's here; leave it out "
                "(native edits need the provider itself: ChatStackModel over the whole stack)"
            )
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
        plain = to_langchain([message])
        if before is None or len(plain) != 1:
            return plain
        changed = {
            name: getattr(plain[0], name)
            for name in ("content", "tool_calls", "invalid_tool_calls")
            if hasattr(plain[0], name)
        }
        calls = ("tool_calls", "function_call")  # in a provider's own words, which some integrations send first
        rest = {name: value for name, value in before.additional_kwargs.items() if name not in calls}
        return [before.model_copy(update={**changed, "additional_kwargs": rest})]


_call_now: ContextVar[_Call] = ContextVar("chatstack_langchain_call")


class _AgentModel:
    """The end of the stack: the agent's own model. ``inner`` is asked for summaries, and what else layers need."""

    kind: ClassVar[LayerKind] = "context"  # so that summaries are asked for below it

    def __init__(self, info: ProviderInfo, inner: ChatClient) -> None:
        self.info = info
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        try:
            response = await _call_now.get().answer(request)
        except Exception as error:
            known = foreign_failure(self.info.name, error)
            if known is None or known is error:
                raise
            raise known from error
        said = [each for each in response.result if isinstance(each, AIMessage)]
        stream = await ChatStream.primed(_updates(said[-1] if said else AIMessage("")))
        stream.sent = request
        return stream


async def _updates(message: AIMessage) -> AsyncGenerator[ChatUpdate, None]:
    for update in answer_of(message):
        yield update
