"""Warnings as lines of the standard ``logging``, for whoever has no OpenTelemetry, or reads logs beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import suppress

from opentelemetry import _logs

from chatstack import semconv
from chatstack.telemetry.spans import Attributes, error_type

_logger = logging.getLogger(semconv.SCOPE)
_line = logging.makeLogRecord({"name": semconv.SCOPE})
_EVENT_NAME = "otel.event.name"
"""The field from which OpenTelemetry's ``LoggingHandler`` takes the name of an event."""


def write_warning(code: str, message: str, attributes: Attributes) -> None:
    """Write a warning to the logger ``chatstack``, its attributes as fields of the record (``extra``).

    Without any handler Python prints it on standard error. No handler of ours keeps it from doing so.
    """
    fields = {_EVENT_NAME: semconv.WARNING_EVENT, semconv.WARNING_CODE: code, **attributes}
    with suppress(
        Exception
    ):  # a filter of the user's that raises: the call is not to fail of it, and the span has it all
        _logger.warning("%s: %s", code, message, extra=fields)


def write_tool_failure(tool: str, error: BaseException) -> None:
    """Write which tool raised what, and where, to the logger ``chatstack`` as INFO; never the text of the exception.

    The model reads no more than that the tool failed, so without a tracing dashboard this is where the bug shows.
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
    """Whether such a line becomes a log record of that provider by OpenTelemetry's own ``LoggingHandler``."""
    if not _logger.isEnabledFor(logging.WARNING):
        return False
    ours = _configured(provider)
    return any(
        handler.level <= logging.WARNING
        and not any(isinstance(each, logging.Filter) and _refuses(each) for each in handler.filters)
        and _configured(getattr(handler, "_logger_provider", ours)) is ours
        for handler in _handlers()
        if _is_opentelemetrys(handler)
    )


def _refuses(each: logging.Filter) -> bool:
    """Whether a filter by name leaves our lines out. Others are not asked: they may count."""
    return type(each) is logging.Filter and not each.filter(_line)


def _configured(provider: object) -> object:
    """The process's provider for none, and for the API's stand-in, which leads to it once it is configured."""
    is_stand_in = provider is None or type(provider).__module__.startswith("opentelemetry._logs")
    return _logs.get_logger_provider() if is_stand_in else provider


def _handlers() -> Iterator[logging.Handler]:
    """All that get what is written here."""
    logger: logging.Logger | None = _logger
    while logger is not None:
        yield from logger.handlers
        logger = logger.parent if logger.propagate else None


def _is_opentelemetrys(handler: logging.Handler) -> bool:
    """Whether it is the SDK's, or that of ``opentelemetry-instrumentation-logging``, or derives from one."""
    kinds = type(handler).__mro__
    return any(kind.__name__ == "LoggingHandler" and kind.__module__.startswith("opentelemetry.") for kind in kinds)
