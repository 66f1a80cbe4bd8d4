"""Warnings as lines of the standard ``logging``, for applications without OpenTelemetry, or with logs beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

from opentelemetry import _logs

from chatstack import semconv
from chatstack.telemetry.providers import unless_proxy
from chatstack.telemetry.spans import Attributes, error_type

_logger = logging.getLogger(semconv.SCOPE)
_line = logging.makeLogRecord({"name": semconv.SCOPE})
_PYTHON_WARNINGS = frozenset({"layer_order"})
_EVENT_NAME = "otel.event.name"
"""Field from which OpenTelemetry's ``LoggingHandler`` takes the name of an event."""


def write_warning(code: str, message: str, attributes: Attributes) -> None:
    """Write a warning to the logger ``chatstack``, its attributes as fields of the record (``extra``).

    Without any handler Python prints it on standard error. We add no handler that would prevent that. What is a Python
    warning as well is left out then: it would be printed twice.
    """
    if code in _PYTHON_WARNINGS and not _logger.hasHandlers():
        return
    fields = {_EVENT_NAME: semconv.WARNING_EVENT, semconv.WARNING_CODE: code, **attributes}
    with suppress(
        Exception
    ):  # a filter of the user's may raise: the call must not fail because of it, and the span has the facts
        _logger.warning("%s: %s", code, message, extra=fields)


def write_tool_failure(tool: str, error: BaseException) -> None:
    """Write the tool and the type and place of its exception to the logger ``chatstack`` as INFO; never the exception's
    text.

    The model only reads that the tool failed, so without a tracing dashboard this is where the bug shows.
    """
    if not _logger.isEnabledFor(logging.INFO):
        return
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = "" if at is None else f" at {at.tb_frame.f_code.co_filename}:{at.tb_lineno}"
    fields = {semconv.TOOL_NAME: tool, semconv.ERROR_TYPE: error_type(error)}
    with suppress(Exception):  # as above
        _logger.info("tool %s raised %s%s", tool, error_type(error), where, extra=fields)


def reaches_opentelemetry(provider: _logs.LoggerProvider | None) -> bool:
    """Return True if a warning line becomes a log record of that provider by OpenTelemetry's own ``LoggingHandler``."""
    if not _logger.isEnabledFor(logging.WARNING) or _refuses(_logger):
        return False
    ours = _configured(provider)
    return any(
        _is_opentelemetrys(handler) and _configured(getattr(handler, "_logger_provider", ours)) is ours
        for first in _handlers()
        if first.level <= logging.WARNING
        for handler in _on_the_way(first)
    )


def _refuses(part: logging.Filterer) -> bool:
    """Return True if a filter by name rejects our lines. Other filters are not called: they may have side effects."""
    by_name = [each for each in part.filters if isinstance(each, logging.Filter) and type(each) is logging.Filter]
    return any(not each.filter(_line) for each in by_name)


def _on_the_way(handler: logging.Handler | None) -> Iterator[logging.Handler]:
    """Yield a handler that passes our lines, and those that it hands them on to, as a ``MemoryHandler`` does. The level
    of these is not asked."""
    while isinstance(handler, logging.Handler) and not _refuses(handler):
        yield handler
        handler = getattr(handler, "target", None)


def _configured(provider: object) -> object:
    """Return the provider, and the process's one for None and for the API's proxy, which leads to it once it is
    configured."""
    return unless_proxy(provider) or _logs.get_logger_provider()


def _handlers() -> Iterator[logging.Handler]:
    """Yield all handlers that receive our lines."""
    logger: logging.Logger | None = _logger
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _is_opentelemetrys(handler: logging.Handler) -> bool:
    """Return True for the handler of the SDK or of ``opentelemetry-instrumentation-logging``, or a subclass of one."""
    kinds = type(handler).__mro__
    return any(kind.__name__ == "LoggingHandler" and kind.__module__.startswith("opentelemetry.") for kind in kinds)
