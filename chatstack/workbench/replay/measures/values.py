"""Values in the arguments of tool calls, and the texts of messages that they are looked for in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import cast

from chatstack.values.messages import Message
from chatstack.values.parts import File, Part, ProviderItem, Reasoning, Text, ToolCall, ToolResult

SHORTEST_TEXT = 4
"""Minimum length, in characters."""
SHORTEST_NUMBER = 3
"""Minimum length, in digits."""
MOST_VALUES = 1_000
"""Maximum number of values looked at in one call."""

BETWEEN = "\0"
"""Separates the texts of one message, so that no value is found across two of them."""
_WORD = re.compile(r"[A-Za-z0-9_./-]{6,}")
_SHELL = re.compile(r"(^|[^a-z])(ba|z|da|k|fi|pw)?sh([^a-z]|$)|bash|shell|terminal|console|exec|command|cmd")
_COMMANDS = ("command", "cmd")


class Number(str):
    """A number, as it is written in the JSON text."""

    __slots__ = ()


def values_of(call: ToolCall) -> tuple[str, ...]:
    """Return the distinct values in the arguments of a call; none if the arguments are no JSON.

    Texts of 4 characters and more and numbers of 3 digits and more count, at any depth; of a shell's command, its
    words.
    """
    arguments = decoded(call.arguments)
    words, rest = _commands_apart(arguments) if _SHELL.search(call.name.lower()) else ([], arguments)
    found = dict.fromkeys(words)
    for leaf in leaves(rest):
        if isinstance(leaf, Number):
            if sum(character.isdigit() for character in leaf) >= SHORTEST_NUMBER:
                found[leaf] = None
        elif len(leaf) >= SHORTEST_TEXT:
            found[leaf] = None
    return tuple(found)[:MOST_VALUES]


def text_of(message: Message) -> str:
    """Return all texts of a message, one after the other."""
    return text_in(message.parts)


def text_in(parts: Iterable[Part]) -> str:
    """Return all texts of these parts, one after the other."""
    return BETWEEN.join(_texts(parts))


def _commands_apart(arguments: object) -> tuple[list[str], object]:
    """Split a shell's arguments into the words of its commands and the other arguments."""
    if not isinstance(arguments, dict):
        return [], arguments
    fields = cast("dict[str, object]", arguments)
    commands = (text for name in _COMMANDS for text in leaves(fields.get(name)))
    words = [word for text in commands for word in _WORD.findall(text)]
    return words, [value for name, value in fields.items() if name not in _COMMANDS]


def _texts(parts: Iterable[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, ToolCall):
            yield part.arguments
            if "\\" in part.arguments:  # without escapes, the JSON text contains its strings as they are
                yield from leaves(decoded(part.arguments))
        elif isinstance(part, (Text, File, Reasoning)):
            yield part.text
        elif isinstance(part, ToolResult):
            yield from (part.output,) if isinstance(part.output, str) else _output_texts(part)
        elif isinstance(part, ProviderItem):
            yield part.json


def _output_texts(result: ToolResult) -> Iterator[str]:
    for part in result.output:
        if isinstance(part, (Text, File)):
            yield part.text
        elif isinstance(part, ProviderItem):
            yield part.json


def decoded(arguments: str) -> object:
    """Return the JSON value of a text; None if there is none, or it is nested too deeply."""
    try:
        return json.loads(arguments, parse_int=Number, parse_float=Number)
    except (ValueError, RecursionError):
        return None


def leaves(value: object) -> Iterator[str]:
    """Yield the texts and numbers in a JSON value, in order."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting.extend(reversed(list(cast("dict[str, object]", each).values())))
        elif isinstance(each, list):
            waiting.extend(reversed(cast("list[object]", each)))
