"""Rows: JSON with fewer rows and shorter texts. What is kept is cut out of it, and never encoded anew."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from chatstack.context.edits.excerpts import HEAD
from chatstack.context.shapes.cuts import Cutting

_LEAST = 200
"""Minimum bytes of a value that is shortened together with others, so that something of it can be read."""
_DEEPEST = 8
"""Maximum depth at which values are shortened."""
_MARK = 24
"""Room for a mark, with a comma and white space."""
_SPACE = re.compile(rb"[ \t\r\n]*")
_COMMA = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"[ \t\r\n]*:[ \t\r\n]*')
_TEXTS = Cutting(lambda gap: f"[+{gap.left_out:,} bytes]", in_json=True)
_elements = msgspec.json.Decoder(list[msgspec.Raw]).decode
_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Shorter(NamedTuple):
    """Shortened JSON, which is JSON again, and the bytes of the original in it."""

    json: bytes
    kept: int


class _Span(NamedTuple):
    """A row: an element of an array, or a member of an object with its key."""

    start: int
    value: int
    end: int


def fewer_rows(json: bytes, most_bytes: int) -> Shorter | None:
    """Return an array or an object in at most ``most_bytes``: its first and last rows, "+212 rows" between them; the
    beginning and end of its longest texts. None if it is neither, or cannot be had that small."""
    shorter = _shorter(json, most_bytes, 0) if json[:1] in (b"[", b"{") else None
    return shorter if shorter is not None and len(shorter.json) <= most_bytes else None


def _shorter(json: bytes, most: int, depth: int) -> Shorter:
    if len(json) > most and depth <= _DEEPEST:
        if json[:1] == b'"':
            cut = _TEXTS.cut(json[1:-1].decode(), most - 2)
            return Shorter(b'"%s"' % cut.text.encode(), cut.kept + 2)
        spans = _spans(json)
        if spans:
            return _shorter_rows(json, spans, most, depth)
    return Shorter(json, len(json))


def _shorter_rows(json: bytes, spans: Sequence[_Span], most: int, depth: int) -> Shorter:
    """Leave out rows in the middle; where a few long values make up most of it, or nearly all, shorten these."""
    sizes = [span.end - span.value for span in spans]
    share = _fair_share(sizes, most - (len(json) - sum(sizes)))
    room = most - spans[0].start - (len(json) - spans[-1].end) - _MARK
    first = _fitting([span.end - spans[0].start for span in spans], room * HEAD)
    last = _fitting([spans[-1].end - span.start for span in reversed(spans)], room * (1 - HEAD))
    is_of_rows = first > 1 and last > 0 and max(sizes) <= len(json) // 2
    if share >= _LEAST and not (is_of_rows and json[:1] == b"["):
        return _with_shorter_values(json, spans, share, depth)
    if is_of_rows:
        return _without_middle(json, spans, first, last)
    return Shorter(json, len(json))


def _with_shorter_values(json: bytes, spans: Sequence[_Span], share: int, depth: int) -> Shorter:
    made: list[bytes] = []
    kept = at = 0
    for span in spans:
        shorter = _shorter(json[span.value : span.end], share, depth + 1)
        made += (json[at : span.value], shorter.json)
        kept += span.value - at + shorter.kept
        at = span.end
    return Shorter(b"".join([*made, json[at:]]), kept + len(json) - at)


def _without_middle(json: bytes, spans: Sequence[_Span], first: int, last: int) -> Shorter:
    before, behind = json[: spans[first].start], json[spans[-last].start :]
    comma = json[spans[first - 1].end : spans[first].start]
    left_out = len(spans) - first - last
    mark = b'"+%d rows"' % left_out if json[:1] == b"[" else b'"+": "%d members"' % left_out
    return Shorter(b"".join([before, mark, comma, behind]), len(before) + len(behind))


def _fair_share(sizes: Sequence[int], room: int) -> int:
    """Return the size that each value may have at most, so that all of them fit; as they are, they do not."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > room:
            break
        room -= size
        left -= 1
    return max(0, room // left)


def _fitting(ends: Sequence[int], room: float) -> int:
    """Return how many of the first rows fit; ``ends`` are the bytes up to the end of each."""
    return next((number for number, end in enumerate(ends) if end > room), len(ends))


def _spans(json: bytes) -> list[_Span]:
    """Return where the rows of an array or an object stand; nothing for anything else, or if a key is there twice."""
    try:
        values = _elements(json) if json[:1] == b"[" else list(_members(json).values())
    except (msgspec.DecodeError, RecursionError):
        return []
    found: list[_Span] = []
    at = _after(_SPACE, json, 1)
    for value in values:
        raw = bytes(value)
        start = at
        if json[:1] == b"{":
            start, at = at, _after(_KEY, json, at)
        end = at + len(raw)
        if json[at:end] != raw:
            return []
        found.append(_Span(start, at, end))
        at = _after(_COMMA, json, end)
    return found


def _after(pattern: re.Pattern[bytes], json: bytes, at: int) -> int:
    found = pattern.match(json, at)
    return found.end() if found else at
