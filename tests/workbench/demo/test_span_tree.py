"""The tree of spans: what is marked, what is folded, and that it can be read without colour."""

from __future__ import annotations

import io

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, Status, StatusCode, TraceFlags
from rich.console import Console

from chatstack import semconv
from chatstack.workbench.demo.span_tree import SpanRecorder, span_tree


def lines(recorder: SpanRecorder, **options: object) -> list[str]:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(span_tree(recorder.spans(), **options))  # type: ignore[arg-type]
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def quiet_turn(recorder: SpanRecorder) -> None:
    tracer = recorder.telemetry.tracer
    with tracer.start_as_current_span("invoke_agent travel"), tracer.start_as_current_span("chat m"):
        pass


def warned_turn(recorder: SpanRecorder) -> None:
    telemetry = recorder.telemetry
    with telemetry.tracer.start_as_current_span("invoke_agent travel") as root:
        root.set_attributes({semconv.WARNING_COUNT: 1, semconv.EDIT_COUNT: 1})
        with telemetry.warning("context_window_exceeded", "about 1242 tokens, the limit is 1200", {}):
            sizes = {semconv.COMPACTION_MESSAGES_BEFORE: 41, semconv.COMPACTION_MESSAGES_AFTER: 25}
            telemetry.edit("truncate", "too long", sizes, tokens_before=1242, tokens_after=831)
        spent = {semconv.USAGE_INPUT: 1242, semconv.USAGE_OUTPUT: 7, semconv.CONVERSATION_COMPACTED: True}
        with telemetry.tracer.start_as_current_span("chat m", attributes=spent):
            pass


def test_a_warning_shows_its_code_and_its_message_and_what_was_done_about_it() -> None:
    recorder = SpanRecorder()
    warned_turn(recorder)
    shown = lines(recorder)
    at = next(number for number, line in enumerate(shown) if "context_guard" in line)
    assert shown[at].endswith("context_guard  ! WARNING context_window_exceeded")
    assert shown[at + 1].endswith("about 1242 tokens, the limit is 1200")
    assert shown[at + 2].endswith("compact_context truncate  * EDIT")
    assert shown[at + 3].endswith("1,242 -> 831 tokens, 41 -> 25 messages")
    assert shown[at + 2].index("compact_context") > shown[at].index("context_guard")


def test_an_edit_shows_only_what_it_changed_and_how_many_results_it_cleared() -> None:
    recorder = SpanRecorder()
    sizes = {semconv.COMPACTION_MESSAGES_BEFORE: 23, semconv.COMPACTION_MESSAGES_AFTER: 23}
    cleared = {**sizes, semconv.COMPACTION_RESULTS_CLEARED: 5}
    recorder.telemetry.edit("clear_tool_results", "too long", cleared, tokens_before=1010, tokens_after=735)
    assert [line.strip() for line in lines(recorder)[1:]] == [
        "└── compact_context clear_tool_results  * EDIT",
        "1,010 -> 735 tokens, 5 results cleared",
    ]


def test_what_a_summary_took_stands_below_its_edit() -> None:
    recorder = SpanRecorder()
    with (
        recorder.telemetry.working("summarize") as span,
        trace.use_span(span),
        recorder.telemetry.tracer.start_as_current_span("chat m"),
    ):
        pass
    edit, _, call = lines(recorder)[1:]
    assert edit.endswith("compact_context summarize  * EDIT")
    assert call.index("chat m") > edit.index("compact_context")


def test_warnings_and_edits_are_counted_on_the_turn() -> None:
    recorder = SpanRecorder()
    warned_turn(recorder)
    assert lines(recorder)[1].endswith("1 warning, 1 edit")


def test_a_model_call_shows_its_tokens_and_that_it_was_edited() -> None:
    recorder = SpanRecorder()
    warned_turn(recorder)
    assert lines(recorder)[-1].endswith("1,242 tokens in, 7 out, edited")


def test_quiet_turns_are_one_line_save_the_first() -> None:
    recorder = SpanRecorder()
    for turn in (quiet_turn, quiet_turn, warned_turn, quiet_turn):
        turn(recorder)
    shown = lines(recorder, titles=["Lima", "Oslo", "Cairo", "Seoul"], every_turn=False)
    assert [line.count("chat m") for line in shown].count(1) == 2
    folded = [line for line in shown if line.endswith("1 quiet span")]
    assert ["Oslo" in folded[0], "Seoul" in folded[1]] == [True, True]


def test_every_turn_can_be_shown() -> None:
    recorder = SpanRecorder()
    for turn in (quiet_turn, quiet_turn, warned_turn):
        turn(recorder)
    assert sum("chat m" in line for line in lines(recorder, every_turn=True)) == 3


def test_an_error_is_marked_and_never_folded() -> None:
    recorder = SpanRecorder()
    quiet_turn(recorder)
    tracer = recorder.telemetry.tracer
    with tracer.start_as_current_span("invoke_agent travel"), tracer.start_as_current_span("chat m") as call:
        call.set_attribute(semconv.ERROR_TYPE, "ContextOverflowError")
        call.set_status(Status(StatusCode.ERROR, "ContextOverflowError"))
    assert lines(recorder, every_turn=False)[-1].endswith("x ERROR ContextOverflowError")


def test_spans_stand_in_the_order_in_which_they_began() -> None:
    recorder = SpanRecorder()
    tracer = recorder.telemetry.tracer
    with tracer.start_as_current_span("root"):
        first, second = tracer.start_span("first"), tracer.start_span("second")
        second.end()
        first.end()
    shown = lines(recorder)[1:]
    assert ["root" in shown[0], "first" in shown[1], "second" in shown[2]] == [True, True, True]


def test_a_span_below_a_foreign_one_is_a_branch_of_its_own() -> None:
    recorder = SpanRecorder()
    foreign = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)))
    with trace.use_span(foreign):
        quiet_turn(recorder)
    assert "invoke_agent travel" in lines(recorder)[1]


def test_control_characters_in_names_do_not_reach_the_terminal() -> None:
    recorder = SpanRecorder()
    with recorder.telemetry.tracer.start_as_current_span("chat \x1b[2Jevil\x07"):
        pass
    assert "chat evil" in lines(recorder)[1]
    assert not any("\x1b" in line or "\x07" in line for line in lines(recorder))


def test_markup_in_names_is_shown_as_text() -> None:
    recorder = SpanRecorder()
    with recorder.telemetry.tracer.start_as_current_span("chat [bold]m[/bold]"):
        pass
    assert "chat [bold]m[/bold]" in lines(recorder)[1]


def test_without_spans_the_tree_says_why() -> None:
    assert "OTEL_SDK_DISABLED" in lines(SpanRecorder())[0]


def test_the_recorder_leaves_the_tracing_of_the_process_alone() -> None:
    before = trace.get_tracer_provider()
    quiet_turn(SpanRecorder())
    assert trace.get_tracer_provider() is before
