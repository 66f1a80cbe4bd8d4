"""Start and end of our spans: each ends once, with the cause of its end; at the latest when the process exits."""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias
from weakref import WeakSet

from opentelemetry import context as otel
from opentelemetry.trace import NonRecordingSpan, Span, SpanKind, Status, StatusCode, Tracer, get_current_span

from chatstack import semconv
from chatstack.client.collecting import call_postponed, outside_collector, seconds_late
from chatstack.client.time_limits import expired_limit
from chatstack.forks import at_fork
from chatstack.values.responses import ChatResponse, ChatUpdate

Value: TypeAlias = str | bool | int | float
Attributes: TypeAlias = Mapping[str, Value | Sequence[str]]

_log = logging.getLogger(__name__)
_open: set[Span] = set()
"""Recorded spans that have not ended. Strong references: a dropped stream ends its span itself."""
_known: WeakSet[Tracer] = WeakSet()
"""Tracers whose open spans are ended at the exit of the process."""


def start_span(tracer: Tracer, name: str, attributes: Attributes, *, kind: SpanKind = SpanKind.INTERNAL) -> Span:
    """Start a span that ``end_span`` ends, or the exit of the process; internal unless ``kind`` says otherwise.

    If a sampler or a span processor raises, that is logged, and there is no span: the current one stands in its place,
    as the parent of what is inside. The call goes on.
    """
    try:
        span = tracer.start_span(name, kind=kind, attributes=attributes)
    except Exception:  # noqa: BLE001 - the user's sampler or processor may raise; the call must not fail because of it
        _log.exception("a span is not recorded: a sampler or a span processor raised")
        return NonRecordingSpan(get_current_span().get_span_context())
    if span.is_recording():
        _end_at_exit(tracer)
        _open.add(span)
    return span


def end_span(span: Span, error: BaseException | None) -> str:
    """End a span with the error that ended it; a cancelled one has no error status. Never the error's text: it may
    quote."""
    kind = error_type(error)
    try:
        _open.remove(span)
    except KeyError:  # not recorded, already ended by the exit of the process, or the parent process's
        return kind
    outside_collector(_finish, span, kind)
    return kind


def _finish(span: Span, kind: str) -> None:
    try:
        if kind:
            span.set_attribute(semconv.ERROR_TYPE, kind)
            if kind != "cancelled":
                span.set_status(Status(StatusCode.ERROR, kind))
        late = seconds_late()
        span.end(time.time_ns() - int(late * 1e9) if late else None)
    except Exception:  # noqa: BLE001 - the user's span processor may raise; the call must not fail because of it
        _log.exception("a span may be lost: a span processor raised")


def error_type(error: BaseException | None) -> str:
    """Return the low-cardinality name of a span's end: the error's type, that of a time limit which ran out,
    "cancelled" for another stop, "" for a regular end."""
    if error is None:
        return ""
    if isinstance(error, asyncio.CancelledError) and (limit := expired_limit()):
        return limit
    if isinstance(error, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)):
        return "cancelled"
    return type(error).__name__


def numbers_of(attributes: Attributes) -> dict[str, int | float]:
    """Return the numbers among the attributes, by the last word of their names."""
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
    """End open spans before the SDK shuts down. Exit handlers run last registered first, and the SDK's provider, which
    made the span, had registered before.

    Registered once for each tracer: an unregistered handler keeps its place in a list that only grows, and that is
    searched each time.
    """
    if tracer not in _known:
        _known.add(tracer)
        atexit.unregister(_end_all)
        atexit.register(_end_all)


def _end_all() -> None:
    call_postponed()
    for span in tuple(_open):
        end_span(span, GeneratorExit())


at_fork(after_in_child=_open.clear)  # the parent ends them
