"""Reported usage: which of its figures can be true."""

from __future__ import annotations

from collections.abc import Callable
from operator import index

from msgspec.structs import astuple, replace

from chatstack.tokens.counter import char_counter
from chatstack.values.messages import Message
from chatstack.values.parts import File, Part, ProviderItem, ToolResult
from chatstack.values.requests import ChatRequest, DeclaredTool
from chatstack.values.responses import ChatUpdate, Usage

SLACK = 100_000
"""Up to here every figure is believed: a server may add instructions and tools, and a model thinks unseen."""
_FACTOR = 10
_LARGEST = 100_000_000
"""More than any call can use, where the server adds what is not in the request."""
_ADDED_BY_SERVER = ("previous_response_id", "conversation", "prompt", "tools", "mcp_servers", "web_search_options")
"""Fields of ``options.extra`` that let a model read more than the request has."""


def credible(usage: Usage, most: Callable[[int], int] | None = None) -> Usage:
    """The usage without figures that cannot be true: they count as not told, which is 0.

    That is what is negative, or no whole number (12.0 is one), or larger than ``most`` of that figure gives. Cached
    tokens belong to the input, those of reasoning to the output: where that is not told, neither are they.
    """
    figures: tuple[object, ...] = astuple(usage)
    if all(type(figure) is int and 0 <= figure <= SLACK for figure in figures):
        return usage
    given, said, read, written, reasoned = (_believed(figure, most) for figure in figures)
    cached = (0, 0) if given is None else (read or 0, written or 0)
    return Usage(given or 0, said or 0, *cached, 0 if said is None else reasoned or 0)


def with_usage(update: ChatUpdate, check: Callable[[Usage], Usage]) -> ChatUpdate:
    """The update with what ``check`` leaves of its usage and of its overhead."""
    usage = None if update.usage is None else check(update.usage)
    overhead = None if update.overhead_usage is None else check(update.overhead_usage)
    if usage is update.usage and overhead is update.overhead_usage:
        return update
    return replace(update, usage=usage, overhead_usage=overhead)


def doubted(reported: Usage, believed: Usage) -> list[str]:
    """The figures that were not believed, by name and size, never as the text that a server may have sent."""
    pairs = zip(reported.__struct_fields__, astuple(reported), astuple(believed), strict=True)
    return [f"{name} {_shown(figure)}" for name, figure, known in pairs if figure is not None and figure != known]


def most_of(request: ChatRequest, answer: tuple[Message, ...], reserved_tokens: int, reported: int) -> int:
    """What a call can have used at most: ten times what it is estimated at, and 100,000.

    Counted from the newest message on, and no further than ``reported`` needs to be believed.
    """
    options, counter = request.options, char_counter(4)
    if any(options.extra.get(name) for name in _ADDED_BY_SERVER) or any(map(_is_run_by_server, options.tools)):
        return _LARGEST
    needed = (reported - SLACK) / _FACTOR
    estimate = reserved_tokens + counter.count_options(options)
    for message in reversed((*request.messages, *answer)):
        if estimate >= needed:
            break
        if any(map(_is_elsewhere, message.parts)):
            return _LARGEST
        estimate += counter.count_message(message)
    return _FACTOR * estimate + SLACK


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
    return count if count <= min(_LARGEST, most(count) if most is not None else _LARGEST) else None


def _shown(figure: object) -> str:
    if isinstance(figure, int) and not isinstance(figure, bool):
        return f"{figure:,}" if abs(figure) < 10**15 else f"of {figure.bit_length():,} bits"
    return f"as {type(figure).__name__}"


def _is_run_by_server(tool: DeclaredTool) -> bool:
    """Whether the model reads its results within the very call."""
    return type(tool) is ProviderItem


def _is_elsewhere(part: Part) -> bool:
    """Whether it is, or holds, a document of which the request has no more than the address."""
    if isinstance(part, ToolResult) and not isinstance(part.output, str):
        return any(map(_is_elsewhere, part.output))
    return isinstance(part, File) and bool(part.url or part.file_id)
