"""Mentions: the names in messages that are no longer sent, for a reader who may have to ask for them again."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import cast

from chatstack.values.messages import Message
from chatstack.values.parts import Text, ToolCall, ToolResult

_WORD = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_./-]{2,}[A-Za-z0-9_])")
"""Of four characters and more; paths, versions and dotted names are one word."""
_SIGNS = frozenset("_./0123456789")
_LONG_NUMBER = 6
_MOST_CHARS = 200_000
"""Of one text; what stands beyond is not looked at."""


def mentions_in(gone: Iterable[Message], left: Iterable[Message]) -> list[str]:
    """The names that are in the ``gone`` messages, oldest first, and in none that is ``left``; the most telling first.

    A name is a word that looks like an identifier (a path, a dotted or snake or camel case name, a number of some
    length), or that the model itself has used in the arguments of a call. Those it has used most often come first, then
    those that were most spoken of, then the newest.
    """
    in_sight: set[str] = set()
    for message in left:
        in_sight.update(_words_of(message), _words_used(message))
    used: Counter[str] = Counter()
    spoken: Counter[str] = Counter()
    returned: Counter[str] = Counter()
    last: dict[str, int] = {}
    for number, message in enumerate(gone):
        own = _words_used(message)
        used.update(own)
        counts = spoken if message.role != "tool" else returned
        for word in _words_of(message) | own:
            counts[word] += 1
            last[word] = number
    names = [
        word
        for word in last
        if word not in in_sight and (word in used or _is_name(word)) and (word in spoken or _is_telling(word))
    ]
    names.sort(key=lambda word: (-used[word], -spoken[word], -returned[word], -last[word], word))
    return names


def _is_name(word: str) -> bool:
    return any(sign in word for sign in _SIGNS) or word[1:] != word[1:].lower()


def _is_telling(word: str) -> bool:
    """Whether it says anything by itself; short numbers (of lines, counts, sizes) do not."""
    return not word[0].isdigit() or len(word) >= _LONG_NUMBER


def _words_of(message: Message) -> set[str]:
    """The words in what was said and returned."""
    found: set[str] = set()
    for part in message.parts:
        if isinstance(part, Text | ToolResult):
            found.update(_WORD.findall(part.text[:_MOST_CHARS]))
    return found


def _words_used(message: Message) -> set[str]:
    """The words in the arguments of its calls, as values and not as JSON: there, a line break would stick to them."""
    found: set[str] = set()
    for part in message.parts:
        if isinstance(part, ToolCall):
            for text in _texts_in(part.arguments):
                found.update(_WORD.findall(text[:_MOST_CHARS]))
    return found


def _texts_in(arguments: str) -> Iterator[str]:
    try:
        values: list[object] = [json.loads(arguments)]
    except (ValueError, RecursionError):
        yield arguments
        return
    while values:
        value = values.pop()
        if isinstance(value, dict):
            values.extend(cast("dict[str, object]", value).values())
        elif isinstance(value, list):
            values.extend(cast("list[object]", value))
        elif isinstance(value, str):
            yield value
        elif isinstance(value, int | float):
            yield str(value)
