"""How spans of ours begin and end: once, and with what ended them; at the latest when the process exits."""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from opentelemetry import context as otel
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from chatstack import semconv
from chatstack.values.responses import ChatResponse, ChatUpdate

Value: TypeAlias = str | bool | int | float
Attributes: TypeAlias = Mapping[str, Value | Sequence[str]]

_open: set[Span] = set()
"""Recorded spans that have not ended. Strong references: whoever drops a stream ends its span."""


def start_span(tracer: Tracer, name: str, attributes: Attributes, *, kind: SpanKind = SpanKind.INTERNAL) -> Span:
    """A span that ``end_span`` ends, or the exit of the process; of something that runs in it, if nothing is said."""
    span = tracer.start_span(name, kind=kind, attributes=attributes)
    if span.is_recording():
        if not _open:
            _at_exit()
        _open.add(span)
    return span


def end_span(span: Span, error: BaseException | None) -> str:
    """End a span with what ended it; a cancelled one has no error status. Never the error's text: it may quote."""
    kind = error_type(error)
    _open.discard(span)
    if kind and span.is_recording():
        span.set_attribute(semconv.ERROR_TYPE, kind)
        if kind != "cancelled":
            span.set_status(Status(StatusCode.ERROR, kind))
    if span.is_recording():  # the exit of the process may have ended it
        span.end()
    return kind


def error_type(error: BaseException | None) -> str:
    """The low-cardinality name of what ended a span: "" for a regular end, "cancelled" for a stop."""
    if error is None:
        return ""
    if isinstance(error, (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)):
        return "cancelled"
    return type(error).__name__


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


def _at_exit() -> None:
    """End what is open before the SDK shuts down. What registers last runs first, and the SDK's provider, which gave
    the span, was there before."""
    atexit.unregister(_end_all)
    atexit.register(_end_all)


def _end_all() -> None:
    for span in tuple(_open):
        end_span(span, GeneratorExit())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open.clear)  # they are the parent's to end
