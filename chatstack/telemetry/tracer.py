"""One ``chat`` span per model call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import ClassVar, Literal, TypeAlias

from opentelemetry import context as otel
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, set_span_in_context

from chatstack import semconv
from chatstack.client.checks import send_to, wraps_a_client
from chatstack.client.collecting import outside_collector, seconds_since
from chatstack.client.fronts import ChatFronts
from chatstack.client.options import check_options
from chatstack.client.protocol import ChatClient, LayerKind, ProviderInfo, chain, layer_kind, provider_info
from chatstack.client.stream import ChatStream
from chatstack.telemetry.cache_misses import attributes_of, compare_with_last
from chatstack.telemetry.content import as_attributes, content_of
from chatstack.telemetry.emission import Telemetry
from chatstack.telemetry.nested import suppressing
from chatstack.telemetry.shortening import left_out_of
from chatstack.telemetry.spans import SpanWatch, Value, end_span, error_type, start_span
from chatstack.telemetry.turns import Turn, asked_of, attached, current_turn, with_turn
from chatstack.telemetry.usage import check_usage
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatResponse, ChatUpdate, Usage

Nested: TypeAlias = Literal["suppress", "keep", "defer"]

_UNKNOWN = ProviderInfo(name="unknown")
_NOTHING = ChatResponse(messages=())
"""The answer to a call that ended before any."""
_WITHOUT_ANOTHER = frozenset({"tracer", "stack", "tool_loop", "fallback"})


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class ModelTracer(ChatFronts):
    """Opens one CLIENT span ``chat {model}`` per model call, a refused one included, and records its metrics.

    Goes right around the provider, innermost; ``build()`` puts it there. The span ends once: with the answer, an error,
    a close, or when the stream is dropped. Source: OpenTelemetry GenAI conventions.

    Implausible usage counts as not reported from here on, and causes one warning per conversation
    (``usage_implausible``): figures that are negative, or above ten times the call's estimate plus 100,000.

    A call that reads at least 1,024 tokens less from the prompt cache than the call before has left there has them on
    its span (``chatstack.cache.missed_tokens``). Where the likely reason is known, one warning per reason and
    conversation names it (``cache_missed``).

    ``nested`` is the treatment of spans and metrics that others record of the same call: an SDK of its own accord, or
    an instrumentation of it. ``"suppress"`` prevents them (those of the HTTP client, too), ``"keep"`` allows them,
    ``"defer"`` leaves the call to them, and records nothing here.
    """

    inner: ChatClient
    _: KW_ONLY
    nested: Nested = "suppress"
    telemetry: Telemetry = field(default_factory=Telemetry, repr=False)
    _told_by: object = field(init=False, repr=False)

    kind: ClassVar[LayerKind] = "tracer"

    def __post_init__(self) -> None:
        check_options(self)
        told_by = (each for each in chain(self.inner) if isinstance(getattr(each, "info", None), ProviderInfo))
        object.__setattr__(self, "_told_by", next(told_by, None))

    @property
    def _info(self) -> ProviderInfo:
        """The provider's description of itself; that may change, but not who gives it."""
        return _UNKNOWN if self._told_by is None else provider_info(self._told_by) or _UNKNOWN

    async def send(self, request: ChatRequest, /) -> ChatStream:
        turn = current_turn()
        is_heard = turn is not None and turn.is_heard
        if not is_heard and (self.nested == "defer" or self.telemetry.is_silent):
            if turn is not None and turn.root.is_recording():
                self.telemetry.shortened(turn, left_out_of(request.messages, asked_of(turn)))
            sent_at = self.telemetry.caches.clock()
            stream = self._checked(await send_to(self.inner, request), request)
            stream.when_answered(partial(compare_with_last, self.telemetry, request, self._info, sent_at))
            return stream
        call = _ModelCall(self.telemetry, request, self._info, turn)
        context = call.begin(self.nested)
        try:
            with attached(context):
                stream = self._checked(await send_to(self.inner, request), request)
        except BaseException as error:
            outside_collector(call.ended, None, error)
            raise
        call.answered()
        stream.when_answered(call.compare)
        return ChatStream.watched(stream, SpanWatch(context, call.ended, call.saw if call.times_chunks else None))

    def _checked(self, stream: ChatStream, request: ChatRequest) -> ChatStream:
        """Return the provider's stream, with the request set as ``sent`` and with a check of its usage."""
        stream.sent = request
        stream.usage_check = partial(check_usage, self.telemetry, request, self.inner)
        return stream


def needs_tracer(client: ChatClient) -> bool:
    """Return True if the client has no tracer yet, and is no built stack, which has decided on one.

    Around a tool loop there would be one span for many calls, around a fallback two for one.
    """
    return _WITHOUT_ANOTHER.isdisjoint(layer_kind(layer) for layer in chain(client))


def traced(client: ChatClient, telemetry: Telemetry, *, beside: ChatClient | None = None) -> ChatClient:
    """Return the client, with a tracer around it if it needs one: for layers that take a client which may be a bare
    provider. It treats spans of others as the tracer in ``beside`` does, the client that the layer wraps."""
    if not needs_tracer(client):
        return client
    tracer = next((each for each in chain(beside) if isinstance(each, ModelTracer)), None)
    return ModelTracer(client, nested="suppress" if tracer is None else tracer.nested, telemetry=telemetry)


class _ModelCall:
    """State of one call until its span ends. Holds no stream, so that a dropped one is garbage-collected."""

    def __init__(self, telemetry: Telemetry, request: ChatRequest, info: ProviderInfo, turn: Turn | None) -> None:
        self._telemetry = telemetry
        self._request = request
        self._info = info
        self._turn = turn
        self._left_out = left_out_of(request.messages, asked_of(turn))
        self._span: Span = INVALID_SPAN
        self._is_ours = False
        self._labels: Mapping[str, Value] = {}
        self._chunk_at = 0.0
        self._started = time.perf_counter()
        self._sent_at = telemetry.caches.clock()
        self._missed = 0

    @property
    def _model(self) -> str:
        return self._request.options.model or self._info.model

    @property
    def times_chunks(self) -> bool:
        """True if the time of every chunk is measured."""
        return self._is_ours and self._request.stream and self._telemetry.measures

    def begin(self, nested: Nested) -> otel.Context:
        """Open the span, and return the context for the code inside the call."""
        context = otel.get_current()
        if nested != "defer":
            self._is_ours = True
            self._labels = self._labelled()
            self._span = start_span(
                self._telemetry.tracer,
                f"chat {self._model}" if self._model else "chat",
                self._about(),
                kind=SpanKind.CLIENT,
            )
            context = set_span_in_context(self._span)
            if self._turn is None:
                messages = self._request.messages
                self._turn = Turn(self._span, self._request.conversation_id, asked=messages)
                self._left_out = left_out_of(messages, messages)
                context = with_turn(self._turn, context)
            if nested == "suppress":
                context = suppressing(context)
        if self._turn is not None:
            self._telemetry.shortened(self._turn, self._left_out)
            numbers = self._left_out.numbers if self._left_out is not None else {}
            self._turn.tell("model_call_started", self._model, numbers=numbers)
        return context

    def _about(self) -> dict[str, Value | Sequence[str]]:
        known = _request_attributes(self._request, self._info, self._turn)
        if self._left_out is None:
            return known
        if self._left_out.by_plan:
            known[semconv.CONVERSATION_COMPACTED] = True
        return {**known, **self._left_out.attributes}

    def answered(self) -> None:
        """Record the time of the first chunk."""
        if self._is_ours and self._request.stream:
            seconds = time.perf_counter() - self._started
            self._span.set_attribute(semconv.RESPONSE_TIME_TO_FIRST_CHUNK, seconds)
            self._telemetry.instruments.chat_first_chunk.record(seconds, self._labels)

    def saw(self, update: ChatUpdate) -> None:
        """Record a chunk."""
        if update.has_content:
            now = time.perf_counter()
            if self._chunk_at:
                self._telemetry.instruments.chat_next_chunk.record(now - self._chunk_at, self._labels)
            self._chunk_at = now

    def compare(self, answer: ChatResponse) -> None:
        """Compare what the call read from the prompt cache with what the call before left there."""
        miss = compare_with_last(self._telemetry, self._request, self._info, self._sent_at, answer)
        if miss is not None:
            self._missed = miss.tokens
            if self._is_ours:
                self._span.set_attributes(attributes_of(miss))

    def ended(self, answer: ChatResponse | None, error: BaseException | None) -> None:
        """Record the outcome, and end the span."""
        found, kind, seconds = answer or _NOTHING, error_type(error), seconds_since(self._started)
        if self._is_ours:
            self._say(found, kind)
            end_span(self._span, error)
            self._measure(found, seconds, kind)
        if self._turn is not None:
            tokens = {"input_tokens": found.usage.input_tokens, "output_tokens": found.usage.output_tokens}
            self._turn.tell("model_call_ended", self._model, error=kind, numbers={**tokens, "seconds": seconds})

    def _say(self, answer: ChatResponse, error: str) -> None:
        telemetry, span = self._telemetry, self._span
        known = {**_answer_attributes(answer, self._info), **self._cleared_natively(answer)}
        if span.is_recording():
            span.set_attributes(known)
            if telemetry.captures_on_spans:
                span.set_attributes(as_attributes(content_of(self._request, answer)))
        if telemetry.captures_in_events:
            known = {**self._about(), **known}
            if error:
                known[semconv.ERROR_TYPE] = error
            telemetry.details(known, content_of(self._request, answer), span)

    def _cleared_natively(self, answer: ChatResponse) -> dict[str, Value]:
        """Return the attributes of what the provider cleared on its side, beside what was left out of the request."""
        cleared = sum(each.cleared_tokens for each in answer.applied_edits)
        if not cleared:
            return {}
        before = self._left_out.tokens if self._left_out is not None else 0
        return {semconv.CONVERSATION_COMPACTED: True, semconv.CONTEXT_TOKENS_LEFT_OUT: before + cleared}

    def _measure(self, answer: ChatResponse, seconds: float, error: str) -> None:
        labels = dict(self._labels)
        if answer.model:
            labels[semconv.RESPONSE_MODEL] = answer.model
        for used in (answer.usage, answer.overhead_usage):
            if used.total_tokens:
                self._measure_usage(answer, used, labels)
        self._telemetry.instruments.chat_duration.record(seconds, labels, error=error)

    def _measure_usage(self, answer: ChatResponse, usage: Usage, labels: Mapping[str, Value]) -> None:
        instruments = self._telemetry.instruments
        instruments.chat_tokens.record(usage.input_tokens, {**labels, semconv.TOKEN_TYPE: "input"})
        instruments.chat_tokens.record(usage.output_tokens, {**labels, semconv.TOKEN_TYPE: "output"})
        if self._telemetry.measures:
            instruments.costs.add((answer.model, self._model), answer.service_tier, usage, {**labels})
            self._measure_cache(usage, labels)

    def _measure_cache(self, usage: Usage, labels: Mapping[str, Value]) -> None:
        figures = {"read": usage.cache_read_tokens, "written": usage.cache_write_tokens, "missed": self._missed}
        for outcome, tokens in figures.items():
            if tokens:
                self._telemetry.instruments.cache_tokens.add(tokens, {**labels, semconv.CACHE_OUTCOME: outcome})

    def _labelled(self) -> dict[str, Value]:
        """Return the labels that all measurements of the call share."""
        info = self._info
        labels: dict[str, Value] = {semconv.OPERATION_NAME: "chat", semconv.PROVIDER_NAME: info.name}
        if self._model:
            labels[semconv.REQUEST_MODEL] = self._model
        if info.server_address:
            labels[semconv.SERVER_ADDRESS] = info.server_address
        if info.server_port is not None:
            labels[semconv.SERVER_PORT] = info.server_port
        return labels


def _request_attributes(
    request: ChatRequest, info: ProviderInfo, turn: Turn | None
) -> dict[str, Value | Sequence[str]]:
    """Return the attributes known before the call; set at the span's start, for samplers."""
    options = request.options
    known: dict[str, Value | Sequence[str] | None] = {
        semconv.OPERATION_NAME: "chat",
        semconv.PROVIDER_NAME: info.name,
        semconv.REQUEST_MODEL: options.model or info.model or None,
        semconv.SERVER_ADDRESS: info.server_address or None,
        semconv.SERVER_PORT: info.server_port,
        semconv.CONVERSATION_ID: request.conversation_id or (turn.conversation_id if turn is not None else None),
        semconv.REQUEST_STREAM: True if request.stream else None,
        semconv.REQUEST_MAX_TOKENS: options.max_tokens,
        semconv.REQUEST_TEMPERATURE: options.temperature,
        semconv.REQUEST_TOP_P: options.top_p,
        semconv.REQUEST_SEED: options.seed,
        semconv.REQUEST_REASONING_LEVEL: options.reasoning_effort,
        semconv.REQUEST_STOP_SEQUENCES: list(options.stop) if options.stop else None,
        semconv.REQUEST_SERVICE_TIER: _tier_asked(request, info),
        semconv.OUTPUT_TYPE: "json" if options.output_schema is not None else None,
        semconv.ITERATION: turn.round if turn is not None else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _tier_asked(request: ChatRequest, info: ProviderInfo) -> str | None:
    """Return the service tier that was asked for, which the conventions have for OpenAI's APIs alone."""
    tier = request.options.extra.get("service_tier")
    return tier if info.name == "openai" and isinstance(tier, str) and tier != "auto" else None


def _answer_attributes(answer: ChatResponse, info: ProviderInfo) -> dict[str, Value | Sequence[str]]:
    usage, overhead = answer.usage, answer.overhead_usage
    known: dict[str, Value | Sequence[str] | None] = {
        semconv.RESPONSE_ID: answer.id or None,
        semconv.RESPONSE_MODEL: answer.model or None,
        semconv.RESPONSE_SERVICE_TIER: (info.name == "openai" and answer.service_tier) or None,
        semconv.RESPONSE_FINISH_REASONS: [answer.finish_reason] if answer.finish_reason else None,
        semconv.USAGE_INPUT: usage.input_tokens or None,
        semconv.USAGE_OUTPUT: usage.output_tokens or None,
        semconv.USAGE_CACHE_READ: usage.cache_read_tokens or None,
        semconv.USAGE_CACHE_WRITE: usage.cache_write_tokens or None,
        semconv.USAGE_CACHE_CREATION: usage.cache_write_tokens or None,
        semconv.USAGE_REASONING: usage.reasoning_tokens or None,
        semconv.OVERHEAD_INPUT: overhead.input_tokens or None,
        semconv.OVERHEAD_OUTPUT: overhead.output_tokens or None,
    }
    return {name: value for name, value in known.items() if value is not None}
