"""The running turn: warnings roll up to its root, and its listener gets events. It travels in the OpenTelemetry
context."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opentelemetry import context as otel
from opentelemetry.trace import Span, set_span_in_context

from chatstack import semconv
from chatstack.client.closing import closes_this
from chatstack.client.collecting import outside_collector, seconds_late
from chatstack.telemetry.events import ProgressEvent, ProgressKind
from chatstack.telemetry.shortening import LeftOut, Messages, unmarked
from chatstack.telemetry.spans import Attributes

_TURN = otel.create_key("chatstack-turn")
_BESIDE = otel.create_key("chatstack-beside")
_NOTHING: Mapping[str, int | float] = {}
_WEIGHT = {"context_irreducible": 0, "context_window_exceeded": 1, "context_window_near_limit": 3}
"""Sort order of warnings on a root; all others are in between."""
_TOLD = 20
"""Maximum number of warnings, and of edits, in the story of a turn: it is told anew with each of them."""

Listener = Callable[[ProgressEvent], None]


class Turn:
    """One user message and all its rounds. ``root`` is our outermost span of it; a foreign span is never touched.

    A turn within another one, as an agent's that is another's tool, tells the outer one of its warnings and edits, and
    of its progress where it has no listener itself.
    """

    def __init__(
        self, root: Span, conversation_id: str | None, listener: Listener | None = None, *, asked: Messages = ()
    ) -> None:
        outer = current_turn()
        self.outer = outer = None if outer is None or outer.has_ended else outer
        """The turn around this one, until this one ends."""
        self.has_ended: bool = False
        """True once its end is told: a task that outlives the turn still has it as its own."""
        self.root = root
        self.conversation_id = conversation_id
        self._listener = listener
        self.is_heard: bool = listener is not None or (outer is not None and outer.is_heard)
        """True if there is a listener, its own or that of the turn around it."""
        self.asked = asked
        """The messages of the current round, before any layer inside of its loop has seen them."""
        self.round = 0
        self._counted_by: object = None
        self.warnings: list[tuple[str, str]] = []
        """Code and message of each warning, in order; duplicates once."""
        self.warning_count = 0
        self.edits: list[tuple[str, str]] = []
        """Strategy and result of each edit, in order."""
        self.left_out: LeftOut | None = None
        """The difference between the last shortened request and its original."""
        self.utilization = 0.0
        """Share of the limit in the turn's largest context, before it was pruned."""

    @property
    def edit_count(self) -> int:
        """Number of edits in the turn."""
        return len(self.edits)

    def count(self, round_number: int, loop: object, asked: Messages = ()) -> None:
        """Record the round and its messages. The first loop that calls this counts the rounds, not one within a tool or
        a summary."""
        if self._counted_by is None:
            self._counted_by = loop
        if self._counted_by is loop:
            self.round = round_number
            self.asked = asked

    def warned(self, code: str, message: str) -> None:
        """Roll a warning up to the root, where lists of traces show it."""
        if self.has_ended:
            return
        if (code, message) not in self.warnings:
            self.warnings.append((code, message))
        self.warning_count += 1
        codes = list(dict.fromkeys(code for code, _ in self.warnings))
        self._show({semconv.WARNINGS: codes, semconv.WARNING_COUNT: self.warning_count})
        if self.outer is not None:
            self.outer.warned(code, message)

    def edited(self, strategy: str, message: str) -> None:
        """Count an edit on the root."""
        if self.has_ended:
            return
        self.edits.append((strategy, message))
        self._show({semconv.EDIT_COUNT: self.edit_count})
        if self.outer is not None:
            self.outer.edited(strategy, message)

    def shortened(self, left_out: LeftOut) -> None:
        """Record on the root what was left out of a request."""
        self.left_out = left_out
        self._show(left_out.attributes)

    def _show(self, attributes: Attributes) -> None:
        if self.root.is_recording():  # not once the turn has ended
            self.root.set_attributes(attributes)

    @property
    def story(self) -> str:
        """Warnings, edits and the size left out, in one line: the essential first, as lists show no more."""
        told = [f"WARN {message} ({code})" for code, message in self.warnings_by_weight]
        told += _more(self.warnings, "warnings")
        told += [f"{message} ({strategy})" for strategy, message in self.edits[:_TOLD]]
        told += _more(self.edits, "edits")
        return "; ".join(told if self.left_out is None else (*told, str(self.left_out)))

    @property
    def warnings_by_weight(self) -> list[tuple[str, str]]:
        """The warnings, those about the fate of the request first; not all where they are many."""
        return sorted(self.warnings, key=lambda each: _WEIGHT.get(each[0], 2))[:_TOLD]

    def tell(
        self,
        kind: ProgressKind,
        name: str,
        *,
        message: str = "",
        error: str = "",
        numbers: Mapping[str, int | float] = _NOTHING,
    ) -> None:
        """Pass an event to the listener, if there is one; else to that of the turn around this one, whose beginning and
        end are its own. "turn_ended" is the last."""
        listener, outer = self._listener, self.outer
        if kind == "turn_ended":
            self._listener, self.outer, self.is_heard, self.has_ended = None, None, False, True
        if listener is None:
            if outer is not None and not kind.startswith("turn_"):
                outer.tell(kind, name, message=message, error=error, numbers=numbers)
        else:
            event = ProgressEvent(
                kind=kind,
                name=name,
                at=time.time() - seconds_late(),
                conversation_id=self.conversation_id,
                round=self.round,
                message=message,
                error=error,
                numbers=numbers,
            )
            outside_collector(listener, event)


def _more(entries: Sequence[object], name: str) -> list[str]:
    return [f"{len(entries) - _TOLD:,} more {name}"] if len(entries) > _TOLD else []


class attached:  # noqa: N801 - used like a function, as those of contextlib are
    """Context manager that makes an OpenTelemetry context current, also across an await: ``with attached(context):``.

    A coroutine closed by the garbage collector runs its end in another context, where there is nothing to detach.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, context: otel.Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = otel.attach(self._context)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not closes_this(error):
            otel.detach(self._token)


def current_turn() -> Turn | None:
    """Return the current turn, if any."""
    found: Any = otel.get_current().get(_TURN)
    turn: Turn | None = found  # no cast, which would be a call: this is asked several times for each request
    return turn


def with_turn(turn: Turn, context: otel.Context) -> otel.Context:
    """Return a context in which that turn is the current one."""
    return otel.set_value(_TURN, turn, context)


def inside(turn: Turn) -> otel.Context:
    """Return the current context, in that turn and under its root."""
    return with_turn(turn, set_span_in_context(turn.root))


def beside(span: Span) -> otel.Context:
    """Return the current context under that span, for work beside the turn's own request: a summary's, or a tool's."""
    return otel.set_value(_BESIDE, current_turn(), unmarked(set_span_in_context(span)))


def asked_of(turn: Turn | None) -> Messages:
    """Return the messages of the turn's round if its own request is on its way, else ()."""
    return () if turn is None or otel.get_value(_BESIDE) is turn else turn.asked


def of_conversation(conversation_id: str | None, attributes: Attributes) -> Attributes:
    """Return the attributes with the conversation's id added, if there is one."""
    return attributes if conversation_id is None else {**attributes, semconv.CONVERSATION_ID: conversation_id}


def within(turn: Turn | None, attributes: Attributes) -> Attributes:
    """Return the attributes with the id of the turn's conversation added, if there is one."""
    return attributes if turn is None else of_conversation(turn.conversation_id, attributes)
