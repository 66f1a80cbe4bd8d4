"""The context layers of a stack around any model of Pydantic AI's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeAlias, cast

from opentelemetry import trace
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from chatstack import (
    ChatOptions,
    ChatRequest,
    ChatStack,
    ChatStream,
    ChatUpdate,
    semconv,
)
from chatstack.client.wiring import Resolver
from chatstack.nodes.in_place import InPlace
from chatstack_pydantic_ai.answers import answer_of
from chatstack_pydantic_ai.messages import Converted, conversation_of
from chatstack_pydantic_ai.options import weighed

Answer: TypeAlias = ModelResponse | StreamedResponse
Ask: TypeAlias = Callable[[list[ModelMessage]], Awaitable[Answer]]


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
        self._traced = self._layers(stack, resolve)
        self._untraced = self._layers(replace(stack, trace_model_calls=False), resolve)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async def ask(left: list[ModelMessage]) -> ModelResponse:
            return await self.wrapped.request(left, model_settings, model_request_parameters)

        options = self._options(messages, model_settings, model_request_parameters)
        call = _Call(messages, options, ask, stream=False)
        if not call.asked.messages:
            return await ask(messages)
        async with await self._sent(call) as stream:
            await stream.response()
        return call.response

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

            options = self._options(messages, model_settings, model_request_parameters)
            call = _Call(messages, options, ask, stream=True)
            if not call.asked.messages:
                yield await ask(messages)
                return
            async with await self._sent(call) as stream:
                yield call.stream
                if call.is_complete:
                    await stream.response()

    @staticmethod
    def _layers(stack: ChatStack, resolve: Resolver | None) -> InPlace:
        return InPlace(stack, owner="StackedModel", whole="ChatStackModel", resolve=resolve)

    def _options(
        self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ChatOptions:
        _, prepared = self.wrapped.prepare_request(settings, parameters)
        return weighed(self.wrapped, messages, prepared)

    async def _sent(self, call: _Call) -> ChatStream:
        layers = self._untraced if _has_chat_span() else self._traced
        return await layers.send(call.asked, call.answered)


class _Call:
    """One model call of an agent: the history as ours, and what came of it."""

    def __init__(self, messages: list[ModelMessage], options: ChatOptions, ask: Ask, *, stream: bool) -> None:
        self._came = messages
        self._ask = ask
        self._converted = Converted(messages)
        self.asked = ChatRequest(self._converted.messages, options, conversation_of(messages), stream)
        self.answer: Answer | None = None

    async def answered(self, sent: ChatRequest) -> ChatStream:
        """Ask the wrapped model what the layers leave of the request."""
        is_same = sent.messages is self.asked.messages
        self.answer = await self._ask(self._came if is_same else self._converted.theirs(sent.messages))
        return ChatStream(_updates(self.answer))

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


async def _updates(answer: Answer) -> AsyncGenerator[ChatUpdate, None]:
    """Yield the answer once it is there: of a stream, when the agent has read it."""
    for update in answer_of(answer if isinstance(answer, ModelResponse) else answer.get()):
        yield update


def _has_chat_span() -> bool:
    """Return True if the agent's own instrumentation has opened a span for this very call."""
    span = trace.get_current_span()
    known = cast("Mapping[str, object]", getattr(span, "attributes", None) or {})
    return span.is_recording() and known.get(semconv.OPERATION_NAME) == "chat"
