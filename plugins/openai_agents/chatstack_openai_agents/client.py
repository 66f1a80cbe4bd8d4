"""A model of the Agents SDK as the provider of a stack."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

from agents import Model, ModelResponse, ModelSettings
from agents.items import TResponseStreamEvent
from msgspec.structs import replace

from chatstack import ChatRequest, ChatUpdate, ProviderInfo, Usage, WiringError
from chatstack.client.answers import updates_of
from chatstack.errors import ChatStackError
from chatstack.providers.failures import failure
from chatstack.providers.foreign import ForeignClient
from chatstack.providers.openai.responses_answers import ResponsesAnswer
from chatstack.providers.openai.responses_wire import message_from_wire, unheld
from chatstack_openai_agents.asked import asked_now
from chatstack_openai_agents.calls import ModelCall, call_of, plain

COVERED = object()
"""The ``raw`` of an update that another one's ``raw`` holds as well."""
_ENDS = ("response.completed", "response.incomplete")


class FailedEvent(Exception):
    """Their event that says that an answer has failed: the cause of our error, for a runner that wants the event."""

    def __init__(self, event: TResponseStreamEvent) -> None:
        super().__init__(event.type)
        self.event = event


class AgentsModelClient(ForeignClient):
    """The provider of a stack that asks a model of the Agents SDK's: ``ChatStack(AgentsModelClient(model))``.

    So any model that the SDK supports answers for a stack. Under a ``StackModel`` it is asked with the very arguments
    that the runner gave, but for the items that layers have edited. ``info`` states name, model and window for
    telemetry. What the model raises becomes the matching ``ProviderError``, its cause what was raised; an exception
    that does not come from the model's side surfaces as it is. Raises ``WiringError`` for what is no model.
    """

    def __init__(self, model: Model, *, info: ProviderInfo | None = None) -> None:
        if not isinstance(model, Model):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise WiringError(f"AgentsModelClient: model is a {type(model).__name__}, not a Model", parameter="model")
        self.model = model
        name: object = getattr(model, "model", "")
        self.info = info or ProviderInfo(name="openai", model=name if isinstance(name, str) else "")

    def _updates(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        asked = asked_now.get()
        call = call_of(request, ModelSettings()) if asked is None else asked.call_for(request)
        if call.conversation_id and not isinstance(call.input, str):
            call = call._replace(input=cast("Any", unheld(cast("Any", call.input))))
        return self._streamed(call) if request.stream else self._whole(call)

    async def _whole(self, call: ModelCall) -> AsyncGenerator[ChatUpdate, None]:
        response: ModelResponse = await call.run(self.model.get_response)
        message = message_from_wire(map(plain, response.output))
        usage = usage_of(response)
        for update in updates_of(message, usage=usage, response_id=response.response_id or "", raw=response):
            yield update

    async def _streamed(self, call: ModelCall) -> AsyncGenerator[ChatUpdate, None]:
        answer = ResponsesAnswer()
        events: AsyncGenerator[TResponseStreamEvent, None] = call.run(self.model.stream_response)
        try:
            async for event in events:
                for update in _updates_of(answer, event):
                    yield update
        finally:
            close = getattr(events, "aclose", None)  # any asynchronous iterator will do
            if close is not None:
                await close()


def _updates_of(answer: ResponsesAnswer, event: TResponseStreamEvent) -> Iterator[ChatUpdate]:
    """Yield our updates for an event; the first one, or at the end the last, has it as its ``raw``."""
    raw: Any = event
    try:
        found = list(answer.add(plain(event), streaming=True))
        if str(event.type) == "response.error":  # of servers that have a name of their own for it
            raise failure("openai", body=dict(plain(event)), streaming=True)
    except ChatStackError as error:
        raise error from FailedEvent(event)
    if event.type in _ENDS:
        for update in answer.finish(event):
            yield update if update.raw is event else replace(update, raw=COVERED)
        return
    for update in found or [ChatUpdate()]:
        yield replace(update, raw=raw)
        raw = COVERED


def usage_of(response: ModelResponse) -> Usage:
    """Return reported usage as ours."""
    usage = response.usage
    given, said = usage.input_tokens_details, usage.output_tokens_details
    return Usage(
        usage.input_tokens,
        usage.output_tokens,
        getattr(given, "cached_tokens", 0) or 0,
        getattr(given, "cache_write_tokens", 0) or 0,
        getattr(said, "reasoning_tokens", 0) or 0,
    )
