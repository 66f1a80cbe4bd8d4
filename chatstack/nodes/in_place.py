"""A stack's context layers around model calls that somebody else makes: an agent of another framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import ClassVar, Final, TypeAlias

from chatstack.client.checks import send_to
from chatstack.client.protocol import ChatClient, LayerKind, ProviderInfo, layer_kind, provider_info
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import Resolver
from chatstack.errors import ChatStackError, WiringError
from chatstack.providers.foreign import foreign_failure
from chatstack.stack.recipe import ChatStack
from chatstack.telemetry.agent_turns import count_round
from chatstack.values.requests import ChatRequest

ModelCall: TypeAlias = Callable[[ChatRequest], Awaitable[ChatStream]]

_UNFIT: Final[dict[str, str]] = {
    "tool_loop": "the agent runs the tools; leave this layer out",
    "reporter": "an agent's turn is several model calls; open it with agent_turn(...) around the agent",
    "fallback": "the agent's own model answers; put {whole} over the whole stack in its place",
    "stack": "it is built already; pass the recipe",
}


class InPlace:
    """Applies the context layers of a recipe to one model call after the other; each call brings its own model.

    The layers decide what the model is sent, retry after an overflow, and learn from its usage. The recipe's provider
    is asked only for summaries, for its window and for counts. ``owner`` is what errors call this, and ``whole`` what
    they recommend where a layer needs the provider itself. Raises ``WiringError`` for what is no recipe, or has a layer
    that cannot work here: a tool loop, a reporter, a fallback.
    """

    def __init__(
        self, stack: ChatStack, *, owner: str, whole: str = "a model", resolve: Resolver | None = None
    ) -> None:
        if not isinstance(stack, ChatStack):  # pyright: ignore[reportUnnecessaryIsInstance]
            told = f"{owner}: stack is a {type(stack).__name__}; pass a ChatStack, not built"
            raise WiringError(told, layer=owner, parameter="stack")
        self._owner = owner
        self._whole = whole
        self._info = provider_info(stack.provider) or ProviderInfo(name="agent")
        self._client = replace(stack, provider=_AgentModel(self._info, stack.provider)).build(resolve)
        for name, layer in zip(self._client.names, self._client.layers, strict=True):
            reason = _UNFIT.get(layer_kind(layer))
            if reason is not None:
                told = f"{owner}: layer {name!r}: {reason.format(whole=whole)}"
                raise WiringError(told, layer=name, parameter="stack")

    @property
    def model(self) -> str:
        """The name of the model that the recipe's provider asks."""
        return self._info.model

    async def send(self, request: ChatRequest, call: ModelCall) -> ChatStream:
        """Send a request through the layers. ``call`` gets what they leave of it, and asks the model; more than once
        if a layer tries again.

        What ``call`` raises is seen by the layers as the matching ``ProviderError``, and surfaces as it was raised.
        Raises ``WiringError`` for a layer that changes the options: they are the agent's.
        """

        async def ask(sent: ChatRequest) -> ChatStream:
            if sent.options != request.options:
                raise WiringError(
                    f"{self._owner}: a layer changes the options of the call, which are the agent's; leave it out "
                    f"(native edits need the provider itself: put {self._whole} over the whole stack in its place)"
                )
            return await call(sent)

        count_round(self, request)
        token = _call_now.set(ask)
        try:
            return await send_to(self._client, request)
        except ChatStackError as error:
            surfacing = raised_by_call(error)
        finally:
            _call_now.reset(token)
        raise surfacing

    async def aclose(self) -> None:
        """End the layers' background work."""
        await self._client.aclose()


def raised_by_call(error: Exception) -> Exception:
    """Return the exception of somebody else's from which ours was made; ours where there is none."""
    cause: BaseException | None = error
    while isinstance(cause, ChatStackError):
        cause = cause.__cause__
    return cause if isinstance(cause, Exception) else error


_call_now: ContextVar[ModelCall] = ContextVar("chatstack_model_call")


class _AgentModel:
    """The end of the stack: the agent's own model. ``inner`` is asked for summaries, and what else layers need."""

    kind: ClassVar[LayerKind] = "context"  # so that summaries are asked for below it
    edits: ClassVar[bool] = False

    def __init__(self, info: ProviderInfo, inner: ChatClient) -> None:
        self.info = info
        self.inner = inner

    async def send(self, request: ChatRequest, /) -> ChatStream:
        try:
            stream = await _call_now.get()(request)
        except Exception as error:
            known = foreign_failure(self.info.name, error)
            if known is None or known is error:
                raise
            raise known from error
        stream.sent = request
        return stream
