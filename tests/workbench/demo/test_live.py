"""``chatstack demo --live``: the conversation as a ``LiveView`` shows it, in a terminal and without one."""

from __future__ import annotations

import re

import pytest

from chatstack.workbench.demo.assistant import GUARD_TOKENS, QUESTIONS
from tests.workbench.demo.test_demo import KNOWN, chatstack, section
from tests.workbench.live.events import widest
from tests.workbench.live.screen import Screen, in_terminal

pytestmark = pytest.mark.slow

LIVE = "The conversation, live"
BRISKLY = (
    "import sys; from chatstack.workbench.demo import assistant; assistant.LIVE_SECONDS_PER_WORD = 0.012\n"
    "from chatstack.cli import main; sys.exit(main(['demo', '--live']))"
)
TURN = re.compile(r"- demo  turn \d+: \d model calls?, \d tools?, [\d,]+ tokens read, \d+ written, \d+\.\d s")


@pytest.fixture(scope="module")
def piped() -> str:
    done = chatstack("demo", "--live")
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_in_a_pipe_it_is_plain_lines_of_80_columns_with_a_bar_for_every_turn(piped: str) -> None:
    live = section(piped, LIVE, KNOWN)
    assert sum(TURN.fullmatch(line) is not None for line in live) == len(QUESTIONS)
    bars = [line for line in live if re.fullmatch(rf"  [█░]{{16}} +\d+%  [\d,]+ of {GUARD_TOKENS:,} tokens", line)]
    assert len(bars) == len(QUESTIONS)
    assert "\x1b" not in piped
    assert widest(piped.splitlines()) <= 80


def test_each_of_the_three_layers_is_seen_at_work(piped: str) -> None:
    live = section(piped, LIVE, KNOWN)
    assert sum(line.startswith("* demo  cleared: ") for line in live) >= 1
    assert sum(line.startswith("* demo  folded: ") for line in live) >= 2
    assert {line.split()[2] for line in live if line.startswith("!")} == {"context_window_near_limit:"}


def test_each_question_stands_above_what_comes_of_it(piped: str) -> None:
    live = section(piped, LIVE, KNOWN)
    asked = [line.removeprefix("> ") for line in live if line.startswith("> ")]
    assert asked == list(QUESTIONS)
    order = [line[0] for line in live if line[:1] in (">", "-")]
    assert order == [">", "-"] * len(QUESTIONS)


def test_the_rest_of_the_demo_is_as_it_is_without(piped: str) -> None:
    quiet = chatstack("demo").stdout

    def known(shown: str) -> list[str]:
        return section(shown, KNOWN, "The spans, as a dashboard gets them")

    assert known(piped) == known(quiet)


@pytest.mark.parametrize("columns", [80, 40])
def test_in_a_terminal_the_window_stays_below_the_log(columns: int) -> None:
    screen = Screen(columns, 24)
    code, text = in_terminal(["-c", BRISKLY], screen)
    assert code == 0
    assert screen.has_cursor
    live = section("\n".join(screen.lines), LIVE, KNOWN)
    assert sum(line.startswith("> ") for line in live) == len(QUESTIONS)
    assert sum(line.startswith("- demo") for line in live) == len(QUESTIONS)
    assert sum("█" in line for line in live) == 1
    end = live.index(next(line for line in live if "█" in line))
    assert "turn 13, round 1" in " ".join(live[end:])
    assert re.search(r"answered, \d+\.\d s +cleared \dx +folded \dx +-[\d,]+ tokens", " ".join(live[end:]))
    assert len(set(re.findall(r"█+", text))) >= 8  # it has moved
    assert "model stand-in, 0." in text
    paced = sum(float(seconds) for seconds in re.findall(r"(\d+\.\d) s$", "\n".join(live[:end]), re.MULTILINE))
    assert paced > 300 * 0.012  # more than so many pieces are sent, at the pace that is set above


def test_without_colour_a_terminal_gets_no_moving_rows() -> None:
    screen = Screen()
    code, text = in_terminal(["-m", "chatstack", "demo", "--live"], screen, NO_COLOR="1")
    assert code == 0
    live = text.split(LIVE)[1].split(KNOWN)[0]
    assert "\x1b[2K" not in text
    assert live.count("\r\n> ") == len(QUESTIONS)
