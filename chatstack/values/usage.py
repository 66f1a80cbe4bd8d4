"""Plausibility checks for reported usage."""

from __future__ import annotations

from collections.abc import Callable
from operator import index

from msgspec.structs import astuple, replace

from chatstack.values.responses import ChatUpdate, Usage

SLACK = 100_000
"""Figures up to this are always believed: a server may add instructions and tools, and a model may reason unseen."""
LARGEST = 100_000_000
"""Upper bound on the usage of any call to which the server adds content of its own."""


def is_modest(usage: Usage | None, most: int = SLACK) -> bool:
    """Tell whether all figures are whole numbers up to ``most``; they nearly always are."""
    if usage is None:
        return True
    for figure in astuple(usage):
        if type(figure) is not int:
            return False
        if not 0 <= figure <= most:
            return False
    return True


def credible(usage: Usage, most: Callable[[int], int] | None = None) -> Usage:
    """Return the usage with implausible figures set to 0, which means not reported.

    Implausible is a figure that is negative, or no whole number (12.0 is one), or larger than ``most`` of that figure
    gives. Cached tokens are part of the input, reasoning tokens of the output: without a plausible sum they become 0,
    too. A figure may be larger than the sum that it is part of: in a stream that may have come with an earlier update.
    """
    if is_modest(usage):
        return usage
    figures: tuple[object, ...] = astuple(usage)
    given, said, read, written, reasoned, hour = (_believed(figure, most) for figure in figures)
    if given is None:
        read = written = None
    if written is None:
        hour = None
    return Usage(given or 0, said or 0, read or 0, written or 0, 0 if said is None else reasoned or 0, hour or 0)


def with_usage(update: ChatUpdate, check: Callable[[Usage], Usage]) -> ChatUpdate:
    """Return the update with usage and overhead as ``check`` leaves them."""
    usage = None if update.usage is None else check(update.usage)
    overhead = None if update.overhead_usage is None else check(update.overhead_usage)
    if usage is update.usage and overhead is update.overhead_usage:
        return update
    return replace(update, usage=usage, overhead_usage=overhead)


def told_early(update: ChatUpdate, usage: Usage, model: str, service_tier: str = "") -> ChatUpdate:
    """Return the update with the input of an answer that has just begun, which counts even if the answer never ends."""
    given = replace(usage, output_tokens=0, reasoning_tokens=0)
    return replace(update, usage=given, model=model, service_tier=service_tier)


def rest_of(usage: Usage, told: Usage | None) -> Usage:
    """Return the part of an answer's usage that was not told with an earlier update: all updates add up to it."""
    if told is None:
        return usage
    pairs = zip(astuple(usage), astuple(told), strict=True)
    return Usage(*(max(0, whole - before) if before > 0 else whole for whole, before in pairs))


def doubted(reported: Usage, believed: Usage) -> list[str]:
    """Return the figures that were not believed, by name and size, never as the text that a server may have sent."""
    pairs = zip(reported.__struct_fields__, astuple(reported), astuple(believed), strict=True)
    return [f"{name} {_shown(figure)}" for name, figure, known in pairs if figure is not None and figure != known]


def _believed(figure: object, most: Callable[[int], int] | None) -> int | None:
    if figure is None:
        return 0
    if isinstance(figure, bool):
        return None
    if isinstance(figure, float) and figure.is_integer():
        figure = int(figure)
    try:
        count = index(figure)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    except TypeError:
        return None
    if count <= SLACK:
        return count if count >= 0 else None
    return count if count <= min(LARGEST, most(count) if most is not None else LARGEST) else None


def _shown(figure: object) -> str:
    if isinstance(figure, int) and not isinstance(figure, bool):
        return f"{figure:,}" if abs(figure) < 10**15 else f"of {figure.bit_length():,} bits"
    return f"as {type(figure).__name__}"
