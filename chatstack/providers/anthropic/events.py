"""Conversion of one answer's events to updates. Pure: events are plain objects, as they are on the wire.

An answer that was not streamed is read as the events that would have brought it, so that both take the same path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from chatstack.errors import BrokenStreamError
from chatstack.providers.anthropic.blocks import (
    PROVIDER,
    block_to_call,
    block_to_part,
    call_arguments,
    objects,
)
from chatstack.providers.anthropic.native import applied_edits
from chatstack.providers.anthropic.wire import message_of, overhead_from_wire, service_tier, usage_from_wire
from chatstack.providers.extras import WireObject, call_input, without_nulls
from chatstack.providers.failures import stream_ended, window_full
from chatstack.values.messages import Message
from chatstack.values.parts import Part, Reasoning, Text, ToolCall
from chatstack.values.responses import CallDelta, ChatUpdate, FinishReason, Usage
from chatstack.values.usage import rest_of, told_early

_FINISHES: Mapping[object, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "pause_turn": "paused",
    "compaction": "paused",
    "refusal": "refused",
}


def events_of(answer: Mapping[str, object]) -> Iterator[WireObject]:
    """Yield the events of an answer that came whole."""
    content = objects(answer.get("content"), "content")
    yield {"type": "message_start", "message": answer}
    for index, block in enumerate(content):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        yield {"type": "content_block_stop", "index": index}
    yield {"type": "message_stop"}


@dataclass(slots=True)
class _Block:
    """A block that is being written: its first form, and the JSON text of its input, if it has one."""

    fields: WireObject
    place: int
    call_position: int | None = None
    json_pieces: list[str] = field(default_factory=list[str])
    texts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def extend(self, delta: Mapping[str, object]) -> None:
        """Add a delta. Text is appended to the field of the same name, so deltas of a later kind are not lost either;
        other values are hints for displays (``estimated_tokens``), which the API would not take back."""
        for name, value in delta.items():
            if name == "partial_json":
                self.json_pieces.append(str(value))
            elif name == "citation":
                self.fields["citations"] = [*(cast("Sequence[object]", self.fields.get("citations") or ())), value]
            elif name != "type" and isinstance(value, str):
                # Joined once: appending to a text copies it each time.
                self.texts.setdefault(name, []).append(value)

    def part(self) -> Part:
        """Return the whole part. The arguments of a call stay the text that was received."""
        for name, pieces in self.texts.items():
            held = self.fields.get(name)
            self.fields[name] = (held if isinstance(held, str) else "") + "".join(pieces)
        self.texts.clear()
        written = "".join(self.json_pieces).strip()
        if self.call_position is not None:
            return block_to_call(self.fields, written or call_arguments(self.fields.get("input")))
        if written:
            self.fields["input"] = call_input(written)
        return block_to_part(self.fields)


class AnswerFold:
    """Folds the events of one answer into updates; ``answer`` is the finished answer as an object of the wire's.
    ``asked`` is the model that is asked, if others may be asked later."""

    __slots__ = ("_asked", "_calls", "_early", "_open", "_parts", "_told", "answer", "is_done")

    def __init__(self, *, asked: str = "") -> None:
        self.answer: WireObject = {}
        self._asked = asked
        self.is_done = False
        self._open: dict[int, _Block] = {}
        self._parts: dict[int, Part] = {}
        self._calls = 0
        self._early: Usage | None = None
        self._told: Usage | None = None

    @property
    def _usage(self) -> Mapping[str, object]:
        """The usage as far as it is told."""
        return _object(self.answer.get("usage") or {})

    def updates(self, event: Mapping[str, object]) -> Iterator[ChatUpdate]:
        """Yield the updates for one event. Raises ``BrokenStreamError`` for an event that does not fit the ones
        before."""
        for update in self._read(event):
            if self._early is not None and self._early.input_tokens:
                tier = service_tier(self._usage)
                update = told_early(update, self._early, str(self.answer.get("model") or ""), tier)
                self._early, self._told = None, update.usage
            yield update

    def _read(self, event: Mapping[str, object]) -> Iterator[ChatUpdate]:
        try:
            match event["type"]:
                case "message_start":
                    self.answer = {**_object(event["message"]), "content": []}
                    if not self.answer.get("stop_reason"):  # a whole answer tells its usage once
                        self._early = usage_from_wire(self._usage)
                case "content_block_start":
                    yield from self._begin(_index(event), _object(event["content_block"]))
                case "content_block_delta":
                    yield from self._extend(_index(event), _object(event["delta"]))
                case "content_block_stop":
                    yield from self._finish(_index(event))
                case "message_delta":
                    self._amend(event)
                case "message_stop":
                    self.is_done = True
                case _:  # pings, and what a later version may add
                    pass
        except (KeyError, TypeError) as error:
            raise BrokenStreamError(
                f"{PROVIDER}: the answer could not be read: a {event.get('type')!s} event does not fit",
                provider=PROVIDER,
            ) from error

    def ended(self, raw: object = None) -> Iterator[ChatUpdate]:
        """Yield the last updates. Raises ``BrokenStreamError`` if the answer is not complete, and
        ``ContextOverflowError`` if the window was full before the model had begun to answer."""
        if not self.is_done:
            raise stream_ended(PROVIDER, "message_stop")
        if not self.answer.get("stop_reason"):
            raise stream_ended(PROVIDER, "a stop_reason")
        for index in sorted(self._open):
            yield from self._finish(index)
        parts = (self._parts[place] for place in sorted(self._parts))
        message = message_of(parts, self.answer.get("container"), (self._asked, self.answer.get("model")))
        usage, reason = self._usage, self.answer.get("stop_reason")
        spent = usage_from_wire(usage)
        if reason == "model_context_window_exceeded" and not message.parts:
            raise window_full(PROVIDER, spent.input_tokens, str(reason))
        yield ChatUpdate(
            message_done=message,
            usage=rest_of(spent, self._told),
            overhead_usage=overhead_from_wire(usage),
            finish_reason=_finish(reason, message),
            response_id=str(self.answer.get("id") or ""),
            model=str(self.answer.get("model") or ""),
            applied_edits=applied_edits(self.answer.get("context_management")),
            raw=raw,
            service_tier=service_tier(usage),
        )

    def _begin(self, index: int, fields: Mapping[str, object]) -> Iterator[ChatUpdate]:
        if index in self._open:  # some servers number two blocks alike, and end none
            yield from self._finish(index)
        block = self._open[index] = _Block(dict(fields), place=len(self._open) + len(self._parts))
        if fields.get("type") == "compaction":  # the input that was told is the compaction's, not the answer's
            self._early = None
        if fields.get("type") == "tool_use":
            block.call_position = self._calls
            self._calls += 1
            delta = CallDelta(block.call_position, str(fields["id"]), str(fields["name"]))
            yield ChatUpdate(call_delta=delta)
        else:
            yield from _shown(block, fields)

    def _extend(self, index: int, delta: Mapping[str, object]) -> Iterator[ChatUpdate]:
        block = self._open[index]
        block.extend(delta)
        if block.call_position is not None:
            if delta.get("partial_json"):
                yield ChatUpdate(call_delta=CallDelta(block.call_position, arguments=str(delta["partial_json"])))
        else:
            yield from _shown(block, delta)

    def _finish(self, index: int) -> Iterator[ChatUpdate]:
        block = self._open.pop(index)
        part = self._parts[block.place] = block.part()
        if isinstance(part, ToolCall):
            block.fields["input"] = call_input(part.arguments)
        cast("list[WireObject]", self.answer["content"]).append(block.fields)
        if not isinstance(part, (Text, Reasoning)) or (isinstance(part, Reasoning) and not part.text):
            yield ChatUpdate(part=part)

    def _amend(self, event: Mapping[str, object]) -> None:
        """Apply the fields from the end of an answer. Its counts are totals; missing ones stay as they are."""
        usage = {**self._usage, **without_nulls(_object(event.get("usage") or {}))}
        rest = {name: value for name, value in event.items() if name not in ("type", "delta", "usage")}
        self.answer = {**self.answer, **without_nulls(_object(event["delta"])), **rest, "usage": usage}


def _shown(block: _Block, fields: Mapping[str, object]) -> Iterator[ChatUpdate]:
    """Yield the text or reasoning that was added to a block, as a delta."""
    kind = block.fields.get("type")
    if kind == "text" and fields.get("text"):
        yield ChatUpdate(text=str(fields["text"]))
    elif kind == "thinking" and fields.get("thinking"):
        yield ChatUpdate(reasoning=str(fields["thinking"]))


def _finish(reason: object, message: Message) -> FinishReason:
    """Return the reason why the model stopped. Calls win over the end of a turn, which some servers send beside
    them."""
    finish = _FINISHES.get(reason, "other")
    return "tool_calls" if finish == "stop" and message.calls else finish


def _index(event: Mapping[str, object]) -> int:
    index = event["index"]
    if not isinstance(index, int):
        raise TypeError(index)
    return index


def _object(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise TypeError(type(value).__name__)
    return cast("Mapping[str, object]", value)
