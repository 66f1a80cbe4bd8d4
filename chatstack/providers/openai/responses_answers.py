"""An answer from the Responses API, folded from its events; a whole response takes the same path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import takewhile
from types import MappingProxyType

from msgspec.structs import replace

from chatstack.errors import ServerError
from chatstack.providers.extras import as_list, as_object, decoded_object, object_or_empty, text_in
from chatstack.providers.failures import failure
from chatstack.providers.openai.chat_parts import PROVIDER
from chatstack.providers.openai.responses_items import is_async
from chatstack.providers.openai.responses_wire import message_from_wire, with_server
from chatstack.providers.openai.usages import responses_usage
from chatstack.values.messages import Message
from chatstack.values.parts import ProviderItem, Reasoning, Text, ToolCall
from chatstack.values.responses import CallDelta, ChatUpdate, FinishReason

_CALLS: Mapping[object, str] = {"function_call": "arguments", "custom_tool_call": "input"}
"""Types of calls, and the field of each that holds what the tool is given."""
_REASONING = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
_ARGUMENTS = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")
_GIVEN = ("response.function_call_arguments.done", "response.custom_tool_call_input.done")
_INCOMPLETE: Mapping[object, FinishReason] = {
    **dict.fromkeys(("max_output_tokens", "max_messages"), "length"),
    "content_filter": "refused",
}
_UNFINISHED = ("queued", "in_progress", "cancelled")
ENDS = ("response.completed", "response.incomplete", "response.failed")
"""Types of the events that end a response."""


class ResponsesAnswer:
    """Folds the events of an answer (or the whole response): ``add`` each and show its updates, then ``finish`` once it
    ``is_complete``. ``server`` is the one that answers, if others may be asked later.

    ``add`` raises ``InputError`` for data of the wrong shape, and the matching ``ProviderError`` for an error event.
    """

    def __init__(self, *, server: str = "") -> None:
        self._server = server
        self._response: Mapping[str, object] | None = None
        self._items: dict[tuple[int, str], Mapping[str, object]] = {}
        self._calls: dict[object, int] = {}
        self._async = set[object]()
        self._given: dict[object, list[str]] = {}
        self._texts: list[str] = []
        self._has_reasoning = False

    @property
    def is_complete(self) -> bool:
        """True if the response has come to its end."""
        return self._response is not None

    def add(self, event: Mapping[str, object], *, streaming: bool) -> Iterator[ChatUpdate]:
        """Fold in one event, and yield its updates."""
        kind = event.get("type")
        if not streaming or event.get("object") == "response":  # whole, though a stream was asked for
            self._end(event, streaming=streaming)
        elif kind == "error" or (kind is None and event.get("error")):
            raise failure(PROVIDER, body=dict(event), streaming=True)
        elif kind in ENDS:
            response = as_object(event.get("response"), "response")
            # The type of the event implies the status, where a server leaves it out.
            self._end({"status": str(kind).removeprefix("response."), **response}, streaming=True)
        elif kind == "response.output_item.done":
            item = as_object(event.get("item"), "item")
            self._items[_index(event), text_in(item, "id")] = item  # some gateways number all items alike
        else:
            yield from self._shown(kind, event)

    def finish(self, raw: object) -> Iterator[ChatUpdate]:
        """Yield everything not shown yet, the whole calls and items, then the update that closes the message."""
        response = self._response or {}
        message = self._message(response)
        for part in message.parts:
            if isinstance(part, Text) and not self._texts:
                yield ChatUpdate(text=part.text)
            elif isinstance(part, Reasoning) and part.text and not self._has_reasoning:
                yield ChatUpdate(reasoning=part.text)
            elif isinstance(part, (ToolCall, ProviderItem)):
                yield ChatUpdate(part=part)
        yield ChatUpdate(
            message_done=message,
            usage=responses_usage(response.get("usage")),
            finish_reason=_finish(response, message),
            response_id=text_in(response, "id"),
            model=text_in(response, "model"),
            raw=raw,
            service_tier=text_in(response, "service_tier"),
        )

    def _shown(self, kind: object, event: Mapping[str, object]) -> Iterator[ChatUpdate]:
        delta = text_in(event, "delta")
        if kind == "response.output_text.delta" and delta:
            self._texts.append(delta)
            yield ChatUpdate(text=delta)
        elif kind in _REASONING and delta:
            self._has_reasoning = True
            yield ChatUpdate(reasoning=delta)
        elif kind == "response.reasoning_summary_part.added" and event.get("summary_index"):
            yield ChatUpdate(reasoning="\n\n")
        elif kind == "response.output_item.added":
            item = as_object(event.get("item"), "item")
            if is_async(item):
                self._async.add(_place(event, item))
            elif item.get("type") in _CALLS:
                index = self._calls.setdefault(_place(event, item), len(self._calls))
                call = CallDelta(index, text_in(item, "call_id"), text_in(item, "name"))
                yield ChatUpdate(call_delta=call)
        elif kind in _ARGUMENTS and delta:
            place = _place(event)
            self._given.setdefault(place, []).append(delta)
            if place not in self._async:
                index = self._calls.setdefault(place, len(self._calls))
                yield ChatUpdate(call_delta=CallDelta(index, arguments=delta))
        elif kind in _GIVEN and (given := text_in(event, "arguments") or text_in(event, "input")):
            self._given[_place(event)] = [given]

    def _end(self, response: Mapping[str, object], *, streaming: bool) -> None:
        status = response.get("status")
        error = response.get("error")
        if status == "failed" or error:
            raise failure(PROVIDER, body={"error": error or {}}, streaming=streaming)
        if status not in ("completed", "incomplete") or "output" not in response:
            what = f"has status {status}" if status in _UNFINISHED else "has no output or no status"
            raise ServerError(f"{PROVIDER}: the response {what}: the answer is not complete", provider=PROVIDER)
        if not streaming:
            as_list(response["output"], "output")
        self._response = response

    def _message(self, response: Mapping[str, object]) -> Message:
        output = as_list(response.get("output") or [], "output")
        if not output:  # some servers leave the items out of the last event
            output = [item for _, item in sorted(self._items.items(), key=lambda each: each[0][0])]
        message = message_from_wire(self._whole(item, place) for place, item in enumerate(output))
        if self._texts and not any(isinstance(part, Text) for part in message.parts):  # no item has what was shown
            thought = tuple(takewhile(lambda part: isinstance(part, Reasoning), message.parts))
            shown = Text("".join(self._texts))
            message = replace(message, parts=(*thought, shown, *message.parts[len(thought) :]))
        return with_server(message, self._server) if self._server else message

    def _whole(self, item: object, place: int) -> object:
        """Return an item; a call that lacks what was streamed for it, as some gateways send it, with that."""
        fields = object_or_empty(item)
        name = _CALLS.get(fields.get("type"))
        given = self._given.get(place) or self._given.get(fields.get("id"))
        return {**fields, name: "".join(given)} if name and given and not fields.get(name) else item


def _finish(response: Mapping[str, object], message: Message) -> FinishReason:
    if response.get("status") == "incomplete":
        details = as_object(response.get("incomplete_details") or {}, "incomplete_details")
        return _INCOMPLETE.get(details.get("reason"), "other")
    if message.calls:
        return "tool_calls"
    return "refused" if any(_is_refusal(part) for part in message.parts) else "stop"


def _is_refusal(part: object) -> bool:
    if not isinstance(part, ProviderItem):
        return False
    item = decoded_object(part.json, "output")
    content = as_list(item.get("content") or [], "content") if item.get("type") == "message" else []
    return any(as_object(each, "content").get("type") == "refusal" for each in content)


def _index(event: Mapping[str, object]) -> int:
    index = event.get("output_index")
    return index if isinstance(index, int) else 0


def _place(event: Mapping[str, object], item: Mapping[str, object] = MappingProxyType({})) -> object:
    """Return what tells an item from others: its index, or, where a server gives none (llama.cpp), its id."""
    index = event.get("output_index")
    return index if isinstance(index, int) else text_in(event, "item_id") or text_in(item, "id")
