"""The view on a terminal: a log that scrolls, and below it rows that are drawn again in their place."""

from __future__ import annotations

import threading

import pytest

from chatstack import WiringError
from tests.workbench.live.events import Shown, edited, ended, on_screen, started, warned, weighed
from tests.workbench.live.screen import Screen, in_terminal


def test_the_log_stays_above_the_rows_and_the_rows_are_drawn_once() -> None:
    shown = Shown(terminal=True)
    with on_screen(shown) as screen:
        for number in range(40):
            shown.tell(started(), warned("code", f"number {number}"), weighed(number, 40), ended())
    *log, first, second = [line for line in screen.lines if line]
    assert [line for line in log if line.startswith("!")] == [f"! c-1  code: number {n}" for n in range(40)]
    assert len(log) == 80
    assert first == "c-1  ███████████████░   98%  39 of 40 tokens  turn 40, round 1"
    assert second == "  answered, 1.2 s  40 warnings"
    assert screen.has_cursor


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_where_plain_text_is_asked_for_nothing_moves(environment: dict[str, str]) -> None:
    shown = Shown(terminal=True, environment=environment)
    with shown.view:
        shown.tell(started(), warned("code", "message"), weighed(1, 2), ended())
    assert not shown.view.moves
    assert "\x1b" not in shown.text
    assert "\r" not in shown.text
    assert len(shown.lines) == 3


def test_colour_says_nothing_that_the_words_do_not() -> None:
    events = [started(), warned("code", "message"), edited("truncate", 9, 5), weighed(99, 100), ended()]
    shown, plain = Shown(terminal=True), Shown()
    with on_screen(shown) as screen:
        shown.tell(*events)
    with plain.view:
        plain.tell(*events)
    assert screen.colours
    assert [line for line in screen.lines if line][:3] == plain.text.splitlines()[:3]


def test_the_rows_leave_the_log_its_place_when_there_are_more_than_fit() -> None:
    shown = Shown(height=7, terminal=True)
    with on_screen(shown) as screen:
        for number in range(10):
            shown.tell(started(f"c-{number}"), warned("code", f"number {number}", f"c-{number}"))
    lines = [line for line in screen.lines if line]
    assert sum(line.startswith("!") for line in lines) == 10
    assert lines[-1] == "and 8 more conversations, 8 at work"
    assert len(lines) == 10 + 5  # two rows of two lines, and the others


def test_what_comes_after_its_end_is_still_told_and_plainly() -> None:
    shown = Shown(terminal=True)
    with shown.view:
        pass
    before = len(shown.text)
    shown.tell(started(), weighed(1, 2), ended())
    assert shown.text[before:].splitlines()[0].startswith("- c-1  turn 1: ")
    assert "\x1b" not in shown.text[before:]


def test_an_error_inside_gives_the_terminal_back() -> None:
    shown = Shown(terminal=True)
    with pytest.raises(KeyError), on_screen(shown):
        raise KeyError
    assert shown.text.rindex("\x1b[?25h") > shown.text.rindex("\x1b[?25l")
    with shown.view, pytest.raises(WiringError, match="shown already"), shown.view:
        pass


def test_what_the_program_writes_to_a_file_meanwhile_gets_there(capsys: pytest.CaptureFixture[str]) -> None:
    shown = Shown(terminal=True)
    with shown.view:
        print("an answer")
    assert capsys.readouterr().out == "an answer\n"
    assert "an answer" not in shown.text


@pytest.mark.slow
def test_what_the_program_writes_to_the_terminal_meanwhile_scrolls_with_the_log() -> None:
    program = (
        "import time; from tests.workbench.live.events import *\n"
        "with LiveView() as view:\n"
        "    view(started()); view(weighed(1, 2)); time.sleep(0.5); print('an answer')\n"
        "    view(warned('code', 'message')); view(ended())\n"
    )
    screen = Screen(60, 10)
    code, _ = in_terminal(["-c", program], screen)
    assert code == 0
    lines = [line for line in screen.lines if line]
    assert lines[:2] == ["an answer", "! c-1  code: message"]
    assert [line.split()[0] for line in lines[2:]] == ["-", "written,", "c-1", "answered,"]
    assert screen.has_cursor


def test_a_note_of_the_programs_own_stands_in_the_log() -> None:
    shown = Shown(20, terminal=True)
    with on_screen(shown) as screen:
        shown.tell(warned("code", "1"))
        shown.view.note("> What is \x1b[31mthe weather in Dubai?")
        shown.tell(warned("code", "2"))
    assert screen.lines[:4] == ["! c-1  code: 1", "> What is the", "  weather in Dubai?", "! c-1  code: 2"]
    assert "31" not in screen.colours


@pytest.mark.slow
def test_many_threads_may_tell_it_at_once_while_it_is_drawn() -> None:
    shown = Shown(terminal=True)

    def tell(thread: int) -> None:
        for number in range(50):
            shown.tell(started(f"c-{thread}"), warned(f"code-{thread}", str(number), f"c-{thread}"))

    threads = [threading.Thread(target=tell, args=(number,)) for number in range(8)]
    with on_screen(shown) as screen:
        for each in threads:
            each.start()
        for each in threads:
            each.join(timeout=300)
    for thread in range(8):
        mine = [line.split()[-1] for line in screen.lines if f"code-{thread}:" in line]
        assert mine == [str(number) for number in range(50)]
