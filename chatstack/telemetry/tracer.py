"""One ``chat`` span per model call."""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from opentelemetry.trace import Span, SpanKind, set_span_in_context

from chatstack import semconv
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient, ProviderInfo, provider_info
from chatstack.client.stream import ChatStream
from chatstack.telemetry.emission import SpanWatch, Telemetry, Value, end_span, error_type
from chatstack.telemetry.turns import Turn, attached, current_turn, is_compacted, with_turn
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, Usage

_UNKNOWN = ProviderInfo(name="unknown")


@dataclass(frozen=True, slots=True, eq=False)
class ModelTracer(ChatFronts):
    """Opens one CLIENT span ``chat {model}`` per model call, a refused one included, and records its metrics.

    Goes right around the provider, innermost; ``build()`` puts it there. The span ends once: with the answer, an
    error, a close, or when the stream is dropped. Source: OpenTelemetry GenAI conventions.
    """

    inner: ChatClient
    _: KW_ONLY
    telemetry: Telemetry = field(default_factory=Telemetry, repr=False)

    kind: ClassVar[str] = "tracer"

    async def send(self, request: ChatRequest, /) -> ChatStream:
        turn = current_turn()
        if (turn is None or turn.listener is None) and self.telemetry.is_silent:
            stream = _checked(await self.inner.send(request), self.inner)
            stream.sent = request
            return stream
        info = provider_info(self.inner) or _UNKNOWN
        attributes = _request_attributes(request, info, turn)
        model = request.options.model or info.model
        span = self.telemetry.tracer.start_span(
            f"chat {model}" if model else "chat", kind=SpanKind.CLIENT, attributes=attributes
        )
        context = set_span_in_context(span)
        if turn is None:
            turn = Turn(span, request.conversation_id)
            context = with_turn(turn, context)
        call = _ModelCall(self.telemetry, span, turn, model, info.name)
        turn.tell("model_call_started", model)
        try:
            with attached(context):
                stream = _checked(await self.inner.send(request), self.inner)
        except BaseException as error:
            call.ended(None, error)
            raise
        call.answered(request.stream)
        stream.sent = request
        return ChatStream.watched(stream, SpanWatch(context, call.ended))


def _checked(stream: ChatStream, inner: ChatClient) -> ChatStream:
    """Refuse what is no stream here, where it can be told whose it is."""
    if not isinstance(stream, ChatStream):  # pyright: ignore[reportUnnecessaryIsInstance]
        given, kind = type(stream).__name__, type(inner).__name__
        raise TypeError(f"{kind}: send() gave a {given}, not a ChatStream: ChatStream.primed(updates) makes one")
    return stream


class _ModelCall:
    """What is known of one call until its span ends. Holds no stream, so that a dropped one can be noticed."""

    __slots__ = ("_model", "_provider", "_span", "_started", "_telemetry", "_turn")

    def __init__(self, telemetry: Telemetry, span: Span, turn: Turn, model: str, provider: str) -> None:
        self._telemetry = telemetry
        self._span = span
        self._turn = turn
        self._model = model
        self._provider = provider
        self._started = time.perf_counter()

    def answered(self, streaming: bool) -> None:
        if streaming:
            seconds = time.perf_counter() - self._started
            self._span.set_attribute(semconv.RESPONSE_TIME_TO_FIRST_CHUNK, seconds)
            self._telemetry.chat_first_chunk.record(seconds, self._labels(None))

    def ended(self, answer: ChatResponse | None, error: BaseException | None) -> None:
        usage = answer.usage if answer is not None else Usage()
        if answer is not None and self._span.is_recording():
            self._span.set_attributes(_answer_attributes(answer))
        end_span(self._span, error)
        seconds = time.perf_counter() - self._started
        labels = self._labels(error)
        self._telemetry.chat_duration.record(seconds, labels)
        if usage.total_tokens:
            self._telemetry.chat_tokens.record(usage.input_tokens, {**labels, semconv.TOKEN_TYPE: "input"})
            self._telemetry.chat_tokens.record(usage.output_tokens, {**labels, semconv.TOKEN_TYPE: "output"})
        self._turn.tell(
            "model_call_ended",
            self._model,
            error=error_type(error),
            numbers={
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "seconds": seconds,
            },
        )

    def _labels(self, error: BaseException | None) -> dict[str, str]:
        labels = {
            semconv.OPERATION_NAME: "chat",
            semconv.PROVIDER_NAME: self._provider,
            semconv.REQUEST_MODEL: self._model,
        }
        if error is not None:
            labels[semconv.ERROR_TYPE] = error_type(error)
        return labels


def _request_attributes(request: ChatRequest, info: ProviderInfo, turn: Turn | None) -> dict[str, Value | list[str]]:
    """What is known before the call; set at the span's start, for samplers."""
    options = request.options
    known: dict[str, Value | list[str] | None] = {
        semconv.OPERATION_NAME: "chat",
        semconv.PROVIDER_NAME: info.name,
        semconv.REQUEST_MODEL: options.model or info.model or None,
        semconv.SERVER_ADDRESS: info.server_address or None,
        semconv.SERVER_PORT: info.server_port,
        semconv.CONVERSATION_ID: request.conversation_id,
        semconv.REQUEST_STREAM: True if request.stream else None,
        semconv.REQUEST_MAX_TOKENS: options.max_tokens,
        semconv.REQUEST_TEMPERATURE: options.temperature,
        semconv.REQUEST_TOP_P: options.top_p,
        semconv.REQUEST_SEED: options.seed,
        semconv.REQUEST_REASONING_LEVEL: options.reasoning_effort,
        semconv.REQUEST_STOP_SEQUENCES: list(options.stop) if options.stop else None,
        semconv.OUTPUT_TYPE: "json" if options.output_schema is not None else None,
        semconv.ITERATION: turn.round if turn is not None else None,
        semconv.CONVERSATION_COMPACTED: True if is_compacted() else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _answer_attributes(answer: ChatResponse) -> dict[str, Value | list[str]]:
    usage = answer.usage
    known: dict[str, Value | list[str] | None] = {
        semconv.RESPONSE_ID: answer.id or None,
        semconv.RESPONSE_MODEL: answer.model or None,
        semconv.RESPONSE_FINISH_REASONS: [answer.finish_reason] if answer.finish_reason else None,
        semconv.USAGE_INPUT: usage.input_tokens or None,
        semconv.USAGE_OUTPUT: usage.output_tokens or None,
        semconv.USAGE_CACHE_READ: usage.cache_read_tokens or None,
        semconv.USAGE_CACHE_WRITE: usage.cache_write_tokens or None,
        semconv.USAGE_CACHE_CREATION: usage.cache_write_tokens or None,
        semconv.USAGE_REASONING: usage.reasoning_tokens or None,
    }
    return {name: value for name, value in known.items() if value is not None}
