"""Excerpts: the beginning and the end of a text, with a marker for what is left out between them."""

from __future__ import annotations

import re

HEAD = 2 / 3
"""Share of a shorter text that is its beginning, which shows its subject; errors and totals are at its end."""
_MARKER = re.compile(r"\n?\[[\d,]+ of ([\d,]{1,20}) bytes left out[^\n\]]*\]\n?")


def head_and_tail(text: str, most_bytes: int, *, recall: str = "") -> str:
    """Return the text in at most ``most_bytes`` of UTF-8: two thirds its beginning, one third its end, and between them
    a line that says how much is left out. A text that fits is unchanged; no excerpt is shorter than that line.

    Cuts at the end of a line if there is one near, else between code points. ``recall`` is a call that gives the model
    the whole text.
    """
    total = bytes_in(text)
    if total <= most_bytes:
        return text
    hint = gives_back(recall)
    room = most_bytes - len(left_out(total, total, hint)) - 2
    head = _first(text, int(room * HEAD))
    tail = _last(text, room - int(room * HEAD))
    marker = left_out(total - bytes_in(head) - bytes_in(tail), total, hint)
    lines = [head.removesuffix("\n"), marker, tail]
    return "\n".join(each for each in lines if each)


def is_excerpt(text: str, whole: str) -> bool:
    """Return True if a text is an excerpt of another one, made by ``head_and_tail``."""
    cut = _MARKER.search(text)
    if cut is None or cut[1] != f"{bytes_in(whole):,}":
        return False
    return whole.startswith(text[: cut.start()]) and whole.endswith(text[cut.end() :])


def gives_back(recall: str) -> str:
    """Return what that line says of a call that gives the model the whole text; "" without one."""
    return f"; {recall} gives them back" if recall else ""


def left_out(gone: int, total: int, hint: str = "") -> str:
    """Return the line that marks the part left out."""
    return f"[{gone:,} of {total:,} bytes left out{hint}]"


def bytes_in(text: str) -> int:
    """Return the length of a text in bytes of UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def first_bytes(text: str, most_bytes: int) -> str:
    """Return the text's beginning; an incomplete UTF-8 sequence at the cut is dropped."""
    piece = text[: max(0, most_bytes)]
    return piece if piece.isascii() else piece.encode("utf-8", "surrogatepass")[:most_bytes].decode("utf-8", "ignore")


def last_bytes(text: str, most_bytes: int) -> str:
    """Return the text's end; an incomplete UTF-8 sequence at the cut is dropped."""
    piece = text[-most_bytes:] if most_bytes > 0 else ""
    return piece if piece.isascii() else piece.encode("utf-8", "surrogatepass")[-most_bytes:].decode("utf-8", "ignore")


def _first(text: str, most_bytes: int) -> str:
    """Return the text's beginning: up to the end of a line, if one ends in the second half."""
    piece = first_bytes(text, most_bytes)
    line = piece.rfind("\n", len(piece) // 2)
    return piece if line < 0 else piece[: line + 1]


def _last(text: str, most_bytes: int) -> str:
    """Return the text's end: from the beginning of a line, if one begins in the first half."""
    piece = last_bytes(text, most_bytes)
    line = piece.find("\n", 0, len(piece) // 2)
    return piece if line < 0 else piece[line + 1 :]
