"""A stack as a model of Pydantic AI's."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    ThinkingPart,
    ThinkingPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings

from chatstack import ChatClient, ChatRequest, ChatResponse, ChatStream, ToolCall, WiringError
from chatstack.nodes.whole_stack import WholeStack
from chatstack_pydantic_ai.answers import to_finish_reason, to_usage
from chatstack_pydantic_ai.messages import FRAMEWORK, Converted, conversation_of, to_response_parts
from chatstack_pydantic_ai.options import options_from

_UNSIGNED: dict[str, Any] = {"provider_name": None, "provider_details": None}


class ChatStackModel(Model):
    """A model over a whole stack: ``Agent(ChatStackModel(stack.build()), ...)``.

    The stack's layers see each call of the model; the agent's history keeps every message. The agent runs its tools: a
    stack with a tool loop is refused with a ``WiringError``, as a response has no place for the results of its tools.
    Structured output works by tools and, with a provider that has it, natively. ``client`` is any chat client: a built
    stack, a provider. Errors are chatstack's.
    """

    def __init__(
        self, client: ChatClient, *, settings: ModelSettings | None = None, profile: ModelProfile | None = None
    ) -> None:
        self._stack = WholeStack(client, owner="ChatStackModel")
        if self._stack.has_tool_loop:
            told = "the stack runs tools of its own, whose results have no place in a response; give them to the agent"
            raise WiringError(f"ChatStackModel: {told}", parameter="client")
        native = ModelProfile(supports_json_schema_output=True, supports_thinking=True)
        super().__init__(settings=settings, profile=native if profile is None else profile)
        self.client = client
        self._info = self._stack.info

    @property
    def model_name(self) -> str:
        return self._info.model if self._info is not None and self._info.model else "chatstack"

    @property
    def system(self) -> str:
        return self._info.name if self._info is not None else "chatstack"

    @property
    def context_window(self) -> int | None:
        return self._info.window_tokens if self._info is not None else None

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        async with await self._sent(messages, model_settings, model_request_parameters, stream=False) as stream:
            return self._response(await stream.response())

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        async with await self._sent(messages, model_settings, model_request_parameters, stream=True) as stream:
            yield _Streamed(model_request_parameters, stream, self.model_name, self.system)

    async def _sent(
        self,
        messages: list[ModelMessage],
        settings: ModelSettings | None,
        parameters: ModelRequestParameters,
        *,
        stream: bool,
    ) -> ChatStream:
        settings, parameters = self.prepare_request(settings, parameters)
        options = options_from(self, messages, settings, parameters)
        converted = Converted(messages).messages
        self._stack.refuse_items(converted, FRAMEWORK)
        request = ChatRequest(converted, options, conversation_of(messages), stream)
        return await self._stack.send(request)

    def _response(self, answer: ChatResponse) -> ModelResponse:
        return ModelResponse(
            to_response_parts(answer.messages[-1].parts),
            usage=to_usage(answer.usage),
            model_name=answer.model or self.model_name,
            provider_name=self.system,
            provider_response_id=answer.id or None,
            finish_reason=to_finish_reason(answer.finish_reason),
        )


@dataclass
class _Streamed(StreamedResponse):
    """An answer of a stack on its way to an agent."""

    _stream: ChatStream
    _model: str
    _system: str
    _began: datetime = field(default_factory=lambda: datetime.now(tz=UTC))
    _whole: Sequence[ModelResponsePart] | None = field(default=None, init=False)

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        manager = self._parts_manager
        begun: set[str] = set()
        run, last = 0, ""  # text or reasoning that nothing else has interrupted is one part
        async for update in self._stream:
            delta, part = update.call_delta, update.part
            for kind, said in (("reasoning", update.reasoning), ("text", update.text)):
                if said:
                    run, last = run + (kind != last), kind
                    handled = manager.handle_text_delta if kind == "text" else manager.handle_thinking_delta
                    for event in handled(vendor_part_id=(kind, run), content=said):
                        yield event
            if delta is not None:
                last = ""
                begun.add(delta.id)
                found = manager.handle_tool_call_delta(
                    vendor_part_id=delta.index,
                    tool_name=delta.name or None,
                    args=delta.arguments or None,
                    tool_call_id=delta.id or None,
                )
                if found is not None:
                    yield found
            elif part is not None and not (isinstance(part, ToolCall) and part.id in begun):
                last = ""
                for each in to_response_parts([part]):
                    yield manager.handle_part(vendor_part_id=None, part=each)
        answer = await self._stream.response()
        self._whole = to_response_parts(answer.messages[-1].parts)
        for event in self._signed(self._whole):
            yield event
        self._usage = to_usage(answer.usage)
        self.provider_response_id = answer.id or None
        self.finish_reason = to_finish_reason(answer.finish_reason)

    def _signed(self, whole: Sequence[ModelResponsePart]) -> Iterator[ModelResponseStreamEvent]:
        """Yield what only the whole message tells of its reasoning: the provider's own items."""
        for index, (part, shown) in enumerate(zip(whole, self._parts_manager.get_parts(), strict=False)):
            if part != shown and isinstance(part, ThinkingPart) and replace(part, **_UNSIGNED) == shown:
                details: dict[str, Any] = {name: getattr(part, name) for name in _UNSIGNED}
                signed = ThinkingPartDelta(content_delta="", **details)
                yield PartDeltaEvent(index=index, delta=signed)

    def get(self) -> ModelResponse:
        """Return the response so far; once it is whole, as it would be if it had not been streamed."""
        response = super().get()
        return response if self._whole is None else replace(response, parts=self._whole)

    async def close_stream(self) -> None:
        await self._stream.aclose()

    @property
    def model_name(self) -> str:
        return self._model

    @property
    def provider_name(self) -> str:
        return self._system

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return self._began
