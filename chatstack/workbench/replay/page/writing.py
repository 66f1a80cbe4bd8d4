"""The format of texts and numbers on the page. ``basics.js`` has the same rules, for the part that the script shows."""

from __future__ import annotations

import html
import re
from typing import TypeAlias

from chatstack.workbench.replay import telling

Number: TypeAlias = float | None
"""A number as in the report: null, or absent, if it is not known."""

UNKNOWN = "–"
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, save tab and newline
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"  # invisible, or bidi
    "\ud800-\udfff]"  # lone surrogates, which no UTF-8 file can hold
)


def visible(text: str) -> str:
    """Return text with marks for control characters, bidi controls, hidden characters and lone surrogates."""
    return _UNSEEN.sub(_mark, text.replace("\r\n", "\n"))


def _mark(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"⟨U+{code:04X}⟩"


def outside(text: str | None) -> str:
    """Return text from outside as HTML, with its own text direction."""
    return f"<bdi>{html.escape(visible(text or UNKNOWN))}</bdi>"


def count(number: Number) -> str:
    """Format a whole number with thousands separators."""
    return UNKNOWN if number is None else f"{number:,.0f}"


def counted(number: Number, what: str) -> str:
    """Format a number with its noun."""
    return f"{count(number)} {what}{'' if number == 1 else 's'}"


def percent(share: Number) -> str:
    """Format a share in percent, to one decimal and rounded down, so that 100 means all."""
    return UNKNOWN if share is None else telling.percent(share)


def decimals(number: Number) -> str:
    """Format a number to three decimals."""
    return UNKNOWN if number is None else f"{number:,.3f}"


def dollars(number: Number) -> str:
    """Format dollars to cents, and small sums to hundredths of a cent."""
    return UNKNOWN if number is None else f"{number:,.{2 if abs(number) >= 10 else 4}f}"
