"""The turn that is running: where warnings roll up to, and who listens. It travels in the OpenTelemetry context."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import cast

from opentelemetry import context as otel
from opentelemetry.trace import Span, set_span_in_context

from chatstack import semconv
from chatstack.telemetry.events import ProgressEvent, ProgressKind
from chatstack.telemetry.spans import Attributes

_TURN = otel.create_key("chatstack-turn")
_COMPACTED = otel.create_key("chatstack-compacted")
_NOTHING: Mapping[str, int | float] = {}

Listener = Callable[[ProgressEvent], None]


class Turn:
    """One user message and all its rounds. ``root`` is our outermost span of it; a foreign span is never touched."""

    __slots__ = (
        "_counted_by",
        "conversation_id",
        "edit_count",
        "edits",
        "listener",
        "root",
        "round",
        "utilization",
        "warning_count",
        "warnings",
    )

    def __init__(self, root: Span, conversation_id: str | None, listener: Listener | None = None) -> None:
        self.root = root
        self.conversation_id = conversation_id
        self.listener = listener
        self.round = 0
        self._counted_by: object = None
        self.warnings: dict[str, str] = {}
        """By code, in the order in which they came first: what was said last."""
        self.warning_count = 0
        self.edits: dict[str, str] = {}
        """By strategy: what its last edit came to."""
        self.edit_count = 0
        self.utilization = 0.0
        """The share of the limit that its largest context had, before it was pruned."""

    def count(self, round_number: int, loop: object) -> None:
        """Say which round it is: the first loop that does counts them, not one within a tool or a summary."""
        if self._counted_by is None:
            self._counted_by = loop
        if self._counted_by is loop:
            self.round = round_number

    def warned(self, code: str, message: str) -> None:
        """Roll a warning up to the root, where lists of traces show it."""
        self.warnings[code] = message
        self.warning_count += 1
        self.root.set_attribute(semconv.WARNINGS, list(self.warnings))
        self.root.set_attribute(semconv.WARNING_COUNT, self.warning_count)

    def edited(self, strategy: str, message: str) -> None:
        """Count an edit on the root."""
        self.edits[strategy] = message
        self.edit_count += 1
        self.root.set_attribute(semconv.EDIT_COUNT, self.edit_count)

    @property
    def story(self) -> str:
        """What was warned of and edited, in one line: what matters comes first, as lists show no more than that."""
        warned = (f"WARN {message} ({code})" for code, message in self.warnings.items())
        return "; ".join((*warned, *(f"{message} ({strategy})" for strategy, message in self.edits.items())))

    def tell(
        self,
        kind: ProgressKind,
        name: str,
        *,
        message: str = "",
        error: str = "",
        numbers: Mapping[str, int | float] = _NOTHING,
    ) -> None:
        """Pass a fact to the listener, if there is one."""
        if self.listener is not None:
            self.listener(
                ProgressEvent(
                    kind=kind,
                    name=name,
                    at=time.time(),
                    conversation_id=self.conversation_id,
                    round=self.round,
                    message=message,
                    error=error,
                    numbers=numbers,
                )
            )


class attached:  # noqa: N801 - read where it is used, like those of contextlib
    """``with attached(context):`` makes an OpenTelemetry context current, also across an await.

    A coroutine that the collector closes runs its end in another context, where there is nothing to detach.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, context: otel.Context) -> None:
        self._context = context

    def __enter__(self) -> None:
        self._token = otel.attach(self._context)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not GeneratorExit:
            otel.detach(self._token)


def current_turn() -> Turn | None:
    """The turn that runs here, if any."""
    return cast("Turn | None", otel.get_value(_TURN))


def with_turn(turn: Turn, context: otel.Context) -> otel.Context:
    """A context in which that turn is the current one."""
    return otel.set_value(_TURN, turn, context)


def inside(turn: Turn) -> otel.Context:
    """The current context, in that turn and under its root."""
    return with_turn(turn, set_span_in_context(turn.root))


def of_conversation(conversation_id: str | None, attributes: Attributes) -> Attributes:
    """The attributes of a span, and whose it is."""
    return attributes if conversation_id is None else {**attributes, semconv.CONVERSATION_ID: conversation_id}


def within(turn: Turn | None, attributes: Attributes) -> Attributes:
    """The attributes of a span of that turn: whose it is, if anybody's."""
    return attributes if turn is None else of_conversation(turn.conversation_id, attributes)


def compacted() -> otel.Context:
    """The current context, with the mark that the request on its way down was edited."""
    return otel.set_value(_COMPACTED, True)


def beside(span: Span) -> otel.Context:
    """The context for a request of a layer's own, under that span: nothing is edited on its way down."""
    return otel.set_value(_COMPACTED, False, set_span_in_context(span))


def is_compacted() -> bool:
    """Whether the request on its way down was edited."""
    return otel.get_value(_COMPACTED) is True
