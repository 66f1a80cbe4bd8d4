"""Last reports: the last two sizes that the provider reported of a conversation's requests, in one piece of memory.

They are kept by a hash of what they depend on beside the history. A row is that hash, then estimate, report and length
of the last one and of the one before: numbers in an array take an eighth of the bytes of objects.
"""

from __future__ import annotations

from array import array
from typing import TypeAlias

from chatstack.tokens.calibration import Anchor

Rows: TypeAlias = "array[int]"

_ROW = 7
_MOST_ROWS = 64
_NONE = (0, 0, -1)
_LARGEST = 2**62
"""Upper bound of a size, as an array holds it: a counter may give any number."""
NOTHING_REPORTED: Rows = array("q")


class LastReport(Anchor, frozen=True, gc=False):
    """The reported size of a request of ``length`` messages."""

    length: int


def last_reports(rows: Rows, terms: int, length: int) -> tuple[LastReport | None, LastReport | None]:
    """Return the last report under these terms for a request of fewer messages, and that for any request.

    The report of the very same request anchors nothing, as another conversation may have made it.
    """
    at = _row(rows, terms)
    if at < 0:
        return None, None
    last = LastReport(*rows[at + 1 : at + 4])
    if last.length < length:
        return last, last
    return (LastReport(*rows[at + 4 : at + _ROW]) if 0 <= rows[at + 6] < length else None), last


def all_reports(rows: Rows) -> list[tuple[int, LastReport]]:
    """Return the last report under each of the terms."""
    return [(rows[at], LastReport(*rows[at + 1 : at + 4])) for at in range(0, len(rows), _ROW)]


def reports_until(rows: Rows, length: int) -> Rows:
    """Return a copy of the rows without reports of longer requests, which another conversation may have made."""
    rows = rows[:]  # in one step, as other threads may write
    if max(rows[3::_ROW], default=0) <= length:
        return rows
    kept = NOTHING_REPORTED
    for at in range(0, len(rows), _ROW):
        of = at + 1 if rows[at + 3] <= length else at + 4
        if 0 <= rows[of + 2] <= length:
            kept = with_report(kept, rows[at], LastReport(*rows[of : of + 3]))
    return kept


def reports_as_of(rows: Rows, length: int) -> Rows:
    """Return a copy of the rows in which no request is longer: what it had more will not come again."""
    rows = rows[:]  # in one step, as other threads may write
    for at in range(0, len(rows), _ROW):
        for of in (at + 3, at + 6):
            rows[of] = min(rows[of], length)
    return rows


def with_report(rows: Rows, terms: int, report: LastReport) -> Rows:
    """Return the rows with a report, unless one of a longer request is known: reports may come out of order."""
    if report.estimated > _LARGEST or report.reported > _LARGEST:
        return rows
    new = (report.estimated, report.reported, report.length)
    at = _row(rows, terms)
    if at < 0:
        added = array("q", (terms, *new, *_NONE))
        return rows + added if len(rows) < _MOST_ROWS * _ROW else added
    if rows[at + 3] < report.length:  # in one step, as other threads may read
        rows[at + 1 : at + _ROW] = array("q", (*new, *rows[at + 1 : at + 4]))
    elif rows[at + 3] == report.length:
        rows[at + 1 : at + 4] = array("q", new)
    return rows


def _row(rows: Rows, terms: int) -> int:
    for at in range(0, len(rows), _ROW):
        if rows[at] == terms:
            return at
    return -1
