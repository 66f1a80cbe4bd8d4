"""Bounds each tool result once, when it is new."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Annotated, ClassVar, TypeAlias

import msgspec
from msgspec import Meta

from chatstack.client.options import PositiveInt, check_options
from chatstack.client.protocol import ChatClient
from chatstack.client.stream import ChatStream
from chatstack.client.wiring import wraps_a_client
from chatstack.context.asking import Asking, aside
from chatstack.context.clearing_options import ToolNames
from chatstack.context.context import Context
from chatstack.context.conversations import term_in
from chatstack.context.editing import ContextEditing
from chatstack.context.handles import recall_name
from chatstack.context.history import weight_of
from chatstack.context.opened import Opened
from chatstack.context.passage import Arrived
from chatstack.context.plans import Plan
from chatstack.context.run import ContextLayer
from chatstack.context.saying import say_rejected, say_shaped
from chatstack.context.services import ContextServices
from chatstack.context.shaping import NAME, NOTHING_SHAPED, Shaper, Shapes
from chatstack.context.verifier import problems
from chatstack.stack.order import ContextStage
from chatstack.tokens.counter import TokenCounter
from chatstack.tokens.default import default_counter
from chatstack.values.messages import relink

BytesByTool: TypeAlias = Annotated[
    Mapping[str, PositiveInt], Meta(description="a table of tool names, each with a number of bytes")
]
_BYTES_AS_A_MESSAGE = 10_000
"""The bytes of text that are as much work as one message, where it is told how much there is to do."""
_REASON = "results are longer than their tools may give"


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
    """

    inner: ChatClient
    _: KW_ONLY
    max_bytes: PositiveInt = 4_000
    per_tool: BytesByTool = field(default_factory=dict[str, int])
    never: ToolNames = ()
    counter: TokenCounter | None = None
    services: ContextServices = field(default_factory=ContextServices, repr=False)
    _editing: ContextEditing = field(init=False, repr=False)

    version: ClassVar[int] = 1
    stage: ClassVar[ContextStage] = "shape"
    may_wait: ClassVar[bool] = False
    needs_window: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "per_tool", dict(sorted(self.per_tool.items())))  # must not change any more
        object.__setattr__(self, "never", tuple(sorted(set(self.never))))
        editing = ContextEditing.around(self.inner, self, self.services, self.counter or default_counter(self.inner))
        object.__setattr__(self, "_editing", editing)

    @property
    def editing(self) -> ContextEditing:
        return self._editing

    def passed(self, arrived: Arrived) -> Asking[ChatStream]:
        opened = arrived.opened(self._editing)
        recall = recall_name(opened.context.request.options.tools)
        rule = Shaper(self.max_bytes, self.per_tool, frozenset(self.never), recall)
        terms = hash((self._editing.owner, recall))
        context = yield from self._shaped(rule, terms, opened)
        return (yield from arrived.rebased(self._editing, context, opened, terms))

    def _shaped(self, rule: Shaper, terms: int, opened: Opened) -> Asking[Context]:
        """Return the context with its results shaped; only new messages are looked at."""
        history, length = opened.seen.history, opened.seen.length
        known = term_in(history.shapes, terms) or NOTHING_SHAPED
        context = self._editing.reports.corrected(opened, _with_shapes(known, opened))
        if known.looked_at >= length:
            return context
        positions, messages = opened.seen.positions, opened.context.messages
        size = sum(weight_of(messages[at]) for at in positions[known.looked_at :])
        work = partial(rule.shaped, messages, positions, known.looked_at)
        new = yield from aside(work, max(length - known.looked_at, size // _BYTES_AS_A_MESSAGE))
        before, saved = context, 0
        if new:
            replace = tuple((positions[at], message) for at, message in new.items())
            plan = Plan(strategy=NAME, reason=_REASON, replace=replace)
            context = self._carried_out(plan, before, opened)
            saved = before.messages_tokens - context.messages_tokens
            new = new if context is not before else {}
        self.memory.derived.keep_shapes(history, terms, Shapes(length, {**known.messages, **new}, known.saved + saved))
        return context

    def _carried_out(self, plan: Plan, before: Context, opened: Opened) -> Context:
        """Verify a plan, carry it out, and say so; return the context unchanged if it does not pass."""
        wrong = problems(plan, before)
        if wrong:
            say_rejected(self.telemetry, plan, wrong)
            return before
        after = before.after(plan)
        is_first = self._editing.is_news("shaped", opened)
        earlier = sum(at < before.latest_assistant for at, _ in plan.replace) if is_first else 0
        say_shaped(self.telemetry, plan, before, after, earlier)
        return after


def _with_shapes(shapes: Shapes, opened: Opened) -> Context:
    """Return the context as it came, with the messages that are shaped already."""
    context, seen = opened.context, opened.seen
    positions = seen.positions
    edited = {positions[at]: message for at, message in shapes.messages.items() if at < seen.length}
    if not edited:
        return context
    # If the caller sends fresh objects, nothing else holds those of an earlier call.
    relink(edited, context.messages, 0)
    messages, saved = [*context.messages], shapes.saved
    for at, message in edited.items():
        messages[at] = message
    if len(edited) < len(shapes.messages):  # another call has gone further in the meantime
        saved = sum(context.size_of(context.messages[at]) - context.size_of(new) for at, new in edited.items())
    return msgspec.structs.replace(
        context, messages=tuple(messages), messages_tokens=context.messages_tokens - saved, find_origins=None
    )
