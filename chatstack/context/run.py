"""Runs: context layers that stand side by side are one layer at run time."""

from __future__ import annotations

import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ChatClient, LayerKind, editor_in, reader_of_compactions
from chatstack.client.stream import ChatStream
from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.edits.records import Record
from chatstack.context.memory.memory import ContextMemory
from chatstack.context.passage import Arrived, Passage
from chatstack.context.requests.asking import Asking, answered
from chatstack.context.requests.opening import Opening
from chatstack.context.requests.saying import say_not_last
from chatstack.context.requests.services import ContextServices, in_common, memories_given
from chatstack.telemetry.emission import Telemetry
from chatstack.tokens.counter import TokenCounter
from chatstack.tokens.windows import Windows
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate


@dataclass(frozen=True, slots=True, eq=False)
class ContextLayer(ChatFronts, ABC):
    """A layer that edits what is sent. With the context layers right inside of it, it is one run: a request is opened
    once, passed from one to the next, and sent once.

    A subclass decides in ``passed``, which makes no I/O: what only I/O can answer, it asks.
    """

    inner: ChatClient
    _: KW_ONLY
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _run: ContextRun | None = field(init=False, repr=False, default=None)
    _editing: ContextEditing | None = field(init=False, repr=False, default=None)

    kind: ClassVar[LayerKind] = "context"
    comes_last: ClassVar[bool] = False
    """True of a part that gets what all other layers of its run leave, if nobody edits that further."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        run = self._run
        if run is None:
            run = ContextRun.of(self)
            object.__setattr__(self, "_run", run)
        return await run.send(request)

    @property
    def memory(self) -> ContextMemory:
        """The decisions and sizes of conversations."""
        return self.services.memory

    @property
    def windows(self) -> Windows:
        """The windows of models."""
        return self.services.windows

    @property
    def telemetry(self) -> Telemetry:
        """The one emission point of the stack."""
        return self.services.telemetry

    @property
    def editing(self) -> ContextEditing | None:
        """The part of it that all context layers have; None if it edits only by its parts."""
        return self._editing

    @property
    def parts(self) -> tuple[ContextLayer, ...]:
        """The layers that it is made of, the outermost first (but for one that ``comes_last``): mostly itself alone."""
        return (self,)

    @abstractmethod
    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        """Decide what of a request is handed on, and hand it on: ``yield from arrived.onward(...)``."""

    def folded(self, arrived: Arrived) -> Asking[Record | None]:
        """Return its edits in force for a request, if they fold the beginning of it for good, else None."""
        return None
        yield  # a generator, like those that ask


@dataclass(frozen=True, slots=True)
class ContextRun:
    """Adjacent context layers, the outermost first, and the client behind the last one. ``outer`` are hashes
    of the layers outside of each; ``counters`` are those that have to load something first."""

    layers: Sequence[ContextLayer]
    outer: Sequence[int]
    below: ChatClient
    memory: ContextMemory
    opening: Opening | None
    counters: Sequence[TokenCounter]

    @classmethod
    def of(cls, outermost: ContextLayer) -> ContextRun:
        """Collect the run that begins with this layer. Layers with a memory of their own, or a ``send`` of their own,
        begin another."""
        parts, below = [*outermost.parts], outermost.inner
        while isinstance(below, ContextLayer) and type(below).send is ContextLayer.send:
            if memories_given([each.services for each in (*parts, *below.parts)]) > 1:
                break
            parts += below.parts
            below = below.inner
        last = next((each for each in parts if each.comes_last), None)
        if last is not None:
            parts = [each for each in parts if not each.comes_last]
            editor = editor_in(below)
            if editor is None:
                parts.append(last)
            else:
                say_not_last(last.telemetry, type(editor).__name__)
        shared = in_common([each.services for each in parts])
        layers = [
            each if services is each.services else _with(services, each)
            for each, services in zip(parts, shared, strict=True)
        ]
        editings = [each.editing for each in layers if each.editing is not None]
        counters = {each.counter for each in editings if type(each.counter).prepare is not TokenCounter.prepare}
        memory, opening = layers[0].memory, None
        if editings:
            first = editings[0]
            opening = Opening(memory, first.telemetry, first.weighing, first.owner, reader_of_compactions(below))
        owners = ["" if each.editing is None else each.editing.owner for each in layers]
        outer = [hash(tuple(owners[:place])) for place in range(len(layers))]
        return cls(layers, outer, below, memory, opening, tuple(counters))

    async def send(self, request: ChatRequest, /) -> ChatStream:
        """Answer a request: pass it through all layers, and send what is left of it."""
        opening = self.opening
        if opening is not None and request.options.extra and opening.stands_aside(request):
            others = [layer for layer in self.layers if layer.editing is None]
            return await answered(Passage(others, self.outer, self.below, self.memory, request).core())
        for counter in self.counters:
            await counter.prepare()
        passage = self.passage(request)
        # in no variable: a refusal keeps the frames that it went through, and must not keep a later stream open
        if self.memory.shared is None:
            return await answered(passage.core())
        return self._then_shared(passage, await answered(passage.core()))

    def _then_shared(self, passage: Passage, stream: ChatStream) -> ChatStream:
        if all(hop.opened.replayed is None for hop in passage.hops):
            return stream
        shared = ChatStream(_ThenShared(stream, passage), owns=stream)
        shared.sent = stream.sent
        return shared

    def passage(self, request: ChatRequest) -> Passage:
        """Return the way of a request through these layers."""
        return Passage(self.layers, self.outer, self.below, self.memory, request, self.opening)


def _with(services: ContextServices, layer: ContextLayer) -> ContextLayer:
    """Return the same layer with these services. A subclass may have a constructor of its own, so it is not called."""
    made = object.__new__(type(layer))
    for kind in type(layer).__mro__:
        for slot in vars(kind).values():
            if isinstance(slot, types.MemberDescriptorType) and hasattr(layer, slot.__name__):
                object.__setattr__(made, slot.__name__, getattr(layer, slot.__name__))
    for name, value in getattr(layer, "__dict__", {}).items():  # a subclass without slots has one
        object.__setattr__(made, name, value)
    object.__setattr__(made, "services", services)
    object.__setattr__(made, "_run", None)
    make_ready: Callable[[], None] | None = getattr(made, "__post_init__", None)
    if make_ready is not None:
        make_ready()
    return made


@dataclass(frozen=True, slots=True)
class _ThenShared:
    """The same stream; at its end, the choices bound to its answer are put into the store, before the next call."""

    stream: ChatStream
    passage: Passage

    async def __anext__(self) -> ChatUpdate:
        try:
            return await self.stream.__anext__()
        except StopAsyncIteration:
            await self._share()
            raise

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def _share(self) -> None:
        for hop, bound in self.passage.bound:
            opened = hop.opened
            for each in bound:
                if self.passage.memory.has_forgotten(opened.seen, opened.forgets):
                    return
                await hop.editing.binding.agreement.share(each, opened.seen, opened.context)
