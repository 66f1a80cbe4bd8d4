"""How spans of ours begin and end: once, and with what ended them; at the latest when the process exits."""

from __future__ import annotations

import asyncio
import atexit
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias
from weakref import WeakSet

from opentelemetry import context as otel
from opentelemetry.trace import INVALID_SPAN, Span, SpanKind, Status, StatusCode, Tracer

from chatstack import semconv
from chatstack.forks import at_fork
from chatstack.values.responses import ChatResponse, ChatUpdate

Value: TypeAlias = str | bool | int | float
Attributes: TypeAlias = Mapping[str, Value | Sequence[str]]

_log = logging.getLogger(__name__)
_open: set[Span] = set()
"""Recorded spans that have not ended. Strong references: whoever drops a stream ends its span."""
_known: WeakSet[Tracer] = WeakSet()
"""The tracers whose spans the exit of the process ends in time."""


def start_span(tracer: Tracer, name: str, attributes: Attributes, *, kind: SpanKind = SpanKind.INTERNAL) -> Span:
    """A span that ``end_span`` ends, or the exit of the process; of something that runs in it, if nothing is said.

    A sampler or a span processor that raises is logged, and costs the span: what it was to tell of goes on.
    """
    try:
        span = tracer.start_span(name, kind=kind, attributes=attributes)
    except Exception:  # noqa: BLE001 - whatever the user's sampler or processor raises; the call is not to fail of it
        _log.exception("a span is not recorded: a sampler or a span processor raised")
        return INVALID_SPAN
    if span.is_recording():
        _end_at_exit(tracer)
        _open.add(span)
    return span


def end_span(span: Span, error: BaseException | None) -> str:
    """End a span with what ended it; a cancelled one has no error status. Never the error's text: it may quote."""
    kind = error_type(error)
    try:
        _open.remove(span)
    except KeyError:  # it is not recorded, the exit of the process has ended it, or it is the parent process's
        return kind
    try:
        if kind:
            span.set_attribute(semconv.ERROR_TYPE, kind)
            if kind != "cancelled":
                span.set_status(Status(StatusCode.ERROR, kind))
        span.end()
    except Exception:  # noqa: BLE001 - whatever the user's span processor raises; the call is not to fail of it
        _log.exception("a span may be lost: a span processor raised")
    return kind


def error_type(error: BaseException | None) -> str:
    """The low-cardinality name of what ended a span: "" for a regular end, "cancelled" for a stop."""
    if error is None:
        return ""
    if isinstance(error, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)):
        return "cancelled"
    return type(error).__name__


def numbers_of(attributes: Attributes) -> dict[str, int | float]:
    """The numbers among the attributes, by the last word of their names."""
    return {
        name.rsplit(".", 1)[-1]: value
        for name, value in attributes.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


class SpanWatch:
    """A stream's watch that keeps a span current while the stream is read, and ends it once."""

    __slots__ = ("_context", "_ended", "saw")

    def __init__(
        self,
        context: otel.Context,
        ended: Callable[[ChatResponse | None, BaseException | None], None],
        saw: Callable[[ChatUpdate], None] | None = None,
    ) -> None:
        self._context = context
        self._ended = ended
        self.saw = saw

    def enter(self) -> object:
        return otel.attach(self._context)

    def leave(self, token: object, /) -> None:
        otel.detach(token)  # type: ignore[arg-type]

    def ended(self, answer: ChatResponse | None, error: BaseException | None, /) -> None:
        self._ended(answer, error)


def _end_at_exit(tracer: Tracer) -> None:
    """End what is open before the SDK shuts down. What registers last runs first, and the SDK's provider, which gave
    the span, was there before.

    Done once for each tracer: what is unregistered keeps its place in a list that only grows, and that is searched
    each time.
    """
    if tracer not in _known:
        _known.add(tracer)
        atexit.unregister(_end_all)
        atexit.register(_end_all)


def _end_all() -> None:
    for span in tuple(_open):
        end_span(span, GeneratorExit())


at_fork(after_in_child=_open.clear)  # they are the parent's to end
