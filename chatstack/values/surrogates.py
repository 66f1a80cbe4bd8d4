"""Lone surrogates: characters that Python strings can hold, but that cannot be sent.

A lone surrogate comes from a file name that is not UTF-8, or from text that was cut within a character. No provider
takes it, and once it is in a history every later request would fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast


def lone_surrogate_in(text: str) -> int | None:
    """Return the position of the first lone surrogate, or None. Costs next to nothing for ASCII."""
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def without_lone_surrogates(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate; two that form a pair become their character."""
    if lone_surrogate_in(text) is None:
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def plain_without_lone_surrogates(value: object) -> object:
    """Return the same for plain JSON values: for all texts in them, the names of fields included."""
    if isinstance(value, str):
        return without_lone_surrogates(value)
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, object]", value)
        return {without_lone_surrogates(name): plain_without_lone_surrogates(each) for name, each in fields.items()}
    if isinstance(value, list):
        return [plain_without_lone_surrogates(each) for each in cast("list[object]", value)]
    return value
