"""Upper bound on the tokens that a call can have used."""

from __future__ import annotations

from chatstack.tokens.counter import char_counter
from chatstack.values.messages import Message
from chatstack.values.parts import File, Part, ProviderItem, Text, ToolResult
from chatstack.values.requests import ChatRequest, DeclaredTool
from chatstack.values.usage import LARGEST, SLACK

_FACTOR = 10
_ADDED_BY_SERVER = ("previous_response_id", "conversation", "prompt", "tools", "mcp_servers", "web_search_options")
"""Fields of ``options.extra`` that let a model read more than the request has."""


def most_of(request: ChatRequest, answer: tuple[Message, ...], reserved_tokens: int, reported: int) -> int:
    """Return an upper bound on the usage of a call: ten times its estimate, plus 100,000; ``LARGEST`` if the server may
    add content that the request does not have.

    Counts from the newest message on, and stops as soon as ``reported`` is plausible.
    """
    options, counter = request.options, char_counter(4)
    if any(options.extra.get(name) for name in _ADDED_BY_SERVER) or any(map(_is_run_by_server, options.tools)):
        return LARGEST
    needed = (reported - SLACK) / _FACTOR
    estimate = reserved_tokens + counter.count_options(options)
    for message in reversed((*request.messages, *answer)):
        if estimate >= needed:
            break
        if any(map(_is_elsewhere, message.parts)):
            return LARGEST
        estimate += counter.count_message(message)
    return _FACTOR * estimate + SLACK


def is_clearly_possible(request: ChatRequest, reported: int) -> bool:
    """Tell quickly whether the messages alone make that report plausible; for nearly every report they do."""
    needed = (reported - SLACK) / _FACTOR
    roughly = char_counter(4).message_tokens * len(request.messages)
    if roughly >= needed:
        return True
    for message in reversed(request.messages):
        counted = getattr(message, "_size", None)  # by a context layer, with its counter
        roughly += counted[1] if counted is not None else _fourths_of(message)
        if roughly >= needed:
            return True
    return False


def _fourths_of(message: Message) -> int:
    """Return about a quarter of the characters that are plain text: a lower bound on the counted tokens."""
    characters = 0
    for part in message.parts:
        if type(part) is Text:
            characters += len(part.text)
        elif type(part) is ToolResult and type(part.output) is str:
            characters += len(part.output)
    return characters // 4 - len(message.parts)


def _is_run_by_server(tool: DeclaredTool) -> bool:
    """Return True if the tool runs at the provider, so that the model reads its results within the same call."""
    return type(tool) is ProviderItem


def _is_elsewhere(part: Part) -> bool:
    """Return True if the part is, or holds, a document that the request has only by address."""
    if isinstance(part, ToolResult) and not isinstance(part.output, str):
        return any(map(_is_elsewhere, part.output))
    return isinstance(part, File) and bool(part.url or part.file_id)
