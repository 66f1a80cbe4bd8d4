"""How much work a call does, counted in lines of Python and comparisons of names: the same on every machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


class Name(str):
    """A name that counts how often it is compared, which `in` and `index` of a list do without a line of Python."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        Name.compared += 1
        return super().__eq__(other)

    __hash__ = str.__hash__


def grows_linearly(work: Callable[[int], object]) -> bool:
    """Say whether twice as much takes about twice as many steps."""
    return steps_of(lambda: work(4_000)) < 2.2 * steps_of(lambda: work(2_000))


def steps_of(call: Callable[[], object]) -> int:
    """Count the lines that run, each round of a comprehension among them, and the comparisons of a :class:`Name`."""
    lines, before = 0, Name.compared

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    tracing = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(tracing)
    return lines + Name.compared - before
