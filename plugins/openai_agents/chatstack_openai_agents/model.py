"""A stack as a model of the Agents SDK."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any, cast

from agents import Model, ModelResponse, Usage
from agents.items import TResponseOutputItem, TResponseStreamEvent
from agents.models.fake_id import FAKE_RESPONSES_ID
from openai.types.responses import (
    Response,
    ResponseCompletedEvent,
    ResponseOutputItem,
    ResponseOutputItemDoneEvent,
    ResponseTextDeltaEvent,
    ResponseUsage,
)
from openai.types.responses.response_usage import InputTokensDetails, OutputTokensDetails
from pydantic import TypeAdapter

from chatstack import (
    ChatResponse,
    ChatStream,
    Message,
    Text,
    ToolCall,
    find,
    to_openai_responses,
)
from chatstack.client.protocol import ChatClient
from chatstack.errors import ChatStackError, InputError
from chatstack.nodes.in_place import raised_by_call
from chatstack.nodes.whole_stack import WholeStack, Within
from chatstack.providers.openai.responses_wire import message_from_wire
from chatstack_openai_agents.asked import Asked, asked_now
from chatstack_openai_agents.calls import ModelCall, options_of, plain
from chatstack_openai_agents.client import COVERED, AgentsModelClient, FailedEvent
from chatstack_openai_agents.settings import options_for

_ITEM: TypeAdapter[TResponseOutputItem] = TypeAdapter(ResponseOutputItem)


class StackModel(Model):
    """A model of the Agents SDK's over a whole stack: ``Agent(model=StackModel(stack.build()), ...)``.

    The stack's layers see each call of the model; results and sessions keep every item, and lists are never changed.
    Over an ``AgentsModelClient`` items that no layer has edited go on as the objects that they are, all other arguments
    too, and the model's response and events come back untouched; so do its exceptions. Over another provider the answer
    is made of plain output items. Tools and handoffs are the runner's; tools of the stack's own tool loop run inside,
    and are not seen. The conversation's id is the ``group_id`` of the run. Raises ``WiringError`` for what is no
    client.
    """

    def __init__(self, client: ChatClient) -> None:
        self._stack = WholeStack(client, owner="StackModel")
        self.client = client
        below = find(client, AgentsModelClient)
        self._below = None if below is None else below.model
        self._as_it_came = below is not None and not self._stack.has_tool_loop

    async def get_response(self, *given: Any, **named: Any) -> ModelResponse:
        """Answer a call of the runner."""
        call = _call(*given, **named)
        asked = self._asked(call, stream=False)
        if asked is None:
            return cast("ModelResponse", await call.run(cast("Model", self._below).get_response))
        try:
            async with await self._sent(asked) as stream:
                return _response(await stream.response())
        except ChatStackError as error:
            surfacing = self._surfacing(error)
        raise surfacing

    async def stream_response(self, *given: Any, **named: Any) -> AsyncGenerator[TResponseStreamEvent, None]:
        """Answer a call of the runner, event by event."""
        call = _call(*given, **named)
        asked = self._asked(call, stream=True)
        if asked is None:
            async for event in call.run(cast("Model", self._below).stream_response):
                yield event
            return
        try:
            async with await self._sent(asked) as stream:
                async for update in stream:
                    if self._as_it_came:
                        if update.raw is not None and update.raw is not COVERED:
                            yield cast("TResponseStreamEvent", update.raw)
                    elif update.text:
                        yield _delta(update.text)
                if not self._as_it_came:
                    for event in _closing(_response(await stream.response())):
                        yield event
            return
        except ChatStackError as error:
            surfacing = self._surfacing(error)
        if isinstance(surfacing, FailedEvent):
            yield surfacing.event  # the runner says what it means
            return
        raise surfacing

    def _asked(self, call: ModelCall, *, stream: bool) -> Asked | None:
        """Return a call as a request; None for malformed items, of which the model below says what is wrong."""
        try:
            options = options_of(call) if self._below is not None else options_for(call, self.client)
            return Asked(call, options, stream=stream)
        except InputError:
            if self._below is None:
                raise
            return None

    async def _sent(self, asked: Asked) -> ChatStream:
        return await self._stack.send(asked.request, Within[Asked | None](asked_now, asked))

    def _surfacing(self, error: ChatStackError) -> Exception:
        return error if self._below is None else raised_by_call(error)

    def get_retry_advice(self, request: Any) -> Any:
        """Return the advice of the model below."""
        return None if self._below is None else self._below.get_retry_advice(request)

    def _supports_default_prompt_cache_key(self) -> bool:
        supports = getattr(self._below, "_supports_default_prompt_cache_key", None)  # of OpenAI's models alone
        return supports is not None and bool(supports())

    async def _cleanup_on_run_end(self, owner: object) -> None:
        if self._below is not None:
            await self._below._cleanup_on_run_end(owner)

    async def close(self) -> None:
        """End the layers' background work, and close the model below."""
        close = getattr(self.client, "aclose", None)
        if close is not None:
            await close()
        if self._below is not None:
            await self._below.close()


def _call(*given: Any, **named: Any) -> ModelCall:
    values: dict[str, Any] = {"previous_response_id": None, "conversation_id": None, "prompt": None}
    values |= dict(zip(ModelCall._fields, given, strict=False)) | named
    return ModelCall(**{name: values[name] for name in ModelCall._fields})


def _response(answer: ChatResponse) -> ModelResponse:
    """Return an answer as theirs: the very one, where a model of theirs gave it, and no layer has changed it."""
    raw = answer.raw
    if isinstance(raw, ModelResponse) and (message_from_wire(map(plain, raw.output)),) == answer.messages:
        return raw
    *before, last = [message for message in answer.messages if message.role == "assistant"]
    said = [Message("assistant", tuple(part for part in each.parts if isinstance(part, Text))) for each in before]
    ran = {result.call_id for message in answer.messages for result in message.results}
    mine = tuple(part for part in last.parts if not isinstance(part, ToolCall) or part.id not in ran)
    items = to_openai_responses([*(each for each in said if each.parts), Message("assistant", mine)])
    return ModelResponse(output=list(map(_item, items)), usage=_usage(answer), response_id=answer.id or None)


def _item(item: dict[str, Any]) -> TResponseOutputItem:
    if item.get("type", "message") == "message":
        content: list[dict[str, Any]] = [{"annotations": [], **each} for each in item["content"]]
        item = {"type": "message", "status": "completed", **item, "content": content}
    return _ITEM.validate_python({"id": FAKE_RESPONSES_ID, **item})


def _usage(answer: ChatResponse) -> Usage:
    usage = answer.usage
    given = {"cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens}
    return Usage(
        requests=answer.rounds,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_tokens_details=InputTokensDetails.model_validate(given),
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
    )


def _delta(text: str) -> TResponseStreamEvent:
    return ResponseTextDeltaEvent(
        type="response.output_text.delta",
        delta=text,
        content_index=0,
        output_index=0,
        item_id=FAKE_RESPONSES_ID,
        logprobs=[],
        sequence_number=0,
    )


def _closing(response: ModelResponse) -> Iterator[TResponseStreamEvent]:
    """Yield the events that end an answer: its items, and the whole."""
    for index, item in enumerate(response.output):
        yield ResponseOutputItemDoneEvent(
            type="response.output_item.done", item=item, output_index=index, sequence_number=index
        )
    usage = response.usage
    whole = Response(
        id=response.response_id or FAKE_RESPONSES_ID,
        created_at=time.time(),
        model="",
        object="response",
        status="completed",
        output=response.output,
        parallel_tool_calls=True,
        tool_choice="auto",
        tools=[],
        usage=ResponseUsage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            total_tokens=usage.total_tokens,
            input_tokens_details=usage.input_tokens_details,
            output_tokens_details=usage.output_tokens_details,
        ),
    )
    yield ResponseCompletedEvent(type="response.completed", response=whole, sequence_number=len(response.output))
