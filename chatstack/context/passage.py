"""The passage of one request through adjacent context layers: opened once, sent once, learnt from once."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import msgspec
from opentelemetry import context as otel

from chatstack.client.checks import send_to
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.edits.context import Context
from chatstack.context.edits.records import Record
from chatstack.context.histories.choices import Bound
from chatstack.context.histories.conversations import Conversation, Form, LastAnswer
from chatstack.context.histories.history import History
from chatstack.context.histories.recognised import Recognised
from chatstack.context.learning import Hop, SentRequest
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.requests.asking import Asking
from chatstack.context.requests.opened import Opened, after_edits
from chatstack.context.requests.opening import Came, Opening, Weighing
from chatstack.telemetry.shortening import compacted
from chatstack.telemetry.turns import attached
from chatstack.tokens.counter import TokenCounter
from chatstack.values.messages import Message, as_shaped
from chatstack.values.requests import ChatRequest, edited_by_provider
from chatstack.values.responses import ChatResponse


class Passing(Protocol):
    """A context layer, as one of several adjacent ones."""

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        """Decide what of the request is handed on, and hand it on: ``yield from arrived.onward(...)``."""
        ...

    def folded(self, arrived: Arrived) -> Asking[Record | None]:
        """Return its edits in force for a request, if they fold the beginning of it for good, else None."""
        ...


class Send(msgspec.Struct, frozen=True):
    """A request to send; ``mark`` is the trace context that says what was left out of it, if anything was."""

    inner: ChatClient
    request: ChatRequest
    mark: otel.Context | None

    def answer(self) -> Awaitable[ChatStream]:
        return send_to(self.inner, self.request) if self.mark is None else self._marked(self.mark)

    async def _marked(self, mark: otel.Context) -> ChatStream:
        with attached(mark):
            return await send_to(self.inner, self.request)


class Arrived(msgspec.Struct, frozen=True):
    """A request that arrives at one of the layers; ``fewer`` tokens than in the one that came to the first.
    ``shortened`` is a hash of what that very layer has shortened in it; 0 for nothing. ``whole`` is the same request
    without references to duplicates, None if there are none; ``share`` of its tokens are in this one."""

    passage: Passage
    place: int
    request: ChatRequest
    fewer: int = 0
    shortened: int = 0
    whole: ChatRequest | None = None
    share: float = 1.0

    def opened(self, editing: ContextEditing) -> Opened:
        """Open it for this layer."""
        passage, request, weighing = self.passage, self.request, editing.weighing
        base = passage.bases[-1][1]
        seen, last, by_original, before = base.seen, base.last, False, 0
        was_edited = editing.by_original and seen.history.is_edited  # further out, by a layer that is no neighbour
        if request.messages is base.request.messages and not was_edited:
            known = passage.contexts.get(weighing.counter)  # counted once for layers that count alike
            if known is None or known.request is not request:
                known = passage.contexts[weighing.counter] = weighing.weighed(request, seen, last)
            context = known
        else:
            by_original, is_in_place = editing.by_original, False
            if by_original:  # else its messages are the edited ones: the edits are its past
                before = _edits_of(passage.hops)
                is_in_place = not was_edited and all(_stands_in_place(hop.opened.replayed) for hop in passage.hops)
            if not is_in_place:
                messages = tuple([*map(as_shaped, request.messages)]) if by_original else request.messages
                seen, last = passage.recognised(seen, passage.form(by_original), messages)
            context = weighing.weighed(request, seen, last, tokens=passage.weight_of(request, weighing))
        if base.late:
            context = msgspec.structs.replace(context, late=base.late)
        clears = passage.provider_clears
        if not clears and last is not None and last.cleared_tokens and edited_by_provider(request.options):
            clears = last.cleared_tokens  # it is asked to again: by a layer that is no neighbour, or by the caller
        return Opened(
            context,
            seen,
            request.options.model or editing.model,
            is_by_original=by_original,
            is_unstable=base.is_unstable,
            is_ineffective=passage.is_ineffective,
            outer=passage.outer[self.place] + was_edited,
            above=passage.above,
            before=before,
            shortened=self.shortened,
            last_answer=last,
            forgets=passage.forgets,
            provider_clears=clears,
        )

    def shaped(self, request: ChatRequest, fewer: int, shortened: int = 0) -> Arrived:
        """Return the same arrival with a smaller request, made anew on every call, in its place."""
        return Arrived(self.passage, self.place, request, self.fewer + fewer, shortened)

    def as_is(self, request: ChatRequest) -> Asking[ChatStream]:
        """Hand on a request with the same messages."""
        self.passage.back_to(self.place)
        return self.passage.to(Arrived(self.passage, self.place + 1, request, self.fewer))

    def onward(
        self, editing: ContextEditing, context: Context, opened: Opened, *, terms: int | None = None
    ) -> Asking[ChatStream]:
        """Hand it on as this context: to the next layer, or to the client behind the last one.

        With ``terms``, layers further in take it for the conversation as it came: its messages are the same ones on
        each call. ``terms`` is a hash of what they depend on, beside the history.
        """
        request, passage, fewer = context.to_send(), self.passage, self.fewer
        if opened.is_ineffective:
            passage.is_ineffective = True
        if passage.hops and passage.hops[-1].place >= self.place:
            passage.back_to(self.place)
        passage.hops.append(Hop(self.place, editing, opened, context, request))
        if request is not context.request:
            fewer += context.fewer_than(opened.context)
            if terms is not None:
                form = Form(opened.seen.who, self.place, False, terms, is_shaped=True)
                seen, last = passage.recognised(opened.seen, form, request.messages)
                passage.bases.append((self.place, Came(request, seen, last, opened.is_unstable, passage.came.late)))
        return passage.to(Arrived(passage, self.place + 1, request, fewer))

    def referring(self, context: Context, opened: Opened) -> Asking[ChatStream]:
        """Hand it on as this context, in which references stand for duplicates, to the client behind the last layer.
        What is reported of it is learnt as if they had been sent in full."""
        passage, place = self.passage, self.place
        passage.has_references = context.is_edited
        if not context.is_edited:
            return passage.to(Arrived(passage, place + 1, self.request, self.fewer))
        fewer = self.fewer + context.fewer_than(opened.context)
        share = context.input_tokens / opened.context.input_tokens
        return passage.to(Arrived(passage, place + 1, context.to_send(), fewer, whole=self.request, share=share))

    def folded_behind(self) -> Asking[Record | None]:
        """Return what a layer behind this one has folded for good, by a summary; None if there is none."""
        for place, layer in enumerate(self.passage.layers[self.place + 1 :], self.place + 1):
            record = yield from layer.folded(Arrived(self.passage, place, self.request, self.fewer))
            if record is not None:
                return record
        return None


@dataclass(slots=True, repr=False, eq=False)
class Passage:
    """One request on its way through adjacent context layers, the outermost first."""

    layers: Sequence[Passing]
    outer: Sequence[int]
    inner: ChatClient
    memory: ContextMemory
    request: ChatRequest
    opening: Opening | None = None
    came: Came = field(init=False)
    above: int = field(init=False)
    forgets: int = field(init=False)
    provider_clears: int = 0
    """The tokens that the provider clears by itself, as layers up to here have asked it to."""
    has_references: bool = False
    """True if what was sent last had references in the place of duplicates."""
    is_ineffective: bool = False
    """True once a layer has warned that an edit does not help."""
    hops: list[Hop] = field(default_factory=list[Hop])
    bound: list[tuple[Hop, Sequence[Bound]]] = field(default_factory=list[tuple[Hop, Sequence[Bound]]])
    """The choices that were bound to the answer."""
    bases: list[tuple[int, Came]] = field(default_factory=list[tuple[int, Came]])
    """The request as it came, and as layers have shaped it for all that are further in, each with its place."""
    contexts: dict[TokenCounter, Context] = field(default_factory=dict[TokenCounter, Context])
    """The contexts of the last base, by the counter that they were weighed by."""

    def core(self) -> Asking[ChatStream]:
        """Open the request, and pass it from the first layer on."""
        self.forgets = self.memory.forgets
        if self.opening is None:
            self.came = Came(self.request, Recognised(History(), Conversation(), 0, (), False), None, False)
        else:
            self.came = yield from self.opening.open(self.request)
        self.bases.append((-1, self.came))
        request = self.came.request
        options, systems = request.options, self.came.seen.systems_in(request.messages)
        self.above = hash((systems, options.instructions, options.tools, options.output_schema))
        return (yield from self.to(Arrived(self, 0, request)))

    def to(self, arrived: Arrived) -> Asking[ChatStream]:
        """Pass a request to its next layer, or send it."""
        if arrived.place < len(self.layers):
            return self.layers[arrived.place].passed(arrived)
        return self._sent(arrived)

    def _sent(self, arrived: Arrived) -> Asking[ChatStream]:
        came, request = self.came.request, arrived.request
        is_edited = request.messages is not came.messages
        mark = compacted(came.messages, request.messages, arrived.fewer) if is_edited else None
        stream: ChatStream = yield Send(self.inner, request, mark)
        sent = SentRequest(tuple(self.hops), stream.sent)
        if arrived.whole is not None and stream.sent is not None and stream.sent.messages is request.messages:
            sent = SentRequest(sent.hops, stream.sent.but(messages=arrived.whole.messages), arrived.share)
        for hop in sent.hops:
            hop.editing.binding.reach(hop.opened, hop.context)
        stream.when_answered(partial(self._answered, sent))
        return stream

    def _answered(self, sent: SentRequest, answer: ChatResponse) -> None:
        self.bound += sent.learn(self.memory, answer)

    def back_to(self, place: int) -> None:
        """Go back to that layer, which hands on anew: what it handed on before, and was refused, counts no more."""
        while self.hops and self.hops[-1].place >= place:
            self.hops.pop()
        while self.bases[-1][0] >= place:
            self.bases.pop()

    def recognised(
        self, seen: Recognised, form: Form, messages: tuple[Message, ...]
    ) -> tuple[Recognised, LastAnswer | None]:
        """Recognise an edited form of a history, with its own past; return it with its last answer."""
        seen = self.memory.derived.recognised(seen, form, messages)
        self.memory.past.recall(seen)
        return seen, seen.conversation.last_answer(seen.length)

    def form(self, by_original: bool) -> Form:
        """Return the form that the history has after all edits up to here."""
        edited = [hop for hop in self.hops if hop.opened.replayed is not None]
        if by_original:  # then messages that were replaced are what they were
            edited = [hop for hop in edited if not _stands_in_place(hop.opened.replayed)]
        return Form(self.bases[-1][1].seen.who, edited[-1].place if edited else -1, by_original, _edits_of(edited))

    def weight_of(self, request: ChatRequest, weighing: Weighing) -> int:
        """Return the size of edited messages, as the layer before counted them, if it counts alike."""
        hop = self.hops[-1] if self.hops else None
        if hop is not None and hop.request.messages is request.messages and hop.editing.counter is weighing.counter:
            return hop.context.messages_tokens + hop.context.left_out_tokens
        return sum(map(weighing.size_of, request.messages))


def _edits_of(hops: Sequence[Hop]) -> int:
    """Return the fingerprint of all edits of these hops."""
    return functools.reduce(after_edits, (hop.opened.replayed for hop in hops), 0)


def _stands_in_place(record: Record | None) -> bool:
    """Return True if these edits leave every message in its place."""
    return record is None or not (record.drop or record.insert)
