"""What a terminal shows: the few control codes that the view uses, and any other is an error; and a real one."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import unicodedata
from collections.abc import Sequence

_PIECES = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)|(.)", re.DOTALL)


class Screen:
    """A terminal of that size. ``lines`` is all that was ever shown and has not been erased, scrolled away or not."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.columns = columns
        self.rows = rows
        self.colours: set[str] = set()
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0
        self._has_cursor = True

    @property
    def lines(self) -> list[str]:
        return ["".join(line).rstrip() for line in self._lines]

    @property
    def has_cursor(self) -> bool:
        return self._has_cursor

    def write(self, text: str) -> None:
        """Show it as a terminal would."""
        for private, numbers, code, move, shown, wrong in _PIECES.findall(text):
            assert not wrong, f"not a control code of the view's: {text!r}"
            if code:
                self._control(private, numbers, code)
            elif move == "\r":
                self._column = 0
            elif move == "\n":
                self._line_feed()
            else:
                for letter in shown:
                    self._put(letter)

    def _control(self, private: str, numbers: str, code: str) -> None:
        if code == "m":
            self.colours.add(numbers)
        elif code in "hl" and (private, numbers) == ("?", "25"):
            self._has_cursor = code == "h"
        elif code == "A":
            self._row = max(self._row - int(numbers or 1), len(self._lines) - self.rows, 0)
        elif (code, numbers) == ("K", "2"):
            self._lines[self._row] = []
        else:
            raise AssertionError(f"not a control code of the view's: {private}{numbers}{code}")

    def _put(self, letter: str) -> None:
        assert letter.isprintable(), f"a control character was shown: {letter!r}"
        width = 0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if self._column + width > self.columns:
            self._column = 0
            self._line_feed()
        line = self._lines[self._row]
        line += [" "] * (self._column + width - len(line))
        line[self._column : self._column + width] = [letter, ""][:width]
        self._column += width

    def _line_feed(self) -> None:
        self._row += 1
        if self._row == len(self._lines):
            self._lines.append([])


def in_terminal(command: Sequence[str], screen: Screen, **environment: str) -> tuple[int, str]:
    """Run a command in a pseudo-terminal of the screen's size, and show on it what comes; its exit code, and all that
    it wrote."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", screen.rows, screen.columns, 0, 0))
        given = kept | {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"} | environment
        process = subprocess.Popen(
            [sys.executable, *command], env=given, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
        )
        os.close(theirs)
        written = b""
        while piece := _read(ours):
            written += piece
        code = process.wait(timeout=300)
    finally:
        os.close(ours)
    text = written.decode()
    screen.write(text)
    return code, text


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how it ends on Linux
        return b""
