"""Streamed answers on their own wire: upstream's events, and in the place of what a layer has changed, written ones."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from typing import cast

from chatstack import ChatResponse, ChatUpdate
from chatstack.providers.extras import WireObject, object_or_empty
from chatstack.providers.wires import Form
from chatstack_gateway.answer_events import AnswerWriter, Block, Kind
from chatstack_gateway.answer_forms import ChatWriter, MessagesWriter, ResponsesWriter
from chatstack_gateway.answer_terms import CHAT_FINISHES, STOP_REASONS
from chatstack_gateway.came_answers import CameAnswer, CameEvent, words_of

_SAID = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call")
"""Fields of a delta of chat completions that updates are read from."""
_KINDS: Mapping[str, Kind] = {"text": "text", "message": "text", "thinking": "reasoning", "reasoning": "reasoning"}
"""Kinds of blocks by their types; all others are items."""


class KeptWriter(AnswerWriter):
    """Writes an answer as the layers left it. An event whose updates come through the layers as they are is handed on
    in its own bytes, with events in front of it that no update stands for. Whatever else comes through is written, and
    events whose updates do not come through are left out."""

    def __init__(self, came: CameAnswer, model: str) -> None:
        super().__init__(model, says_reasoning=True)
        self.came = came
        self._is_changed = False

    def add(self, update: ChatUpdate) -> bytes:
        words = words_of(update)
        if not any(words):
            return b""
        if words in self.came.told:  # by the events in front of it
            out = self._before_end()
            return out + super().add(update) if self._is_changed and update.part is not None else out
        event = self.came.hand_on(update)
        if event is None:
            return self._written(update)
        events, gone = self.came.events, list[CameEvent]()
        while events[0] is not event:
            gone.append(events.popleft())
        if event.is_kept:
            gone.append(events.popleft())
        return b"".join(map(self._passed, gone))

    def finish(self, response: ChatResponse) -> bytes:
        events = self.came.events
        if not self._is_changed and all(each.is_kept for each in events) and self.came.is_kept(response):
            return b"".join(map(self._kept, events))
        out = self._before_end()
        self._is_changed = True
        out += self._encoded(self._rest(response))
        return out + b"".join(self._ended(each, response) for each in self.came.events)

    def _before_end(self) -> bytes:
        """Return what is left of the events in front of the end."""
        events = self.came.events
        before = [each for each in events if not self._is_end(each)]
        self.came.events = deque(each for each in events if self._is_end(each))
        return b"".join(map(self._passed, before))

    def _written(self, update: ChatUpdate) -> bytes:
        """Return the events for an update that is not upstream's."""
        events, gone = self.came.events, list[CameEvent]()
        self._is_changed = True
        while events and not self._is_end(events[0]) and (events[0].handed_on or not events[0].updates):
            gone.append(events.popleft())
        return b"".join(map(self._passed, gone)) + super().add(update)

    def _passed(self, event: CameEvent) -> bytes:
        if event.is_kept:
            return self._kept(event)
        self.came.leave_out(event)
        self._is_changed = True
        return self._left_out(event)

    def _noted(self, event: CameEvent) -> None:
        """Take note of what an event that is handed on says, so that a written one can go on from it."""
        self._has_begun = True
        for update in event.updates:
            if update.part is None:
                for _ in self._events(update):
                    pass

    def _refused(self, text: str) -> Iterator[WireObject]:
        yield from ()  # upstream's events have told it

    @abstractmethod
    def _is_end(self, event: CameEvent) -> bool:
        """Return True for an event of the answer's end, in front of which all else has to be written."""

    @abstractmethod
    def _kept(self, event: CameEvent) -> bytes:
        """Return the bytes of an event that no layer has changed."""

    @abstractmethod
    def _left_out(self, event: CameEvent) -> bytes:
        """Return what is to be kept of an event that a layer has changed or taken out."""

    @abstractmethod
    def _ended(self, event: CameEvent, response: ChatResponse) -> bytes:
        """Return an event of the end of a changed answer."""


class _KeptChat(KeptWriter, ChatWriter):
    """Chat completions: each event stands for itself."""

    _late: WireObject | None = None
    """What is left of an event that told the end together with words that a layer has changed."""

    def _is_end(self, event: CameEvent) -> bool:
        fields = event.fields
        if event.updates or fields is None:
            return not event.updates and b"[DONE]" in event.raw
        return _finishes(fields) or (bool(fields.get("usage")) and not fields.get("choices"))

    def _kept(self, event: CameEvent) -> bytes:
        if event.fields is not None:
            self._noted(event)
        return event.raw

    def _written(self, update: ChatUpdate) -> bytes:
        head = self.came.head
        self.id, self.model = str(head.get("id") or self.id), str(head.get("model") or self.model)
        created = head.get("created")
        self.created = created if isinstance(created, int) else self.created
        return super()._written(update)

    def _left_out(self, event: CameEvent) -> bytes:
        fields = event.fields or {}
        choices = [{**each, "delta": _bare(each.get("delta"))} for each in cast("list[WireObject]", fields["choices"])]
        if _finishes(fields):
            self._late = {**fields, "choices": choices}
        return self._encoded(each for update in event.handed_on for each in self._events(update))

    def _ended(self, event: CameEvent, response: ChatResponse) -> bytes:
        late, self._late = self._late, None
        return b"".join(self._reasoned(each, raw, response) for each, raw in ((late, b""), (event.fields, event.raw)))

    def _reasoned(self, fields: WireObject | None, raw: bytes, response: ChatResponse) -> bytes:
        """Return an event with the reason to stop that the layers left."""
        if fields is None:
            return raw
        if self.came.ends_otherwise(response):
            reason = CHAT_FINISHES[response.finish_reason or "other"]
            choices = cast("list[WireObject]", fields.get("choices") or [])
            told = [{**each, "finish_reason": reason} if each.get("finish_reason") else each for each in choices]
            fields = {**fields, "choices": told}
        elif raw:
            return raw
        return self._event(fields)


class _KeptBlocks(KeptWriter):
    """Wires whose answers are blocks, each with an index. A block is upstream's up to the first change in it, and
    written from there on; it begins where something of it is to be shown."""

    _index = "index"
    _stops = "content_block_stop"
    _ends: tuple[str, ...] = ("message_delta", "message_stop")

    def __init__(self, came: CameAnswer, model: str) -> None:
        super().__init__(came, model)
        self._held: dict[int, list[CameEvent]] = {}
        self._places: dict[int, Block] = {}
        self._rewritten: set[int] = set()

    def _is_end(self, event: CameEvent) -> bool:
        return event.fields is not None and event.fields.get("type") in self._ends

    def _kept(self, event: CameEvent) -> bytes:
        if event.fields is None:
            return event.raw
        index, kind = event.fields.get(self._index), str(event.fields.get("type"))
        if not isinstance(index, int):
            self._has_begun = True
            return self._shown(event, event.fields)
        if index in self._rewritten:
            return self._encoded(each for update in event.updates for each in self._events(update))
        if kind.endswith(("_start", ".added")) and not event.updates and index not in self._places:
            self._held.setdefault(index, []).append(event)
            return b""
        return b"".join(self._of_block(index, each) for each in (*self._held.pop(index, ()), event))

    def _of_block(self, index: int, event: CameEvent) -> bytes:
        fields, out = cast("WireObject", event.fields), b""
        place = self._places.get(index)
        if place is None:
            if self._open is not None and (self._open.came_at is None or self._open.came_at in self._rewritten):
                out = self._encoded(self._closed())
            place = self._places[index] = self._open = self._block_of(event)
            place.came_at, place.index = index, self._blocks if self._is_changed else index
            self._blocks = max(self._blocks, place.index + 1)
        self._noted(event)
        out += self._shown(event, {**fields, self._index: place.index})
        if fields.get("type") == self._stops:
            self._ended_block(place, fields)
        return out

    def _block_of(self, event: CameEvent) -> Block:
        """Return the block that an event begins."""
        fields = cast("WireObject", event.fields)
        first = cast("WireObject", fields.get("content_block") or fields.get("item") or {})
        kind = _KINDS.get(str(first.get("type")), "item")
        block = Block(kind, -1, item_id=str(first.get("id") or fields.get("item_id") or ""))
        for update in event.updates:
            if update.call_delta is not None:
                block.kind, block.call_id, block.name = "call", update.call_delta.id, update.call_delta.name
                self._calls[update.call_delta.index] = block
            elif update.text or update.reasoning:
                block.kind = "text" if update.text else "reasoning"
        return block

    def _ended_block(self, block: Block, fields: WireObject) -> None:
        """Take note of the end of a block that is upstream's."""
        self._done.append(block)
        self._written_calls.add(block.call_id)
        if self._open is block:
            self._open = None

    def _closed(self) -> Iterator[WireObject]:
        self._rewrite_open()
        yield from super()._closed()

    def _rewrite_open(self) -> None:
        """Take note that what is to come of the open block is written, not upstream's."""
        if self._open is not None and self._open.came_at is not None:
            self._rewritten.add(self._open.came_at)

    def _left_out(self, event: CameEvent) -> bytes:
        index = (event.fields or {}).get(self._index)
        if isinstance(index, int):
            self._rewritten.add(index)
            self._held.pop(index, None)
        return self._encoded(each for update in event.handed_on for each in self._events(update))

    def _shown(self, event: CameEvent, fields: WireObject) -> bytes:
        return event.raw if fields == event.fields else self._event(fields)


class _KeptMessages(_KeptBlocks, MessagesWriter):
    """Anthropic's Messages."""

    def _ended(self, event: CameEvent, response: ChatResponse) -> bytes:
        fields = event.fields or {}
        delta = fields.get("delta")
        if not isinstance(delta, dict) or not self.came.ends_otherwise(response):
            return event.raw
        reason = STOP_REASONS[response.finish_reason or "other"]
        return self._event({**fields, "delta": {**cast("WireObject", delta), "stop_reason": reason}})


class _KeptResponses(_KeptBlocks, ResponsesWriter):
    """OpenAI's Responses: events have numbers, and the last one has all items."""

    _index = "output_index"
    _stops = "response.output_item.done"
    _ends = ("response.completed", "response.incomplete", "response.failed")

    def _written(self, update: ChatUpdate) -> bytes:
        out = super()._written(update)
        self._rewrite_open()  # the events of an item's end tell all of its text again
        return out

    def _ended_block(self, block: Block, fields: WireObject) -> None:
        super()._ended_block(block, fields)
        self._items.append(cast("WireObject", fields.get("item")))

    def _shown(self, event: CameEvent, fields: WireObject) -> bytes:
        number = fields.get("sequence_number")
        if self._is_changed and number is not None:
            fields = {**fields, "sequence_number": self._count}
        self._count = (number if isinstance(number, int) and not self._is_changed else self._count) + 1
        return super()._shown(event, fields)

    def _ended(self, event: CameEvent, response: ChatResponse) -> bytes:
        fields = cast("WireObject", event.fields)
        told = {**cast("WireObject", fields.get("response")), "output": self._items}
        return self._shown(event, {**fields, "response": told})


def kept_writer(form: Form, came: CameAnswer, model: str) -> KeptWriter:
    """Return a writer for the answer that came over that wire."""
    if form == "chat":
        return _KeptChat(came, model)
    return (_KeptMessages if form == "messages" else _KeptResponses)(came, model)


def _finishes(chunk: Mapping[str, object]) -> bool:
    return any(each.get("finish_reason") for each in cast("list[WireObject]", chunk.get("choices") or []))


def _bare(delta: object) -> WireObject:
    """Return a delta without what updates are read from."""
    return {name: value for name, value in object_or_empty(delta).items() if name not in _SAID}
