"""Shapes: long texts of tools, made shorter by what they are: JSON, tables, or lines."""

from __future__ import annotations

from collections.abc import Sequence

from chatstack.context.edits.excerpts import bytes_in, left_out
from chatstack.context.shapes.cuts import Cutting, Gap, rows_in
from chatstack.context.shapes.rows import fewer_rows

_LOOKED_AT = 5
"""Number of lines, at the beginning and at the end, by which a table is told."""
_FEWEST_ROWS = 12
_DELIMITERS = "\t|;,"
_RULE = frozenset(" :|-")
"""The characters of the line below the header of a Markdown table."""


def shape(text: str, most_bytes: int, *, hint: str = "", tail_first: bool = False) -> str:
    """Return a text of a tool in about ``most_bytes`` of UTF-8, word for word but for the lines that say what is left
    out. One that is larger by less than a third is unchanged, and none gets larger.

    Of JSON and tables, the first and the last rows stay, of other text the first and the last lines (two thirds and one
    third of the room; the other way round if ``tail_first``), and up to a tenth of it of lines between that look like
    errors. Lines that are repeated stand once. ``hint`` goes into the line that says how many bytes are left out.
    """
    if not is_too_long(text, most_bytes):
        return text
    total = bytes_in(text)
    shorter = _json(text, total, most_bytes, hint) or _lines(text, total, most_bytes, hint, tail_first)
    return shorter if bytes_in(shorter) < total else text


def is_too_long(text: str, most_bytes: int) -> bool:
    """Return True if a text is larger than that by more than a third, so that it is worth a cut."""
    return len(text) * 12 > most_bytes * 4 and bytes_in(text) * 3 > most_bytes * 4


def _json(text: str, total: int, most_bytes: int, hint: str) -> str:
    """Return a JSON array or object with fewer rows; "" if it is none, or cannot be had that small."""
    json = text.strip()
    if json[:1] not in ("[", "{") or json[-1:] not in ("]", "}"):
        return ""
    shorter = fewer_rows(json.encode(), most_bytes - len(left_out(total, total, hint)) - 1)
    return "" if shorter is None else f"{shorter.json.decode()}\n{left_out(total - shorter.kept, total, hint)}"


def _lines(text: str, total: int, most_bytes: int, hint: str, tail_first: bool) -> str:
    is_table = _is_table(text)

    def mark(gap: Gap) -> str:
        more = "; what looks like errors in it:" if gap.has_errors else ""
        rows = f"+{gap.lines:,} rows: " if gap.lines and is_table else ""
        return f"[{rows}{left_out(gap.left_out, total, hint + more)[1:]}"

    return Cutting(mark, tail_first=tail_first, is_table=is_table).cut(text, most_bytes).text


def _is_table(text: str) -> bool:
    """Return True for CSV, and for a table of Markdown: the same delimiter as often in lines at both ends."""
    lines: Sequence[str] = text.strip().split("\n")
    if len(lines) < _FEWEST_ROWS:
        return False
    if '"' in text and any(lines[0].count(each) > 1 for each in _DELIMITERS):
        lines = rows_in(lines)
    if lines[0].lstrip().startswith("|") and "--" in lines[1] and _RULE.issuperset(lines[1]):
        return True
    looked_at = [*lines[:_LOOKED_AT], *lines[-_LOOKED_AT:]]
    return any(_divides(delimiter, looked_at) for delimiter in _DELIMITERS)


def _divides(delimiter: str, lines: Sequence[str]) -> bool:
    """Return True if all lines have as many of the delimiter, and at least two, outside quotes."""
    columns = {"".join(line.split('"')[::2]).count(delimiter) for line in lines}
    return len(columns) == 1 and columns.pop() > 1
