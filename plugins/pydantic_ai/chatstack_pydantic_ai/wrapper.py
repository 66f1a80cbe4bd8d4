"""The context layers of a stack around any model of Pydantic AI's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias, cast

from opentelemetry import trace
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStackError,
    ChatStream,
    ChatUpdate,
    WiringError,
    semconv,
)
from chatstack.client.protocol import ChatClient, LayerKind, ProviderInfo, layer_kind, provider_info
from chatstack.client.wiring import Resolver
from chatstack.providers.foreign import foreign_failure
from chatstack.telemetry.agent_turns import count_round
from chatstack_pydantic_ai.answers import answer_of
from chatstack_pydantic_ai.messages import Converted
from chatstack_pydantic_ai.options import declared

Answer: TypeAlias = ModelResponse | StreamedResponse
Ask: TypeAlias = Callable[[list[ModelMessage]], Awaitable[Answer]]

_UNFIT: dict[str, str] = {
    "tool_loop": "the agent runs the tools; leave this layer out",
    "reporter": "an agent's turn is several model calls; instrument the agent, or open agent_turn(...) around it",
    "fallback": "the wrapped model answers; use ChatStackModel over the whole stack",
    "stack": "it is built already; pass the recipe",
}


class StackedModel(WrapperModel):
    """Any model of Pydantic AI's with a stack's context layers in front: ``Agent(StackedModel(model, stack), ...)``.

    The layers decide what the model is sent; the agent's history keeps every message. What no layer has edited goes on
    as the objects that they are, profile and settings are the model's, and its response, or its stream, comes back
    untouched. The provider of the stack is asked only for summaries, for its window and for counts:
    ``ChatStack(PydanticAIClient(model))``. The conversation's id is that of the run.

    An overflow that the model reports is seen by the layers, which may retry; what surfaces is what the model raised.
    Where the agent is instrumented, its own ``chat`` span stands for the call, and ours are below it. Raises
    ``WiringError`` for a layer that cannot work there: a tool loop, a reporter, a fallback.
    """

    def __init__(self, wrapped: Model | str, stack: ChatStack, *, resolve: Resolver | None = None) -> None:
        super().__init__(wrapped)
        if not isinstance(stack, ChatStack):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(
                f"StackedModel: stack is a {type(stack).__name__}; pass a ChatStack, not built", parameter="stack"
            )
        info = provider_info(stack.provider) or ProviderInfo(name="pydantic-ai")
        recipe = replace(stack, provider=_AgentModel(info, stack.provider))
        self._traced = recipe.build(resolve)
        self._untraced = replace(recipe, trace_model_calls=False).build(resolve)
        for name, layer in zip(self._traced.names, self._traced.layers, strict=True):
            reason = _UNFIT.get(layer_kind(layer))
            if reason is not None:
                raise WiringError(f"StackedModel: layer {name!r}: {reason}", layer=name, parameter="stack")

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask(left: list[ModelMessage]) -> ModelResponse:
            return await self.wrapped.request(left, model_settings, model_request_parameters)

        call = _Call(messages, model_request_parameters, ask, stream=False)
        if not call.asked.messages:
            return await ask(messages)
        try:
            async with await self._sent(call) as stream:
                await stream.response()
            return call.response
        except ChatStackError as error:
            theirs = call.surfacing(error)
        raise theirs

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        async with AsyncExitStack() as opened:

            async def ask(left: list[ModelMessage]) -> StreamedResponse:
                return await opened.enter_async_context(
                    self.wrapped.request_stream(left, model_settings, model_request_parameters, run_context)
                )

            call = _Call(messages, model_request_parameters, ask, stream=True)
            if not call.asked.messages:
                yield await ask(messages)
                return
            stream: ChatStream | None = None
            failure: Exception | None = None
            try:
                stream = await self._sent(call)
            except ChatStackError as error:
                failure = call.surfacing(error)
            if stream is None:
                raise failure or AssertionError
            async with stream:
                yield call.stream
                if call.is_complete:
                    await stream.response()

    async def _sent(self, call: _Call) -> ChatStream:
        count_round(self, call.asked)
        client = self._untraced if _has_chat_span() else self._traced
        token = _call_now.set(call)
        try:
            return await client.send(call.asked)
        finally:
            _call_now.reset(token)


class _Call:
    """One model call of an agent: the history as ours, and what came of it."""

    def __init__(
        self, messages: list[ModelMessage], parameters: ModelRequestParameters, ask: Ask, *, stream: bool
    ) -> None:
        self._came = messages
        self._ask = ask
        self._converted = Converted(messages)
        last = next((each for each in reversed(messages) if isinstance(each, ModelRequest)), None)
        instructions = (last.instructions if last is not None else None) or ""
        options = ChatOptions(instructions=instructions, tools=declared(parameters))
        named = getattr(last, "conversation_id", None)
        self.asked = ChatRequest(self._converted.messages, options, named, stream)
        self.answer: Answer | None = None
        self.raised: Exception | None = None

    async def ask(self, sent: ChatRequest) -> Answer:
        """Ask the wrapped model what the layers leave of the request."""
        if sent.options != self.asked.options:
            raise WiringError("StackedModel: a layer changes the options of the call, which are the agent's here")
        is_same = sent.messages is self.asked.messages
        try:
            self.answer = await self._ask(self._came if is_same else self._converted.theirs(sent.messages))
        except Exception as error:
            self.raised = error
            raise
        return self.answer

    @property
    def response(self) -> ModelResponse:
        """The model's response, as it came."""
        if not isinstance(self.answer, ModelResponse):
            raise TypeError("StackedModel: a layer answered in the model's place; use ChatStackModel")
        return self.answer

    @property
    def stream(self) -> StreamedResponse:
        """The model's stream, as it came."""
        if not isinstance(self.answer, StreamedResponse):
            raise TypeError("StackedModel: a layer answered in the model's place; use ChatStackModel")
        return self.answer

    @property
    def is_complete(self) -> bool:
        """True if the stream was read to its end."""
        return self.stream.get().state == "complete"

    def surfacing(self, error: ChatStackError) -> Exception:
        """Return the exception for the agent: what its model raised, where that is the cause."""
        cause: BaseException | None = error
        while cause is not None:
            if cause is self.raised and isinstance(cause, Exception):
                return cause
            cause = cause.__cause__
        return error


_call_now: ContextVar[_Call] = ContextVar("chatstack_pydantic_ai_call")


class _AgentModel:
    """The end of the stack: the wrapped model. ``inner`` is asked for summaries, and what else layers need."""

    kind: ClassVar[LayerKind] = "context"  # so that summaries are asked for below it

    def __init__(self, info: ProviderInfo, inner: ChatClient) -> None:
        self.info = info
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        try:
            answer = await _call_now.get().ask(request)
        except Exception as error:
            known = foreign_failure(self.info.name, error)
            if known is None or known is error:
                raise
            raise known from error
        stream = ChatStream(_updates(answer))
        stream.sent = request
        return stream


async def _updates(answer: Answer) -> AsyncGenerator[ChatUpdate, None]:
    """Yield the answer once it is there: of a stream, when the agent has read it."""
    for update in answer_of(answer if isinstance(answer, ModelResponse) else answer.get()):
        yield update


def _has_chat_span() -> bool:
    """Return True if the agent's own instrumentation has opened a span for this very call."""
    span = trace.get_current_span()
    known = cast("Mapping[str, object]", getattr(span, "attributes", None) or {})
    return span.is_recording() and known.get(semconv.OPERATION_NAME) == "chat"
