"""Bounds each tool result once, when it is new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Annotated, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from chatstack.client.checks import wraps_a_client
from chatstack.client.options import PositiveInt, check_options
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.context.decisions.editing import ContextEditing
from chatstack.context.edits.context import Context
from chatstack.context.edits.handles import recall_name
from chatstack.context.passage import Arrived
from chatstack.context.requests.asking import Asking
from chatstack.context.requests.services import ContextServices
from chatstack.context.run import ContextLayer
from chatstack.context.shapes.references import References
from chatstack.context.shapes.shaping import Shaper
from chatstack.context.strategies.applied_shapes import apply_shapes
from chatstack.context.strategies.clearing_options import ToolNames
from chatstack.stack.order import ContextStage
from chatstack.tokens.counter import TokenCounter
from chatstack.values.requests import edited_by_provider

BytesByTool: TypeAlias = Annotated[
    Mapping[str, PositiveInt], Meta(description="a table of tool names, each with a number of bytes")
]


@wraps_a_client
@dataclass(frozen=True, slots=True, eq=False)
class ToolResultShaper(ContextLayer):
    """Bounds each tool result when it first goes out, and the same way ever after. Nothing of it is in the prompt cache
    yet, so that costs no cache.

    Goes inside the tool loop, outside the clearer: first of the context layers. A text that exceeds ``max_bytes`` of
    UTF-8 by a third keeps its beginning and its end: of JSON and tables whole rows, of other text whole lines, with up
    to a tenth for lines between that look like errors. All that is kept stands there word for word. One line says how
    much is left out, and the result's handle, or the call of ``recall_tool`` that gives it back. ``per_tool`` are other
    bounds for some tools. Tools in ``never`` have none, nor has the recall tool. Of an error, twice as much is kept,
    most of it from the end.
    Never shaped: what is not text, blocks with fields of a provider's (cache marks, citations), pinned messages,
    results that a repair put in, and results beside words of the user.
    What is sent is a pure function of each result, its tool and the options, so every process sends the same. In a
    conversation that is under way without this layer, it costs the prompt cache once.

    With ``deduplicate``, a result of 400 characters or more that equals one sent before it goes out as a reference to
    the earlier one. Once a layer behind has cleared or cut the earlier one, the later one goes out whole. That is done
    last, behind all context layers beside this one: so their limits count duplicates in full, and a cache-aligned
    summary leaves the cache at the first reference. Where somebody may edit the request after that, there are no
    references: the provider on its side, a fallback for its other clients, a context layer that stands apart (which is
    warned of), whoever keeps what a ``StackContextManager`` leaves.
    """

    inner: ChatClient
    _: KW_ONLY
    max_bytes: PositiveInt = 4_000
    per_tool: BytesByTool = field(default_factory=dict[str, int])
    never: ToolNames = ()
    deduplicate: bool = False
    counter: TokenCounter | None = None
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)
    _referrer: _DuplicateReferrer | None = field(init=False, repr=False)

    version: ClassVar[int] = 1
    stage: ClassVar[ContextStage] = "shape"
    may_wait: ClassVar[bool] = False
    needs_window: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "per_tool", dict(sorted(self.per_tool.items())))  # must not change any more
        object.__setattr__(self, "never", tuple(sorted(set(self.never))))
        editing = ContextEditing.around(self.inner, self, self.services, self.counter)
        object.__setattr__(self, "_editing", editing)
        referrer = None
        if self.deduplicate:
            referrer = _DuplicateReferrer(self.inner, never=self.never, counter=self.counter, services=self.services)
        object.__setattr__(self, "_referrer", referrer)

    @property
    def parts(self) -> tuple[ContextLayer, ...]:
        """Itself, and what refers to duplicates behind all others."""
        return (self,) if self._referrer is None else (self, self._referrer)

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        opened = arrived.opened(self._editing)
        recall = recall_name(opened.context.request.options.tools)
        rule = Shaper(self.max_bytes, self.per_tool, frozenset(self.never), recall)
        terms = hash((self._editing.owner, recall))
        scaled = partial(self._editing.reports.corrected, opened)
        context = yield from apply_shapes(rule, terms, self._editing, opened, scaled)
        return (yield from arrived.onward(self._editing, context, opened, terms=terms))


@dataclass(frozen=True, slots=True, eq=False)
class _DuplicateReferrer(ContextLayer):
    """The part of a shaper with ``deduplicate`` that comes last of its run. What arrives is what all others leave, so
    an original that is not sent any more has no references: they need not be cleared with it."""

    inner: ChatClient
    _: KW_ONLY
    never: ToolNames
    counter: TokenCounter | None
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)

    version: ClassVar[int] = 1
    comes_last: ClassVar[bool] = True

    def __post_init__(self) -> None:
        editing = ContextEditing.around(self.inner, self, self.services, self.counter)
        object.__setattr__(self, "_editing", editing)

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        options = arrived.request.options
        if edited_by_provider(options):
            return (yield from arrived.as_is(arrived.request))
        opened, recall = arrived.opened(self._editing), recall_name(options.tools)
        rule = References(frozenset(self.never), recall, opened.context.size_of)
        hops = arrived.passage.hops
        scale = hops[-1].context.scale if hops else 1.0  # the one that the layer before has given to these sizes

        def scaled(context: Context) -> Context:
            return context if scale == 1.0 else msgspec.structs.replace(context, scale=scale)

        context = yield from apply_shapes(rule, hash((self._editing.owner, recall)), self._editing, opened, scaled)
        return (yield from arrived.referring(context, opened))
