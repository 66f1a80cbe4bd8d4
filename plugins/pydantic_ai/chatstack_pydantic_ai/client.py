"""A model of Pydantic AI's as the provider of a stack."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator

from pydantic_ai.messages import (
    ModelRequest,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.models import Model, infer_model

from chatstack import ChatRequest, ChatUpdate, ProviderInfo
from chatstack.providers.foreign import ForeignClient
from chatstack.values.responses import CallDelta
from chatstack_pydantic_ai.answers import answer_of
from chatstack_pydantic_ai.messages import to_theirs
from chatstack_pydantic_ai.options import parameters_of, settings_of


class PydanticAIClient(ForeignClient):
    """The provider of a stack that asks a model of Pydantic AI's: ``ChatStack(PydanticAIClient("openai:gpt-5-mini"))``.

    So any model that Pydantic AI supports answers for a stack. Name, model and window are the model's own; ``info``
    states others. What the model raises becomes the matching ``ProviderError``, its cause what was raised; an exception
    that does not come from the model's side surfaces as it is. ``response.raw`` is Pydantic AI's response.
    """

    def __init__(self, model: Model | str, *, info: ProviderInfo | None = None) -> None:
        self.model = infer_model(model)
        self.info = info or info_of(self.model)

    async def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        options = request.options
        messages = to_theirs(request.messages, self.model.system)
        if options.instructions:
            messages.insert(0, ModelRequest([SystemPromptPart(options.instructions)]))
        parameters = parameters_of(options)
        settings, parameters = self.model.prepare_request(settings_of(options), parameters)
        if request.stream:
            async with self.model.request_stream(messages, settings, parameters) as stream:
                async for event in stream:
                    for update in _deltas(event):
                        yield update
                answer: ModelResponse = stream.get()
        else:
            answer = await self.model.request(messages, settings, parameters)
        for update in answer_of(answer, streamed=request.stream):
            yield update


def info_of(model: Model) -> ProviderInfo:
    """Return what a model of Pydantic AI's says of itself, as telemetry and counters know it."""
    window: object = getattr(model, "context_window", None)  # the lowest versions do not tell it
    return ProviderInfo(
        name=model.system or "pydantic-ai",
        model=model.model_name,
        window_tokens=window if type(window) is int else None,
    )


def _deltas(event: ModelResponseStreamEvent) -> Iterator[ChatUpdate]:
    if isinstance(event, PartStartEvent):
        part = event.part
        if isinstance(part, TextPart) and part.content:
            yield ChatUpdate(text=part.content)
        elif isinstance(part, ThinkingPart) and part.content:
            yield ChatUpdate(reasoning=part.content)
        elif isinstance(part, ToolCallPart):
            arguments = part.args if isinstance(part.args, str) else part.args_as_json_str() if part.args else ""
            yield ChatUpdate(call_delta=CallDelta(event.index, part.tool_call_id, part.tool_name, arguments))
    elif isinstance(event, PartDeltaEvent):
        delta = event.delta
        if isinstance(delta, TextPartDelta) and delta.content_delta:
            yield ChatUpdate(text=delta.content_delta)
        elif isinstance(delta, ThinkingPartDelta) and delta.content_delta:
            yield ChatUpdate(reasoning=delta.content_delta)
        elif isinstance(delta, ToolCallPartDelta) and isinstance(delta.args_delta, str):
            yield ChatUpdate(call_delta=CallDelta(event.index, arguments=delta.args_delta))
