"""Outside text shows as what it is, and the console takes text as text."""

from __future__ import annotations

import sys

import pytest

from chatstack.cli.terminal import make_console, printable


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("NO_COLOR", "1")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, even ünïcödé 日本語 👩‍🚀", "plain, even ünïcödé 日本語 👩‍🚀"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x9b31mred", "red"),
        ("\x1b]0;new title\x07text", "text"),
        ("\x1b]8;;https://example.test\x1b\\click\x1b]8;;\x1b\\", "click"),
        ("\x9d52;c;cGFzdGU=\x9ctext", "text"),
        ("\x1bP1$r\x1b\\\x1b_payload\x1b\\text", "text"),
        ("\x1bcreset", "reset"),
        ("\x1b]52;c;never ends", "52;c;never ends"),
        ("\x9d52;c;never \x9bends\x9d\x9b31m, either", "52;c;never nds, either"),
        ("\x9dno end\x1b]0;title\x07text", "no endtext"),
        ("\x1b\x1b[31m[31mtext", "[31mtext"),
        ("over\rwritten\nline\ttab", "over written line tab"),
        ("a\x08\x7f\x00b", "ab"),
        ("\u202egnp.exe\u202c \u2067x\u2069\u200f", "gnp.exe x"),
        ("in\u200bvis\U000e0041ible\ufeff", "invisible"),
        ("half \udc80", "half \ufffd"),
    ],
)
def test_outside_text_shows_as_what_it_is(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_line_breaks_stay_where_they_are_wanted() -> None:
    assert printable("a\r\nb\x85c\u2028d\re", lines=True) == "a\nb\nc\nd\ne"


@pytest.mark.slow
@pytest.mark.parametrize("opening", ["\x1b]", "\x9d", "\x9d\x90\x98x", "\x9b", "\x9b1 ", "\x1b ", "\x90\x9b1;"])
def test_stripping_takes_time_in_proportion_to_the_text(opening: str) -> None:
    """Looked at from each opening to the end, it would take hours."""
    assert printable(opening * 1_000_000 + "end").endswith("nd")


def test_the_console_takes_markup_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    make_console().print("[bold]:smile: 12[/bold]")

    assert capsys.readouterr().out == "[bold]:smile: 12[/bold]\n"


def test_a_console_whose_stream_is_closed_says_nothing_on_the_other_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)

    make_console(stderr=True).print("progress")

    assert capsys.readouterr().out == ""
