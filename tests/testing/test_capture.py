"""The capture keeps what was said, in order, as plain data."""

from __future__ import annotations

import asyncio
import sys

import pytest
from opentelemetry.trace import INVALID_SPAN
from opentelemetry.util.types import AttributeValue

from chatstack import ChatStack, ContextWindowGuard, FunctionInvoker, ProgressReporter, Telemetry, ToolCall, WiringError
from chatstack.testing import MetricPoint, ScriptedClient, TelemetryCapture


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def captured() -> TelemetryCapture:
    capture = TelemetryCapture()
    model = ScriptedClient([[ToolCall("c", "weather", '{"city": "Dubai"}')], "fine"])
    client = (
        ChatStack(model)
        .use(ProgressReporter)
        .use(FunctionInvoker, tools=[weather])
        .use(ContextWindowGuard, max_context_tokens=5)
        .build(capture.resolve)
    )
    asyncio.run(client.get_response("how is the weather?", conversation_id="c"))
    return capture


def test_the_tree_shows_which_span_is_inside_which() -> None:
    children = [(name, list[object]()) for name in ("context_guard", "chat script", "execute_tool weather")]
    assert captured().tree() == [("invoke_agent chat", [*children, ("chat script", [])])]


def test_spans_are_found_by_name() -> None:
    capture = captured()
    assert len(capture.spans_named("chat script")) == 2
    assert capture.span("invoke_agent chat").parent_id is None
    guard = capture.span("context_guard")
    assert guard.parent_id == capture.span("invoke_agent chat").span_id
    assert (guard.kind, guard.status, guard.events[0][0]) == ("INTERNAL", "unset", "chatstack.warning")


@pytest.mark.parametrize("name", ["chat script", "nothing"])
def test_the_one_span_must_be_the_only_one(name: str) -> None:
    with pytest.raises(AssertionError, match="spans are called"):
        captured().span(name)


def test_warnings_come_as_codes_and_as_log_records() -> None:
    capture = captured()
    assert capture.warnings == ("context_window_exceeded",)
    (log,) = capture.logs
    assert (log.event_name, log.severity) == ("chatstack.warning", "WARN")
    span = capture.span("context_guard")
    assert (log.trace_id, log.span_id) == (span.trace_id, span.span_id)


def test_what_is_said_outside_of_any_span_has_no_ids() -> None:
    capture = TelemetryCapture()
    capture.telemetry.details({}, {}, INVALID_SPAN)
    (log,) = capture.logs
    assert (log.trace_id, log.span_id) == (0, 0)


def test_each_trace_has_its_own_records() -> None:
    capture = TelemetryCapture()
    for _ in range(2):
        capture.telemetry.warn("window_unknown", "nobody knows", {})
    assert [log.trace_id for log in capture.logs] == [span.trace_id for span in capture.spans]
    assert len({log.trace_id for log in capture.logs}) == 2


def test_metrics_come_with_labels_count_and_sum() -> None:
    capture = captured()
    assert capture.metric("chatstack.warnings") == (
        MetricPoint({"chatstack.warning.code": "context_window_exceeded"}, 0, 1),
    )
    (calls,) = capture.metric("gen_ai.client.operation.duration")
    assert calls.count == 2
    assert capture.metric("nothing") == ()


def test_labels_are_kept_as_they_were_given() -> None:
    capture = TelemetryCapture()
    labels: dict[str, AttributeValue] = {
        "server.port": 8080,
        "is_local": True,
        "share": 0.5,
        "names": ["a", "b"],
        "name": "a",
    }
    capture.telemetry.instruments.chat_duration.record(1.5, labels)
    assert capture.metric("gen_ai.client.operation.duration") == (MetricPoint({**labels, "names": ("a", "b")}, 1, 1.5),)


def test_after_clear_only_what_is_new_is_there() -> None:
    capture = captured()
    capture.clear()
    assert (capture.spans, capture.logs, capture.warnings, capture.metric("chatstack.warnings")) == ((), (), (), ())
    capture.telemetry.warn("window_unknown", "nobody knows", {})
    assert capture.warnings == ("window_unknown",)
    assert [point.total for point in capture.metric("chatstack.warnings")] == [1]


def test_spans_that_have_not_ended_are_told_apart() -> None:
    capture = TelemetryCapture()
    span = capture.telemetry.tracer.start_span("slow")
    assert (capture.open_spans, capture.spans) == (("slow",), ())
    span.end()
    assert (capture.open_spans, [each.name for each in capture.spans]) == ((), ["slow"])


def test_everything_that_was_said_can_be_searched() -> None:
    said = captured().said()
    assert "context_window_exceeded" in said
    assert "execute_tool weather" in said
    assert "sunny" not in said


def test_the_resolver_has_telemetry_and_nothing_else() -> None:
    capture = TelemetryCapture()
    assert capture.resolve(Telemetry) is capture.telemetry
    with pytest.raises(LookupError) as missing:
        capture.resolve(dict)
    assert missing.value.args == (dict,)


def test_two_captures_do_not_see_one_another() -> None:
    first, second = captured(), TelemetryCapture()
    assert second.spans == ()
    assert second.warnings == ()
    assert first.warnings == ("context_window_exceeded",)


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(WiringError, match=r"pip install 'chatstack-core\[otel\]'"):
        TelemetryCapture()
