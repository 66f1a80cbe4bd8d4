"""A chat client of Agent Framework's as the provider of a stack."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

from agent_framework import ChatMiddlewareLayer, FunctionInvocationLayer, ResponseStream, SupportsChatGetResponse
from agent_framework.observability import ChatTelemetryLayer

from chatstack import ChatRequest, ChatUpdate, ProviderInfo, WiringError
from chatstack.providers.foreign import ForeignClient
from chatstack_agent_framework.answers import TheirAnswer, answered
from chatstack_agent_framework.contents import counterparts_now, to_theirs
from chatstack_agent_framework.options import to_their_options


class AgentFrameworkClient(ForeignClient):
    """The provider of a stack that asks a chat client of Agent Framework's::

        client = ChatStack(AgentFrameworkClient(OpenAIChatClient(model="gpt-5-mini"))).use(...).build()

    So any model that Agent Framework supports answers for a stack. Its own tool loop is left out, as the stack has one;
    so is its span of a model call, as the stack's tracer opens one, unless the client has middleware of its own. Name
    and model are the client's; ``info`` states others. What it raises becomes the matching ``ProviderError``, its cause
    what was raised; an exception that does not come from the model's side surfaces as it is. ``response.raw`` is
    their response. Raises ``WiringError`` for what is no chat client.
    """

    def __init__(self, client: SupportsChatGetResponse[Any], *, info: ProviderInfo | None = None) -> None:
        if isinstance(client, type) or not callable(getattr(client, "get_response", None)) or hasattr(client, "send"):
            raise WiringError(
                f"AgentFrameworkClient: client is {client!r}, not a chat client of Agent Framework's",
                parameter="client",
            )
        self.client = client
        self.info = info or info_of(client)

    def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        messages = [to_theirs(message, counterparts_now.get()) for message in request.messages]
        options = to_their_options(request.options)

        async def ask() -> TheirAnswer:
            client = _beneath_the_tool_loop(self.client)
            answer: Any = client.get_response(messages, stream=request.stream, options=options)
            return cast("TheirAnswer", answer if isinstance(answer, ResponseStream) else await answer)

        return answered(ask)


def info_of(client: object) -> ProviderInfo:
    """Return what a chat client of theirs says of itself, as telemetry and counters know it."""
    name: object = getattr(client, "otel_provider_name", None) or getattr(client, "OTEL_PROVIDER_NAME", None)
    model: object = getattr(client, "model", None)
    known = name if isinstance(name, str) and name != "unknown" else "agent_framework"
    return ProviderInfo(name=known, model=model if isinstance(model, str) else "")


def _beneath_the_tool_loop(client: Any) -> Any:
    """Return the client as what stands beneath its layers for tools and spans: they are bases of its class."""
    order: Sequence[type] = type(client).__mro__
    if ChatTelemetryLayer in order and not getattr(client, "chat_middleware", None):
        above = [each for each in (FunctionInvocationLayer, ChatMiddlewareLayer) if each in order]
        if all(order.index(each) < order.index(ChatTelemetryLayer) for each in above):
            return super(ChatTelemetryLayer, client)
    if isinstance(client, FunctionInvocationLayer):
        return super(FunctionInvocationLayer, cast("Any", client))
    return client
