"""The rows: where each conversation stands, in 80 columns and in 40, and in ASCII."""

from __future__ import annotations

import math
import tracemalloc

import pytest

from chatstack.telemetry.events import ProgressEvent
from chatstack.workbench.live.conversations import COUNTED, REMEMBERED, Conversations
from tests.workbench.live.events import Shown, edited, ended, event, started, warned, weighed, widest

CALL = event("model_call_started", "gpt-5-mini")
CALLED = event("model_call_ended", "gpt-5-mini", numbers={"input_tokens": 936, "output_tokens": 20, "seconds": 1.0})


def rows(*events: ProgressEvent, width: int = 80, encoding: str = "utf-8") -> list[str]:
    shown = Shown(width, encoding=encoding)
    shown.tell(*events)
    return shown.rows


def test_a_row_tells_the_window_the_round_what_is_awaited_and_what_was_edited() -> None:
    assert rows(
        started(),
        edited("clear_tool_results", 1_500, 1_000, messages="9 -> 9", cleared=3),
        weighed(936, 1_800, round=1),
        warned("context_window_near_limit", "near"),
        event("model_call_started", "gpt-5-mini", round=1),
    ) == [
        "c-1  ████████░░░░░░░░   52%  936 of 1,800 tokens  turn 1, round 2",
        "  model gpt-5-mini, T  cleared 1x  -500 tokens  1 warning",
    ]


def test_in_40_columns_it_goes_on_below() -> None:
    assert rows(
        started(),
        edited("clear_tool_results", 1_500, 1_000, messages="9 -> 9", cleared=3),
        edited("summarize", 1_000, 500, messages="9 -> 4"),
        weighed(936, 1_800),
        warned("context_window_near_limit", "near"),
        CALL,
        width=40,
    ) == [
        "c-1  ████████░░░░░░░░   52%",
        "  936 of 1,800 tokens  turn 1, round 1",
        "  model gpt-5-mini, T  cleared 1x",
        "  folded 1x  -1,000 tokens  1 warning",
    ]


def test_a_terminal_that_knows_only_ascii_gets_a_bar_of_ascii() -> None:
    assert rows(started(), weighed(936, 1_800), encoding="ascii")[0].startswith("c-1  ########........   52%  ")


@pytest.mark.parametrize(
    ("tokens", "bar", "share"), [(0, "", "0%"), (1, "#", "1%"), (99, "#" * 15, "99%"), (100, "#" * 16, "100%")]
)
def test_the_bar_is_full_only_if_the_window_is_and_empty_only_if_it_is(tokens: int, bar: str, share: str) -> None:
    first, *_ = rows(weighed(tokens, 100), encoding="ascii")
    assert first.split()[1:3] == [bar.ljust(16, "."), share]


def test_what_is_above_the_limit_is_told_in_numbers() -> None:
    first, *_ = rows(weighed(250, 100), encoding="ascii")
    assert first == "c-1  ################  250%  250 of 100 tokens"


def test_after_an_edit_the_bar_is_that_of_what_is_sent() -> None:
    first, *_ = rows(weighed(1_000, 1_000), edited("truncate", 1_000, 500), encoding="ascii")
    assert first == "c-1  ########........   50%  500 of 1,000 tokens"


def test_without_a_guard_there_are_the_reported_tokens_and_no_bar() -> None:
    assert rows(started(), edited("summarize", 2_000, 900), CALL, CALLED) == [
        "c-1  936 tokens read  turn 1, round 1",
        "  at work  folded 1x  -1,100 tokens",
    ]


def test_before_anything_is_known_there_is_neither() -> None:
    assert rows(started()) == ["c-1  turn 1, round 1", "  at work"]


@pytest.mark.parametrize(
    ("messages", "cleared", "name", "word"),
    [
        ("9 -> 9", 2, "clear_tool_results", "cleared"),
        ("9 -> 4", 0, "summarize", "folded"),
        ("9 -> 4", 0, "truncate", "dropped"),
        ("9 -> 4", 2, "clear_then_drop", "dropped"),
        ("9 -> 9", 0, "somebody's own", "edited"),
    ],
)
def test_edits_are_told_apart_by_what_they_did(messages: str, cleared: int, name: str, word: str) -> None:
    twice = [edited(name, 100, 60, messages=messages, cleared=cleared)] * 2
    assert f"{word} 2x  -80 tokens" in rows(*twice)[1]


def test_of_parallel_tools_the_last_one_is_named_and_the_others_counted() -> None:
    shown = Shown()
    shown.tell(started(), *(event("tool_started", name) for name in ("first", "second", "third")))
    assert "tool third and 2 more, T" in shown.rows[1]
    shown.tell(event("tool_ended", "third"))
    assert "tool second and 1 more, T" in shown.rows[1]
    shown.tell(event("tool_ended", "second"), event("tool_ended", "first"))
    assert shown.rows[1] == "  at work"


def test_while_a_summary_is_written_it_is_the_summary_that_is_awaited() -> None:
    shown = Shown()
    shown.tell(started(), event("edit_started", "summarize"), CALL)
    assert "  edit summarize and 1 more, T" in shown.rows[1]
    shown.tell(CALLED, event("edit_ended", "summarize"))
    assert shown.rows[1] == "  at work"


def test_a_turn_that_ended_says_how_and_leaves_nothing_awaited() -> None:
    assert rows(started(), CALL, ended())[1] == "  answered, T"
    assert rows(started(), CALL, ended(error="RateLimitError"))[1] == "  failed: RateLimitError"
    assert rows(started(), CALL, ended(error="cancelled"))[1] == "  cancelled"


def test_two_turns_of_one_conversation_at_once_are_both_awaited() -> None:
    assert rows(started(), started())[1] == "  2 turns at work"
    assert rows(started(), started(), ended())[1] == "  at work"
    assert rows(started(), started(), ended(), ended())[1] == "  answered, T"


def test_a_turn_that_ended_without_a_start_does_not_hide_the_next() -> None:
    assert rows(ended(), ended(), started())[1] == "  at work"


def test_one_without_an_id_that_was_met_in_the_middle_gets_its_name_with_the_next_turn() -> None:
    assert rows(weighed(1, 2, None))[0].startswith("?  ")
    assert rows(weighed(1, 2, None), started(None))[0].startswith("chat  ")


def test_those_without_an_id_are_called_by_the_agents_name_and_share_a_row() -> None:
    assert rows(started(None), started(None)) == ["chat  turn 2, round 1", "  2 turns at work"]


def test_conversations_are_side_by_side_in_the_order_in_which_they_began() -> None:
    assert rows(started("a"), started("longer"), weighed(5, 10, "longer"), weighed(10, 10, "a"), encoding="ascii") == [
        "a       ################  100%  10 of 10 tokens  turn 1, round 1",
        "  at work",
        "longer  ########........   50%  5 of 10 tokens  turn 1, round 1",
        "  at work",
    ]


def test_the_latest_few_are_shown_and_the_others_counted() -> None:
    shown = Shown(most=2)
    shown.tell(*(started(f"c-{number}") for number in range(5)), ended("c-0"))
    assert shown.rows == [
        "c-3  turn 1, round 1",
        "  at work",
        "c-4  turn 1, round 1",
        "  at work",
        "and 3 more conversations, 2 at work",
    ]
    shown.tell(started("c-0"))
    assert [line.split()[0] for line in shown.rows] == ["c-4", "at", "c-0", "at", "and"]


def test_those_at_work_are_shown_before_those_that_have_ended() -> None:
    shown = Shown(most=2)
    shown.tell(*(started(f"c-{number}") for number in range(4)), ended("c-3"), ended("c-1"))
    assert [line.split()[0] for line in shown.rows if line.startswith("c-")] == ["c-0", "c-2"]
    assert shown.rows[-1] == "and 2 more conversations, 0 at work"
    shown.tell(ended("c-0"))
    assert [line.split()[0] for line in shown.rows if line.startswith("c-")] == ["c-2", "c-3"]


def test_in_a_low_terminal_fewer_are_shown_and_one_always() -> None:
    for height, expected in ((24, 4), (9, 3), (7, 2), (2, 1)):
        shown = Shown(height=height)
        shown.tell(*(started(f"c-{number}") for number in range(4)))
        assert sum(line.startswith("c-") for line in shown.rows) == expected
        assert len(shown.rows) <= max(height - 2, 3)


def test_thousands_of_conversations_are_counted_and_what_is_kept_of_them_is_bounded() -> None:
    shown = Shown()
    for number in range(5_000):
        shown.tell(started(f"c-{number}"), weighed(number, 5_000, f"c-{number}"))
    assert shown.rows[-1].startswith("and 4,996 more conversations, ")
    assert len(shown.rows) == 9
    shown.tell(started("c-0"))  # one that was forgotten is met anew
    assert shown.rows[-3:-1] == ["c-0     turn 1, round 1", "  at work"]


def test_a_conversation_that_was_evicted_and_comes_back_is_counted_once() -> None:
    shown = Shown()
    for _ in range(3):
        shown.tell(*(started(f"c-{number}") for number in range(600)))
    assert shown.rows[-1].startswith("and 596 more conversations, ")


@pytest.mark.slow
def test_what_is_kept_of_evicted_conversations_is_bounded() -> None:
    gone = Conversations()
    for number in range(REMEMBERED + COUNTED):
        gone.take(started(f"c-{number}"))
    tracemalloc.start()
    try:
        for number in range(REMEMBERED + COUNTED, REMEMBERED + COUNTED + 20_000):
            gone.take(started(f"c-{number}"))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < REMEMBERED * 2_000 + COUNTED * 100
    assert gone.others(()) == (REMEMBERED + COUNTED + 20_000, REMEMBERED)


@pytest.mark.parametrize("width", [1, 5, 12, 20, 40, 80, 200])
def test_no_row_is_wider_than_the_terminal(width: int) -> None:
    found = rows(started("x" * 300), weighed(10**12, 10**12, "x" * 300), CALL, warned("c", "m"), width=width)
    assert 0 < widest(found) <= width


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "  model gpt-5-mini-…"), ("ascii", "  model gpt-5-min...")])
def test_what_fits_on_no_line_is_cut_with_dots(encoding: str, shown: str) -> None:
    call = event("model_call_started", "gpt-5-mini-of-long-ago")
    assert rows(started(), call, width=20, encoding=encoding)[-1] == shown


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -5])
def test_numbers_that_are_none_count_as_nothing(odd: float) -> None:
    numbers = {name: odd for name in ("input_tokens", "window_tokens", "tokens_before", "tokens_after", "seconds")}
    for kind in ("context_weighed", "edit", "model_call_ended", "turn_ended"):
        assert "c-1" in rows(event(kind, "m", numbers=numbers))[0]
