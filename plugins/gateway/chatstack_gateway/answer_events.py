"""Answers written in the form of a wire, from the updates that a stack yields: the events of a stream, or whole."""

from __future__ import annotations

import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from chatstack import ChatResponse, ChatUpdate, Reasoning, Text, ToolCall
from chatstack.providers.extras import WireObject
from chatstack.providers.wires import Form
from chatstack.values.responses import CallDelta
from chatstack_gateway.answer_terms import refusal_of
from chatstack_gateway.events import decoded
from chatstack_gateway.positions import written

Kind: TypeAlias = Literal["text", "reasoning", "call", "item"]
_PREFIXES: Mapping[Form, str] = {"chat": "chatcmpl-", "messages": "msg_", "responses": "resp_"}


def made_id(prefix: str) -> str:
    """Return an identifier as the APIs make them."""
    return f"{prefix}{uuid.uuid4().hex}"


@dataclass(slots=True)
class Block:
    """A piece of the answer that is being written: a text, reasoning, one call, or an item of the API's own."""

    kind: Kind
    index: int
    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    item_id: str = ""
    came_at: int | None = None
    """Its place in upstream's answer, if it began there."""

    @property
    def text(self) -> str:
        """What has been written of it."""
        return "".join(self.pieces)


class AnswerWriter(ABC):
    """Writes one answer: ``add`` each update, then ``finish`` with the whole one; or ``whole`` alone. A subclass for
    each wire says how a block begins, grows and ends there.

    One block is open at a time: a call whose pieces come among those of others is written once they have all come.
    """

    form: Form

    def __init__(self, model: str, *, says_reasoning: bool) -> None:
        self.id = made_id(_PREFIXES[self.form])
        self.model = model
        self.created = int(time.time())
        self._says_reasoning = says_reasoning
        self._open: Block | None = None
        self._blocks: int = 0
        self._has_begun = False
        self._calls: dict[int, Block] = {}
        self._written_calls: set[str] = set()
        self._done: list[Block] = []

    def add(self, update: ChatUpdate) -> bytes:
        """Return the events for an update; b"" for one that has none."""
        return self._encoded(self._events(update))

    def finish(self, response: ChatResponse) -> bytes:
        """Return the last events."""
        return self._encoded(self._last(response)) + self.tail

    def whole(self, response: ChatResponse) -> WireObject:
        """Return the answer as the API gives it to those who do not want it streamed."""
        for _ in self._last(response):
            pass
        return self._object(response)

    tail = b""
    """What follows the last event."""

    def _events(self, update: ChatUpdate) -> Iterator[WireObject]:
        if not self._has_begun:
            self._has_begun = True
            yield from self._begin()
        if update.reasoning:
            yield from self._grown("reasoning", update.reasoning)
        if update.text:
            yield from self._grown("text", update.text)
        if update.call_delta is not None:
            yield from self._called(update.call_delta)
        if isinstance(update.part, ToolCall):
            yield from self._whole_call(update.part)

    def _last(self, response: ChatResponse) -> Iterator[WireObject]:
        yield from self._rest(response)
        yield from self._end(response)

    def _rest(self, response: ChatResponse) -> Iterator[WireObject]:
        """Yield what has not been written of the message."""
        yield from self._events(ChatUpdate())
        streamed = {block.kind for block in (*self._done, *([self._open] if self._open else []))}
        for message in response.messages:
            for part in message.parts if message.role == "assistant" else ():  # what came without a delta
                if isinstance(part, Text) and part.text and "text" not in streamed:
                    yield from self._grown("text", part.text)
                elif isinstance(part, Reasoning) and part.text and "reasoning" not in streamed:
                    yield from self._grown("reasoning", part.text)
                elif isinstance(part, ToolCall):
                    yield from self._whole_call(part)
        refusal = refusal_of(response)
        if refusal and not self._has("text"):
            yield from self._refused(refusal)
        yield from self._closed()

    def _refused(self, text: str) -> Iterator[WireObject]:
        """Yield the words of a model that refused; as text, where the wire has no place of their own."""
        yield from self._grown("text", text)

    def _grown(self, kind: Kind, delta: str) -> Iterator[WireObject]:
        if kind == "reasoning" and not self._says_reasoning:
            return
        if self._open is None or self._open.kind != kind:
            yield from self._opened(Block(kind, self._blocks))
        if self._open is not None:
            self._open.pieces.append(delta)
            yield from self._delta(self._open, delta)

    def _called(self, delta: CallDelta) -> Iterator[WireObject]:
        call = self._calls.setdefault(delta.index, Block("call", -1))
        call.call_id = call.call_id or delta.id
        call.name += delta.name if delta.name != call.name else ""
        call.pieces.append(delta.arguments)
        if call is self._open:
            if delta.arguments:
                yield from self._delta(call, delta.arguments)
        elif call.name and call.call_id and call.index < 0 and self._may_open:
            yield from self._opened(call)
            if call.text:
                yield from self._delta(call, call.text)

    @property
    def _may_open(self) -> bool:
        """True unless a call is being written that may not have come whole yet."""
        if self._open is None or self._open.kind != "call":
            return True
        try:
            decoded(self._open.text.encode())
        except ValueError:
            return False
        return True

    def _has(self, kind: Kind) -> bool:
        return any(block.kind == kind for block in (*self._done, *([self._open] if self._open else [])))

    def _whole_call(self, part: ToolCall) -> Iterator[WireObject]:
        """Write a call of which all is known: one that has begun is ended."""
        if part.id in self._written_calls:
            return
        self._written_calls.add(part.id)
        block = self._open
        if block is not None and block.kind == "call" and block.call_id == part.id:
            rest = part.arguments.removeprefix(block.text) if part.arguments.startswith(block.text) else ""
            if rest and (block.text or rest != "{}"):
                block.pieces.append(rest)
                yield from self._delta(block, rest)
            yield from self._closed()
            return
        block = Block("call", self._blocks, part.id, part.name)
        yield from self._opened(block)
        block.pieces.append(part.arguments)
        yield from self._delta(block, part.arguments)
        yield from self._closed()

    def _opened(self, block: Block) -> Iterator[WireObject]:
        yield from self._closed()
        block.index, self._open = self._blocks, block
        self._blocks += 1
        yield from self._start(block)

    def _closed(self) -> Iterator[WireObject]:
        block, self._open = self._open, None
        if block is not None:
            self._done.append(block)
            if block.kind == "call":
                self._written_calls.add(block.call_id)
            yield from self._stop(block)

    def _encoded(self, events: Iterable[WireObject]) -> bytes:
        return b"".join(self._event(each) for each in events)

    def _event(self, event: WireObject) -> bytes:
        return f"event: {event['type']}\ndata: {written(event)}\n\n".encode()

    @abstractmethod
    def _begin(self) -> Iterator[WireObject]: ...

    @abstractmethod
    def _start(self, block: Block) -> Iterator[WireObject]: ...

    @abstractmethod
    def _delta(self, block: Block, delta: str) -> Iterator[WireObject]: ...

    @abstractmethod
    def _stop(self, block: Block) -> Iterator[WireObject]: ...

    @abstractmethod
    def _end(self, response: ChatResponse) -> Iterator[WireObject]: ...

    @abstractmethod
    def _object(self, response: ChatResponse) -> WireObject: ...
