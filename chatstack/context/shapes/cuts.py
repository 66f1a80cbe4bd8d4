"""Cuts: shorter texts made of whole lines of a text, word for word, with a line that says what is left out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from chatstack.context.edits.excerpts import HEAD, bytes_in, first_bytes, last_bytes

_ERRORS = 0.1
"""Maximum share of the room for lines between beginning and end that look like errors."""
_LOOKED_AT = 1_000_000
"""Maximum number of characters, from the end, in which such lines are looked for."""
_WINDOW = 256
"""Number of characters around a cut in which escape sequences are looked for."""
_ERROR = re.compile(
    r"\b(?:[A-Z]\w*(?:Error|Exception|Failure|Interrupt)\b|Traceback \(|ERROR|FAIL(?:ED|URE)?\b|FATAL|CRITICAL|panic:"
    r"|[Ee]rror:|[Ee]rror\[|[Ff]atal:|Segmentation fault|Caused by:|undefined reference)"
)
_TIME = re.compile(r"\W?(?:\d{4}[-/]\d\d[-/]\d\d[T ]?)?\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?(?:Z|[+-]\d\d:?\d\d))?\W*")
"""The time at the beginning of a line of a log."""
_LONGEST_TIME = 48
_TERMINAL = r"\[[0-?]*[ -/]*[@-~]"
_SEQUENCES = re.compile(
    rf"(?:\x1b|\\u001[bB]){_TERMINAL}|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\r\n"
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\."
)
"""Escape sequences of terminals, and of JSON: a text may quote either."""


class Cut(NamedTuple):
    """A shorter text, and the bytes of the original in it."""

    text: str
    kept: int


class Gap(NamedTuple):
    """The part left out between beginning and end: bytes, and lines if only whole ones are; ``has_errors``: those that
    look like errors follow."""

    left_out: int
    lines: int
    has_errors: bool


@dataclass(frozen=True, slots=True)
class Cutting:
    """A way of cutting texts. ``mark`` gives the line that says what is left out.

    ``tail_first`` keeps more of the end than of the beginning. ``in_json``: the text is the inside of a JSON string, as
    it was written there. ``is_table``: every line is a row, so none is folded, and none is an error.
    """

    mark: Callable[[Gap], str]
    _: KW_ONLY
    tail_first: bool = False
    in_json: bool = False
    is_table: bool = False

    @property
    def newline(self) -> str:
        """The end of a line, as it is written in the text."""
        return "\\n" if self.in_json else "\n"

    def cut(self, text: str, most_bytes: int) -> Cut:
        """Return the text in at most ``most_bytes`` of UTF-8, but never shorter than the mark."""
        total, lines = bytes_in(text), self._lines(text)
        pieces = [_Piece(line, size, size) for line in lines for size in (bytes_in(line),)]
        if not self.is_table:
            pieces = self._folded(pieces)
        room = most_bytes - len(self.mark(Gap(total, len(lines), True))) - len(self.newline) * 2
        if sum(piece.size for piece in pieces) <= room:
            kept = sum(piece.kept for piece in pieces)
            body = "".join(piece.text for piece in pieces).removesuffix(self.newline)
            return Cut(f"{body}{self.newline}{self.mark(Gap(total - kept, 0, False))}", kept)
        ends = self._ends(pieces, room)
        errors = [] if self.is_table else self._errors(ends.between, room * _ERRORS)
        if errors:
            ends = self._ends(pieces, room - sum(piece.size for piece in errors))
        return self._joined(ends, errors, total)

    def _joined(self, ends: _Ends, errors: Sequence[_Piece], total: int) -> Cut:
        newline = self.newline
        kept = sum(piece.kept for piece in (*ends.head, *errors, *ends.tail))
        gap = Gap(total - kept, len(ends.between) if ends.are_whole else 0, bool(errors))
        middle = [self.mark(gap)]
        if errors:
            middle.append("".join(piece.text for piece in errors).removesuffix(newline))
        head, tail = ("".join(piece.text for piece in each) for each in (ends.head, ends.tail))
        return Cut(newline.join(each for each in (head.removesuffix(newline), *middle, tail) if each), kept)

    def _lines(self, text: str) -> Sequence[str]:
        """Return the lines, each with its end. A row of a table may have line breaks within quotes."""
        parts = text.split(self.newline)
        lines = [f"{part}{self.newline}" for part in parts[:-1]]
        if parts[-1]:
            lines.append(parts[-1])
        if self.in_json:
            return _joined_while(lines, _ends_with_backslash)
        return rows_in(lines) if self.is_table else lines

    def _folded(self, pieces: list[_Piece]) -> list[_Piece]:
        """Put a line that says how many there are in the place of lines that repeat the one before."""
        found: list[_Piece] = []
        at = 0
        while at < len(pieces):
            end = at + 1
            while end < len(pieces) and self._repeats(pieces[at].text, pieces[end].text):
                end += 1
            found.append(pieces[at])
            at += 1
            if at == end:  # nearly all of them
                continue
            said = f"[{end - at:,} more lines like the one above]{self.newline}"
            if sum(piece.size for piece in pieces[at:end]) > len(said):
                found.append(_Piece(said, len(said), 0))
            else:
                found += pieces[at:end]
            at = end
        return found

    def _repeats(self, line: str, other: str) -> bool:
        """Return True if two lines are the same, but for the time at their beginning."""
        if line == other:
            return True
        if line[-8:] != other[-8:] or line[_LONGEST_TIME:-8] != other[_LONGEST_TIME:-8]:  # nearly all of them
            return False
        return _untimed(line) == _untimed(other) != self.newline

    def _ends(self, pieces: Sequence[_Piece], room: int) -> _Ends:
        """Return the first and the last pieces that fit into the room; of a line that is larger, a part."""
        first = int(room * (1 - HEAD if self.tail_first else HEAD))
        head = _fitting(pieces, first)
        tail = _fitting(pieces[: len(head) - 1 if head else None : -1], room - first)[::-1]
        between = pieces[len(head) : len(pieces) - len(tail)]
        are_whole = True
        left, left_behind = (sum(piece.size for piece in each) for each in (head, tail))
        if between and left < first / 2 and between[0].kept:
            head.append(self._first(between[0].text, first - left))
            are_whole = False
        if between and left_behind < (room - first) / 2 and between[-1].kept:
            tail.insert(0, self._last(between[-1].text, room - first - left_behind))
            are_whole = False
        return _Ends(head, tail, between, are_whole)

    def _errors(self, between: Sequence[_Piece], room: float) -> list[_Piece]:
        """Return the lines that look like errors, the last ones, as far as there is room, with what stands between."""
        found: list[_Piece] = []
        rest = _Piece(f"[...]{self.newline}", 5 + len(self.newline), 0)
        looked_at, next_one = 0, -1
        for at in range(len(between) - 1, -1, -1):
            piece = between[at]
            looked_at += piece.size
            if looked_at > _LOOKED_AT or room < rest.size:
                break
            if 0 < piece.kept <= room - rest.size and _ERROR.search(piece.text):
                new = [piece] if at == next_one else [rest, piece]
                room -= sum(each.size for each in new)
                found += new
                next_one = at - 1
        return found[::-1]

    def _first(self, line: str, most_bytes: int) -> _Piece:
        text = line[: self._around(line, len(first_bytes(line, most_bytes)))[0]]
        return _Piece(f"{text}{self.newline}", bytes_in(text) + len(self.newline), bytes_in(text))

    def _last(self, line: str, most_bytes: int) -> _Piece:
        text = line[self._around(line, len(line) - len(last_bytes(line, most_bytes)))[1] :]
        return _Piece(text, bytes_in(text), bytes_in(text))

    @staticmethod
    def _around(text: str, at: int) -> tuple[int, int]:
        """Return the places nearest to a cut, before and behind it, that are not within an escape sequence."""
        start = max(0, at - _WINDOW)
        while start and text[start - 1] == "\\":
            start -= 1
        for each in _SEQUENCES.finditer(text, start, min(len(text), at + _WINDOW)):
            if each.start() < at < each.end():
                return each.span()
        return at, at


class _Piece(NamedTuple):
    """A line, its bytes, and how many of these are the text's."""

    text: str
    size: int
    kept: int


class _Ends(NamedTuple):
    """The pieces at both ends, and those between; ``are_whole``: no line is cut."""

    head: list[_Piece]
    tail: list[_Piece]
    between: Sequence[_Piece]
    are_whole: bool


def _fitting(pieces: Sequence[_Piece], room: int) -> list[_Piece]:
    """Return as many of the first pieces as fit."""
    found: list[_Piece] = []
    for piece in pieces:
        room -= piece.size
        if room < 0:
            break
        found.append(piece)
    return found


def _untimed(line: str) -> str:
    found = _TIME.match(line)
    return line[found.end() :] if found else line


def rows_in(lines: Sequence[str]) -> Sequence[str]:
    """Return the rows of a table: lines, where a quote does not go on over several."""
    return _joined_while(lines, _ends_in_quotes)


def _joined_while(lines: Sequence[str], goes_on: Callable[[str, bool], bool]) -> Sequence[str]:
    """Return the lines, each joined with the next ones for as long as it goes on; a line is told if one before it does.
    What goes on at the end is no line of that kind, and nothing is joined."""
    found: list[str] = []
    joined: list[str] = []
    for line in lines:
        joined.append(line)
        if not goes_on(line, len(joined) > 1):
            found.append("".join(joined))
            joined = []
    return lines if joined else found


def _ends_in_quotes(row: str, begins_in_quotes: bool) -> bool:
    return (row.count('"') % 2 == 1) != begins_in_quotes


def _ends_with_backslash(line: str, _: bool) -> bool:
    r"""Return True if what looks like the end of a line in JSON is an escaped backslash, and an n."""
    if not line.endswith("\\n"):
        return False
    text = line[:-2]
    return (len(text) - len(text.rstrip("\\"))) % 2 == 1
