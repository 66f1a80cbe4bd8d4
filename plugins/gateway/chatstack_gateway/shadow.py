"""The pipeline beside an exchange that goes on untouched: what it would have sent, without asking any model."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import cast

from msgspec.structs import replace as struct_replace
from opentelemetry._logs import NoOpLoggerProvider
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, Span

from chatstack import (
    ChatRequest,
    ChatResponse,
    ChatStack,
    ChatStream,
    ChatUpdate,
    ClearThenDrop,
    ContextWindowGuard,
    Message,
    Telemetry,
    ToolResultShaper,
    Usage,
)
from chatstack.client.protocol import ProviderInfo, layer_kind
from chatstack.config.files import opened
from chatstack.config.recipes import from_config
from chatstack.layers.summarizing import SummaryClient
from chatstack.providers.wires import PROVIDERS, Form
from chatstack.stack.entries import LayerSpec
from chatstack.stack.recipe import BuiltClient
from chatstack.telemetry.spans import Attributes
from chatstack_gateway.exchange import is_about
from chatstack_gateway.sizes import Sizes
from chatstack_gateway.stacks import RecipeAround, check_layers

_WRITER = "summary_client"
_SUMMARY = "What was said before is summed up here, in as many words as such summaries usually have. " * 25


@dataclass(slots=True)
class Trial:
    """One request at the pipeline: what it would have sent, the edits on the way, and the tokens of summaries."""

    came: ChatRequest
    response: ChatResponse
    sizes: Sizes
    would_send: ChatRequest | None = None
    edits: list[str] = field(default_factory=list[str])
    summary_input: int = 0
    summary_output: int = 0


_TRIAL: ContextVar[Trial | None] = ContextVar("chatstack_gateway_trial", default=None)


class Shadow:
    """The pipeline, built around the answers that came instead of a model; its telemetry is kept apart."""

    def __init__(self, clients: Mapping[Form, BuiltClient], sizes: Sizes) -> None:
        self._clients = clients
        self._sizes = sizes

    @classmethod
    def of(cls, pipeline: str, sizes: Sizes, recipe_around: RecipeAround | None = None) -> Shadow:
        """Build it from a recipe in code or a pipeline file, or, without one, as we recommend it. Raises
        ``WiringError``."""
        providers: dict[Form, _Stage] = {form: _Stage(form) for form in PROVIDERS}
        stack = _recipe(pipeline, providers["chat"]) if recipe_around is None else recipe_around(providers["chat"])
        stack = replace(stack, layers=tuple(_without_writer(each) for each in stack.layers if not _waits(each)))
        telemetry = _Edits()
        writer = _Writer(sizes)

        def resolve(kind: type) -> object:
            if kind is Telemetry:
                return telemetry
            if kind is SummaryClient:
                return writer
            raise LookupError(kind)

        clients: dict[Form, BuiltClient] = {
            form: replace(stack, provider=provider).build(resolve) for form, provider in providers.items()
        }
        for client in clients.values():
            check_layers(client)
        return cls(clients, sizes)

    async def tried(self, form: Form, came: ChatRequest, response: ChatResponse) -> Trial:
        """Send a request through the pipeline, and answer it with the answer that came."""
        trial = Trial(came, response, self._sizes)
        token = _TRIAL.set(trial)
        try:
            stream = await self._clients[form].send(came)
            async with stream:
                await stream.response()
        finally:
            _TRIAL.reset(token)
        return trial

    async def aclose(self) -> None:
        """End the background work of the layers."""
        for client in self._clients.values():
            await client.aclose()


def _recipe(pipeline: str, provider: _Stage) -> ChatStack:
    if not pipeline:
        return (
            ChatStack(provider, trace_model_calls=False)
            .use(ToolResultShaper)
            .use(ClearThenDrop)
            .use(ContextWindowGuard, max_context_tokens="auto", prune_on_overflow=True)
        )
    _, content = opened(pipeline)
    # A store is for decisions that were carried out; these are not.
    kept = {name: value for name, value in content.items() if name not in ("memory", "provider")}
    layers = kept.get("layers")
    if isinstance(layers, list | tuple):  # a client that writes summaries would be made, and want a key
        kept["layers"] = [_unwritten(each) for each in cast("Sequence[object]", layers)]
    return from_config(kept, provider)


def _unwritten(entry: object) -> object:
    """Return the entry of a config without the client that writes its summaries."""
    if not isinstance(entry, Mapping):
        return entry
    return {name: value for name, value in cast("Mapping[str, object]", entry).items() if name != _WRITER}


def _without_writer(layer: LayerSpec) -> LayerSpec:
    """Return the layer of a recipe without the client that writes its summaries: a stand-in does."""
    kept = {name: value for name, value in layer.options.items() if name != _WRITER}
    return replace(layer, options=MappingProxyType(kept))


def _waits(layer: LayerSpec) -> bool:
    """Return True for a layer that changes no message, as a rate limiter: nothing would come of it here but waiting."""
    return layer_kind(layer.source) == "plain"


class _Edits(Telemetry):
    """Telemetry that keeps the edits of a trial, and tells nobody."""

    def __init__(self) -> None:
        super().__init__(
            tracer_provider=NoOpTracerProvider(),
            meter_provider=NoOpMeterProvider(),
            logger_provider=NoOpLoggerProvider(),
            log_warnings=False,
        )

    def edit(
        self,
        strategy: str,
        message: str,
        attributes: Attributes,
        *,
        tokens_before: int,
        tokens_after: int,
        span: Span | None = None,
    ) -> None:
        trial = _TRIAL.get()
        if trial is not None:
            trial.edits.append(strategy)
        super().edit(strategy, message, attributes, tokens_before=tokens_before, tokens_after=tokens_after, span=span)


class _Stage:
    """Stands where the provider would: keeps what would be sent, and plays the answer that came."""

    def __init__(self, form: Form) -> None:
        self.info = ProviderInfo(name=PROVIDERS[form])

    async def send(self, request: ChatRequest, /) -> ChatStream:
        trial = _TRIAL.get()
        if trial is None:
            return await ChatStream.primed(_played(Message.assistant(_SUMMARY), Usage()))
        if not is_about(trial.came, request):
            return await _Writer(trial.sizes).send(request)
        trial.would_send = request
        usage = trial.response.usage
        said = next((each for each in trial.response.messages if each.role == "assistant"), Message.assistant(""))
        # What the provider reported is about the request as it came; the layers learn from the size of theirs.
        scaled = trial.sizes.scaled(usage.input_tokens, trial.came, request)
        return await ChatStream.primed(_played(said, struct_replace(usage, input_tokens=scaled)))


class _Writer:
    """Writes summaries that hold nothing, as no model is asked; their tokens count."""

    def __init__(self, sizes: Sizes) -> None:
        self.info = ProviderInfo(name="stand-in")
        self._sizes = sizes

    async def send(self, request: ChatRequest, /) -> ChatStream:
        usage = Usage(self._sizes.of(request), len(_SUMMARY) // 4)
        trial = _TRIAL.get()
        if trial is not None:
            trial.summary_input += usage.input_tokens
            trial.summary_output += usage.output_tokens
        return await ChatStream.primed(_played(Message.assistant(_SUMMARY), usage))


async def _played(message: Message, usage: Usage) -> AsyncGenerator[ChatUpdate, None]:
    if message.text:
        yield ChatUpdate(text=message.text)
    yield ChatUpdate(message_done=message, usage=usage, finish_reason="tool_calls" if message.calls else "stop")
