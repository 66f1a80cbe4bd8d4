"""Each warning is a line of the standard logging, with its fields; and never a second time where that is read by
OpenTelemetry."""

from __future__ import annotations

import asyncio
import logging
import logging.handlers
import subprocess
import sys
import types
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry._logs import LoggerProvider as APILoggerProvider
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider

from chatstack import ChatStack, ContextWindowGuard, FunctionInvoker, Message, Telemetry, ToolCall, tool
from chatstack.testing import ScriptedClient, TelemetryCapture

CODE = "context_window_exceeded"


def warn(telemetry: Telemetry) -> None:
    """One warning of a real stack: 13 tokens into a limit of 5."""
    stack = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=5, every_call=True)
    client = stack.build({Telemetry: telemetry}.get)
    asyncio.run(client.get_response("x" * 36, conversation_id="c-42"))


@pytest.fixture
def exported() -> Iterator[tuple[LoggerProvider, InMemoryLogRecordExporter]]:
    exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]
    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    yield provider, exporter
    provider.shutdown()


@contextmanager
def installed(handler: logging.Handler, name: str = "") -> Iterator[None]:
    logger = logging.getLogger(name or None)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def sdks(provider: APILoggerProvider | None, level: int = logging.NOTSET) -> LoggingHandler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return LoggingHandler(level, provider)


# The line


@pytest.mark.parametrize("telemetry", [Telemetry(), TelemetryCapture().telemetry], ids=["no SDK", "with one"])
def test_a_warning_is_a_line_with_its_fields(telemetry: Telemetry, caplog: pytest.LogCaptureFixture) -> None:
    warn(telemetry)
    (record,) = (each for each in caplog.records if each.name.startswith("chatstack"))
    assert (record.name, record.levelname) == ("chatstack", "WARNING")
    assert record.getMessage() == f"{CODE}: sent as it is at 260%: about 13 of 5 tokens"
    fields = {name: value for name, value in vars(record).items() if "." in name and name != "gen_ai.conversation.id"}
    assert fields == {
        "otel.event.name": "chatstack.warning",
        "chatstack.warning.code": CODE,
        "chatstack.guard.action": "warn",
        "chatstack.context.input_tokens": 13,
        "chatstack.context.window_tokens": 5,
        "chatstack.context.utilization": 2.6,
        "chatstack.context.threshold": 0.8,
        "chatstack.context.token_source": "estimated",
    }


def test_an_edit_is_no_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "chatstack"):
        Telemetry().edit("truncate", "cut", {}, tokens_before=9, tokens_after=4)
    assert caplog.records == []


def test_a_telemetry_can_be_told_not_to(caplog: pytest.LogCaptureFixture) -> None:
    warn(Telemetry(log_warnings=False))
    assert caplog.records == []


def test_the_standard_way_of_silencing_a_logger_does(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR, "chatstack"):
        warn(Telemetry())
    assert caplog.records == []


def test_a_filter_that_raises_fails_no_call() -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise ValueError("no")

    logger = logging.getLogger("chatstack")
    logger.addFilter(refuse)
    try:
        warn(Telemetry())
    finally:
        logger.removeFilter(refuse)


def test_without_any_setting_a_warning_is_seen_on_standard_error_and_the_library_installs_nothing() -> None:
    program = (
        "import asyncio, logging\n"
        "from chatstack import ChatStack, ContextWindowGuard\n"
        "from chatstack.testing import ScriptedClient\n"
        "client = ChatStack(ScriptedClient()).use(ContextWindowGuard, max_context_tokens=5).build()\n"
        "asyncio.run(client.get_response('x' * 36))\n"
        "assert not logging.getLogger('chatstack').handlers and not logging.getLogger().handlers\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == f"{CODE}: sent as it is at 260%: about 13 of 5 tokens\n"


# Never twice


def codes(exporter: InMemoryLogRecordExporter) -> list[object]:
    records = [each.log_record for each in exporter.get_finished_logs()]
    return [(each.attributes or {}).get("chatstack.warning.code") for each in records]


@pytest.mark.parametrize("name", ["", "chatstack"])
def test_where_opentelemetrys_handler_reads_the_lines_our_own_record_yields(
    exported: tuple[LoggerProvider, InMemoryLogRecordExporter], name: str
) -> None:
    provider, exporter = exported
    tracing = TracerProvider(shutdown_on_exit=False)
    with installed(sdks(provider), name):
        warn(Telemetry(logger_provider=provider, tracer_provider=tracing))
    (record,) = (each.log_record for each in exporter.get_finished_logs())
    assert (record.severity_text, (record.attributes or {})["chatstack.warning.code"]) == ("WARN", CODE)
    assert record.span_id  # still linked to its span


def test_the_handler_of_the_instrumentation_package_and_those_that_derive_from_it_are_known(
    exported: tuple[LoggerProvider, InMemoryLogRecordExporter],
) -> None:
    provider, exporter = exported
    told: list[logging.LogRecord] = []

    class LoggingHandler(logging.Handler):
        """As in opentelemetry.instrumentation.logging.handler, which needs no extra of ours."""

        __module__ = "opentelemetry.instrumentation.logging.handler"
        emit = told.append  # type: ignore[assignment]

    class Derived(LoggingHandler):
        __module__ = "theirs"

    for handler in (LoggingHandler(), Derived()):
        with installed(handler):
            warn(Telemetry(logger_provider=provider))
    assert (len(told), codes(exporter)) == (2, [])


LATER = """
import asyncio, logging, warnings
warnings.simplefilter("ignore")
from opentelemetry import _logs
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from chatstack import Telemetry

logging.getLogger().addHandler(LoggingHandler())
exporter, provider = InMemoryLogRecordExporter(), LoggerProvider()
provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
telemetry = Telemetry()
_logs.set_logger_provider(provider)
telemetry.warn("window_unknown", "who knows", {})
print(len(exporter.get_finished_logs()))
"""


def test_a_handler_that_was_there_before_the_sdk_was_configured_is_known_too() -> None:
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1\n"


def others(provider: LoggerProvider) -> dict[str, logging.Handler]:
    """Handlers by which nothing of ours reaches that provider."""
    elsewhere = LoggerProvider(shutdown_on_exit=False)
    named = sdks(provider)
    named.addFilter(logging.Filter("theirs"))
    found = {
        "not OpenTelemetry's": logging.NullHandler(),
        "for errors only": sdks(provider, logging.ERROR),
        "for other loggers": named,
        "for another provider": sdks(elsewhere),
    }
    foreign = types.new_class("LoggingHandler", (logging.NullHandler,))
    return {**found, "of the same name": foreign()}


@pytest.mark.parametrize(
    "which", ["not OpenTelemetry's", "for errors only", "for other loggers", "for another provider", "of the same name"]
)
def test_what_would_not_get_there_by_the_standard_logging_has_its_own_record(
    exported: tuple[LoggerProvider, InMemoryLogRecordExporter], which: str
) -> None:
    provider, exporter = exported
    with installed(others(provider)[which]):
        warn(Telemetry(logger_provider=provider))
    assert codes(exporter) == [CODE]


def test_where_lines_do_not_propagate_to_it_our_own_record_stays(
    exported: tuple[LoggerProvider, InMemoryLogRecordExporter], monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, exporter = exported
    monkeypatch.setattr(logging.getLogger("chatstack"), "propagate", False)
    with installed(sdks(provider)):
        warn(Telemetry(logger_provider=provider))
    assert codes(exporter) == [CODE]


def test_where_a_filter_by_name_stops_them_our_own_record_stays(
    exported: tuple[LoggerProvider, InMemoryLogRecordExporter],
) -> None:
    provider, exporter = exported
    logger, theirs = logging.getLogger("chatstack"), logging.Filter("theirs")
    logger.addFilter(theirs)
    try:
        with installed(sdks(provider)):
            warn(Telemetry(logger_provider=provider))
    finally:
        logger.removeFilter(theirs)
    assert codes(exporter) == [CODE]


@pytest.mark.parametrize("refused", [False, True], ids=["", "refused there"])
def test_a_handler_behind_one_that_hands_on_lines_is_known_too(
    exported: tuple[LoggerProvider, InMemoryLogRecordExporter], refused: bool
) -> None:
    provider, exporter = exported
    memory = logging.handlers.MemoryHandler(1, target=sdks(provider, logging.ERROR))
    if refused:
        memory.addFilter(logging.Filter("theirs"))
    with installed(memory):
        warn(Telemetry(logger_provider=provider))
    memory.close()
    assert codes(exporter) == [CODE]


@pytest.mark.parametrize("log_warnings", [True, False])
def test_a_logger_that_is_turned_off_does_not_take_the_record_along(
    exported: tuple[LoggerProvider, InMemoryLogRecordExporter], log_warnings: bool, caplog: pytest.LogCaptureFixture
) -> None:
    provider, exporter = exported
    with installed(sdks(provider)), caplog.at_level(logging.ERROR, "chatstack"):
        warn(Telemetry(logger_provider=provider, log_warnings=log_warnings))
    assert codes(exporter) == [CODE]


# What a tool raises


@tool
def look_up(name: str) -> str:
    """Look somebody up."""
    raise LookupError(f"{name} owes 5")


@pytest.mark.parametrize("is_written", [True, False])
def test_what_a_tool_raises_is_a_line_with_its_place_and_without_its_text(
    caplog: pytest.LogCaptureFixture, is_written: bool
) -> None:
    call = ToolCall("1", "look_up", '{"name": "Ada"}')
    stack = ChatStack(ScriptedClient([Message.assistant(call), "done"])).use(FunctionInvoker, tools=[look_up])
    caplog.set_level(logging.INFO, "chatstack")
    asyncio.run(stack.build({Telemetry: Telemetry(log_warnings=is_written)}.get).get_response("Who is Ada?"))
    lines = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "chatstack"]
    line = look_up.function.__code__.co_firstlineno + 3
    assert lines == ([("INFO", f"tool look_up raised LookupError at {__file__}:{line}")] if is_written else [])
    assert "owes" not in caplog.text
