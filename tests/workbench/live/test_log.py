"""The log: a line for every edit, warning, failure and ended turn, and what comes from outside shows as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatstack.telemetry.events import ProgressEvent, ProgressKind
from tests.workbench.live.events import Shown, edited, ended, event, started, warned, weighed, widest


def logged(*events: ProgressEvent, width: int = 80, encoding: str = "utf-8") -> list[str]:
    shown = Shown(width, encoding=encoding)
    shown.tell(*events)
    return shown.lines


def test_edits_say_what_was_done_and_what_it_left() -> None:
    assert logged(
        edited("clear_tool_results", 1_010, 735, messages="9 -> 9", cleared=5),
        edited("summarize", 1_410, 820, messages="43 -> 15"),
        edited("truncate", 1_900, 1_200, messages="9 -> 4"),
    ) == [
        "* c-1  cleared: 1,010 -> 735 tokens, 5 results cleared (clear_tool_results)",
        "* c-1  folded: 1,410 -> 820 tokens, 43 -> 15 messages (summarize)",
        "* c-1  dropped: 1,900 -> 1,200 tokens, 9 -> 4 messages (truncate)",
    ]


def test_warnings_say_their_code_and_their_message() -> None:
    near = warned("context_window_near_limit", "76% of the limit: about 1,361 of 1,800 tokens")
    assert logged(near) == ["! c-1  context_window_near_limit: 76% of the limit: about 1,361 of 1,800 tokens"]
    assert logged(near, width=40) == [
        "! c-1  context_window_near_limit: 76% of",
        "  the limit: about 1,361 of 1,800 tokens",
    ]


@pytest.mark.parametrize("width", range(20, 70))
def test_what_does_not_fit_goes_on_indented_and_no_word_is_lost(width: int) -> None:
    message = " ".join(f"word{number}" for number in range(40))
    first, *more = logged(warned("code", message), width=width)
    assert widest([first, *more]) <= width
    assert all(line.startswith("  word") for line in more)
    assert " ".join(" ".join([first, *more]).split()) == f"! c-1 code: {message}"


def test_a_turn_that_ended_says_what_it_took_with_its_bar_below() -> None:
    assert logged(started(), event("tool_started", "look"), weighed(9, 10), ended(), encoding="ascii") == [
        "- c-1  turn 1: 3 model calls, 1 tool, 950 tokens read, 41 written, T",
        "  ##############..   90%  9 of 10 tokens",
    ]
    assert logged(started(), ended())[1:] == []


def test_a_loop_counts_its_iterations_and_says_why_it_ended() -> None:
    numbers = {"iterations": 4, "seconds": 2.0, "warnings": 0}
    assert logged(
        started(),
        event("iteration_started", "review"),
        event("iteration_ended", "review"),
        event("turn_ended", "review", message="completed", numbers=numbers),
    ) == ["- c-1  turn 1: 4 iterations, 0 tools, T, completed"]


def test_tools_are_counted_turn_by_turn() -> None:
    turn = (started(), event("tool_started", "look"), event("tool_ended", "look"), ended())
    assert [line.split(", ")[1] for line in logged(*turn, *turn)] == ["1 tool", "1 tool"]


def test_failures_are_told_and_cancelling_is_not_called_one() -> None:
    assert logged(
        started(),
        event("tool_ended", "look", error="TypeError"),
        event("model_call_ended", "gpt-5-mini", error="RateLimitError"),
        event("tool_ended", "look", error="cancelled"),
        ended(error="RateLimitError"),
        started(),
        ended(error="cancelled"),
    ) == [
        "x c-1  tool look failed: TypeError",
        "x c-1  model gpt-5-mini failed: RateLimitError",
        "x c-1  turn 1 failed: RateLimitError, T",
        "x c-1  turn 2 cancelled, T",
    ]


def test_what_goes_well_on_the_way_is_not_told() -> None:
    assert logged(started(), weighed(1, 2), event("model_call_ended", "m"), event("tool_ended", "look")) == []


def test_events_out_of_nowhere_are_told_with_what_is_known() -> None:
    assert logged(event("turn_ended")) == ["- c-1  turn: 0 tools, T"]
    assert logged(event("turn_ended", "", None, error="KeyError"))[0].startswith("x ?  turn failed: KeyError")
    assert logged(event("edit", "mine")) == ["* c-1  edited: the same size (mine)"]


HOSTILE = {
    "codes": "\x1b[2J\x1b]0;title\x07\x1b[31mred",
    "lines": "a\nb\rc\x85d\u2028e",
    "markup": "[bold red]x[/bold red] [/] :smile: [link=http://x]y[/link]",
    "direction": "\u202egnp.exe\u202c",
    "unseen": "\x00\x08\u200b\ufeff",
    "long": "x" * 100_000,
    "wide": "日本語" * 100,
    "combining": "e" + "\u0301" * 5_000,
    "half": "\udc80",
}


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize("width", [40, 80])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_text_from_outside_shows_as_text_and_within_the_width(text: str, width: int, encoding: str) -> None:
    shown = Shown(width, encoding=encoding)
    shown.tell(
        event("turn_started", text, text),
        event("model_call_started", text, text),
        event("warning", text, text, message=text),
        edited(text, 10, 5, text),
        event("tool_ended", text, text, error=text),
    )
    found = shown.lines + shown.rows
    assert all(letter.isprintable() for line in found for letter in line)
    assert widest(found) <= width
    assert len(found) < 60
    assert len("".join(found)) < 6_000


def test_markup_stands_there_as_it_came() -> None:
    assert logged(warned("code", HOSTILE["markup"]))[0].startswith(
        "! c-1  code: [bold red]x[/bold red] [/] :smile: [link"
    )


KINDS: list[ProgressKind] = [
    "turn_started",
    "turn_ended",
    "context_weighed",
    "model_call_started",
    "model_call_ended",
    "tool_started",
    "tool_ended",
    "iteration_started",
    "iteration_ended",
    "warning",
    "edit",
]
NAMES = ["tokens_before", "tokens_after", "messages_before", "messages_after", "input_tokens", "window_tokens"]
NUMBERS = st.dictionaries(
    st.sampled_from([*NAMES, "rounds", "seconds", "tool_results_cleared"]), st.integers(-5, 10**15) | st.floats()
)
EVENTS = st.lists(
    st.builds(
        ProgressEvent,
        kind=st.sampled_from(KINDS),
        name=st.text(max_size=60),
        at=st.floats(0, 1e10),
        conversation_id=st.none() | st.sampled_from("ab") | st.text(),
        round=st.integers(0, 10**6),
        message=st.text(),
        error=st.just("") | st.text(),
        numbers=NUMBERS,
    ),
    max_size=12,
)


@given(events=EVENTS, width=st.integers(20, 100))
def test_whatever_comes_in_whatever_order_it_is_shown_and_fits(events: list[ProgressEvent], width: int) -> None:
    shown = Shown(width)
    for each in events:
        shown.view(each)
        assert widest(shown.rows) <= width
    assert widest(shown.lines) <= width
    assert "\x1b" not in shown.text
