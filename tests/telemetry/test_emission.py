"""One emission point: each fact said once, seen as span, event, log record, metric, roll-up and progress event."""

from __future__ import annotations

import asyncio
import typing

import pytest
from opentelemetry.trace import INVALID_SPAN

from chatstack import ContextMemory, ContextWindowGuard, Message, ProgressEvent, Telemetry, semconv
from chatstack.context.requests.services import ContextServices
from chatstack.errors import ServerError
from chatstack.semconv import WarningCode
from chatstack.telemetry.spans import error_type
from chatstack.telemetry.turns import Turn, attached, with_turn
from chatstack.testing import ScriptedClient, TelemetryCapture

CODES: tuple[WarningCode, ...] = typing.get_args(WarningCode)


def capture_with(**settings: object) -> TelemetryCapture:
    capture = TelemetryCapture()
    for name, value in settings.items():
        setattr(capture.telemetry, name, value)
    return capture


# Warnings


@pytest.mark.parametrize("code", CODES)
def test_a_warning_is_a_span_an_event_a_log_record_and_a_count(code: WarningCode) -> None:
    capture = TelemetryCapture()
    capture.telemetry.warn(code, "look at this", {"chatstack.context.input_tokens": 85})

    span = capture.span("context_guard")
    assert span.attributes["chatstack.severity"] == "WARN"
    assert span.attributes["chatstack.warning.code"] == code
    assert span.attributes["chatstack.warning.message"] == "look at this"
    assert span.attributes["chatstack.context.input_tokens"] == 85
    assert (span.status, span.kind) == ("unset", "INTERNAL")

    ((name, attributes),) = span.events
    assert name == "chatstack.warning"
    assert dict(attributes) == {"chatstack.warning.code": code, "chatstack.warning.message": "look at this"}

    (log,) = capture.logs
    assert (log.event_name, log.severity, log.body) == ("chatstack.warning", "WARN", "look at this")
    assert dict(log.attributes) == {"chatstack.warning.code": code, "chatstack.context.input_tokens": 85}
    assert log.span_id == span.span_id

    (point,) = capture.metric("chatstack.warnings")
    assert (dict(point.labels), point.total) == ({"chatstack.warning.code": code}, 1)


def test_the_codes_are_those_that_dashboards_were_told_of() -> None:
    assert set(CODES) <= {
        "context_window_near_limit",
        "context_window_exceeded",
        "summarizer_failed",
        "token_count_estimated",
        "iteration_limit_reached",
        "tool_loop_limit_reached",
        "tool_result_shortened",
        "tool_result_unwritable",
        "context_irreducible",
        "messages_repaired",
        "window_unknown",
        "repeated_tool_call",
        "prefix_unstable",
        "edit_ineffective",
        "progress_dropped",
        "plan_rejected",
        "store_unavailable",
        "layer_order",
        "context_layers_bypassed",
        "usage_implausible",
        "cache_missed",
    }


def test_what_dashboards_colour_by_is_on_the_span() -> None:
    capture = TelemetryCapture()
    capture.telemetry.warn("plan_rejected", "no", {}, span_name="compact_context truncate")
    capture.telemetry.warn("window_unknown", "who knows", {})
    chain, guard = capture.spans
    assert chain.attributes["openinference.span.kind"] == "CHAIN"
    assert guard.attributes["openinference.span.kind"] == "GUARDRAIL"
    assert guard.attributes["output.value"] == "WARN who knows (window_unknown)"
    assert guard.attributes["langfuse.observation.level"] == "WARNING"
    assert guard.attributes["langfuse.observation.status_message"] == "who knows"
    assert guard.attributes["logfire.level_num"] == 13


@pytest.mark.parametrize(
    ("hints", "prefixes"),
    [
        (frozenset(), set()),
        (frozenset({"openinference"}), {"openinference", "output"}),
        (frozenset({"langfuse"}), {"langfuse"}),
        (frozenset({"logfire"}), {"logfire"}),
    ],
)
def test_each_dashboards_hints_can_be_left_out(hints: frozenset[str], prefixes: set[str]) -> None:
    capture = capture_with(display_hints=hints)
    capture.telemetry.warn("window_unknown", "who knows", {})
    names = {name.split(".")[0] for name in capture.span("context_guard").attributes}
    assert names == {"chatstack", *prefixes}


def test_span_events_can_be_left_out() -> None:
    capture = capture_with(span_events=False)
    capture.telemetry.warn("window_unknown", "who knows", {})
    assert capture.span("context_guard").events == ()
    assert capture.warnings == ("window_unknown",)


def test_warned_spans_can_be_made_red() -> None:
    capture = capture_with(warning_status="error")
    capture.telemetry.warn("window_unknown", "who knows", {})
    span = capture.span("context_guard")
    assert (span.status, span.status_text) == ("error", "window_unknown")
    assert span.attributes["error.type"] == "window_unknown"


def test_what_was_rejected_is_an_error_in_any_case() -> None:
    capture = TelemetryCapture()
    capture.telemetry.warn("context_irreducible", "no", {}, error="ContextOverflowError")
    span = capture.span("context_guard")
    assert (span.status, span.attributes["error.type"]) == ("error", "ContextOverflowError")


def test_what_is_done_about_a_warning_is_inside_its_span() -> None:
    capture = TelemetryCapture()
    with capture.telemetry.warning("context_window_exceeded", "too much", {}):
        capture.telemetry.edit("truncate", "pruned", {}, tokens_before=9, tokens_after=4)
    assert capture.tree() == [("context_guard", [("compact_context truncate", [])])]


def test_an_error_while_something_is_done_about_it_leaves_no_text_on_the_span() -> None:
    capture = TelemetryCapture()
    with (
        pytest.raises(ValueError, match="hunter2"),
        capture.telemetry.warning("context_window_exceeded", "too much", {}),
    ):
        raise ValueError("hunter2")
    span = capture.span("context_guard")
    assert "hunter2" not in f"{dict(span.attributes)} {span.events} {span.status_text}"


# Edits


def test_an_edit_is_information_and_counts_what_it_removed() -> None:
    capture = TelemetryCapture()
    capture.telemetry.edit(
        "truncate", "9 became 4", {"chatstack.compaction.reason": "too long"}, tokens_before=9, tokens_after=4
    )
    assert dict(capture.span("compact_context truncate").attributes) == {
        "chatstack.compaction.strategy": "truncate",
        "chatstack.compaction.reason": "too long",
        "chatstack.compaction.tokens_before": 9,
        "chatstack.compaction.tokens_after": 4,
        "chatstack.severity": "INFO",
        "openinference.span.kind": "CHAIN",
        "output.value": "edited: 9 became 4",
    }
    assert capture.warnings == ()
    (point,) = capture.metric("chatstack.compaction.tokens_removed")
    assert (dict(point.labels), point.total) == ({"chatstack.compaction.strategy": "truncate"}, 5)


def test_an_edit_that_made_it_larger_removes_nothing() -> None:
    capture = TelemetryCapture()
    capture.telemetry.edit("custom", "grew", {}, tokens_before=4, tokens_after=9)
    assert sum(point.total for point in capture.metric("chatstack.compaction.tokens_removed")) == 0


# Turns


def test_warnings_and_edits_roll_up_to_the_root_and_reach_the_listener() -> None:
    capture, heard = TelemetryCapture(), list[ProgressEvent]()
    root = capture.telemetry.tracer.start_span("invoke_agent chat")
    turn = Turn(root, "c-42", heard.append)
    with attached(with_turn(turn, capture_context())):
        capture.telemetry.warn("context_window_near_limit", "near", {"chatstack.context.input_tokens": 85})
        capture.telemetry.warn("context_window_near_limit", "near", {})
        capture.telemetry.warn("plan_rejected", "no", {}, error="plan_rejected")
        capture.telemetry.edit(
            "truncate", "cut", {semconv.COMPACTION_MESSAGES_BEFORE: 3}, tokens_before=9, tokens_after=4
        )
    root.end()
    attributes = capture.span("invoke_agent chat").attributes
    assert attributes["chatstack.warnings"] == ("context_window_near_limit", "plan_rejected")
    assert attributes["chatstack.warning.count"] == 3
    assert attributes["chatstack.edit.count"] == 1
    assert [(event.kind, event.name, event.message, event.error) for event in heard] == [
        ("warning", "context_window_near_limit", "near", ""),
        ("warning", "context_window_near_limit", "near", ""),
        ("warning", "plan_rejected", "no", "plan_rejected"),
        ("edit", "truncate", "cut", ""),
    ]
    assert heard[0].numbers == {"input_tokens": 85}
    assert heard[3].numbers == {"tokens_before": 9, "tokens_after": 4, "messages_before": 3}
    assert {event.conversation_id for event in heard} == {"c-42"}


def capture_context() -> typing.Any:
    from opentelemetry import context

    return context.get_current()


def test_a_foreign_span_is_never_rolled_up_to() -> None:
    capture = TelemetryCapture()
    with capture.telemetry.tracer.start_as_current_span("a web request"):
        capture.telemetry.warn("window_unknown", "who knows", {})
    assert dict(capture.span("a web request").attributes) == {}
    assert capture.tree() == [("a web request", [("context_guard", [])])]


def test_without_an_sdk_nothing_breaks() -> None:
    telemetry = Telemetry()
    telemetry.warn("window_unknown", "who knows", {})
    telemetry.edit("truncate", "cut", {}, tokens_before=9, tokens_after=4)
    with telemetry.warning("window_unknown", "who knows", {}) as span:
        assert not span.is_recording()
    assert telemetry.is_silent
    assert not TelemetryCapture().telemetry.is_silent


# What ended it


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (None, ""),
        (ServerError("no"), "ServerError"),
        (ValueError("hunter2"), "ValueError"),
        (asyncio.CancelledError(), "cancelled"),
        (GeneratorExit(), "cancelled"),
        (KeyboardInterrupt(), "cancelled"),
    ],
)
def test_the_type_of_an_error_is_a_name_and_a_stop_is_cancelled(error: BaseException | None, name: str) -> None:
    assert error_type(error) == name


def test_the_turn_of_an_invalid_span_takes_warnings_without_harm() -> None:
    turn = Turn(INVALID_SPAN, None)
    turn.warned("window_unknown", "who knows")
    turn.edited("truncate", "9 -> 4 tokens")
    assert (turn.warning_count, turn.edit_count) == (1, 1)
    assert turn.story == "WARN who knows (window_unknown); 9 -> 4 tokens (truncate)"


def test_conversations_that_a_full_memory_lets_go_of_are_counted() -> None:
    capture = TelemetryCapture()
    guard = ContextWindowGuard(
        ScriptedClient(),
        max_context_tokens=1_000,
        services=ContextServices(memory=ContextMemory(max_messages=2), telemetry=capture.telemetry),
    )

    async def all_of_them() -> None:
        for number in range(5):
            await guard.get_response([Message.user(f"hello {number}")])

    asyncio.run(all_of_them())
    (point,) = capture.metric("chatstack.memory.evicted")
    assert (dict(point.labels), point.total) == ({}, 3)
