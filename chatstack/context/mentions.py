"""Mentions: the names in messages that are no longer sent, for a reader who may have to ask for them again."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import cast

from chatstack.values.messages import Message
from chatstack.values.parts import Text, ToolCall, ToolResult

_WORD = re.compile(r"(?:(?<![A-Za-z0-9_./-])(?:--|\.{0,2}/|~/))?[A-Za-z0-9_][A-Za-z0-9_./-]{2,}[A-Za-z0-9_]")
"""Of four characters and more; paths, versions, options and dotted names are one word."""
_QUOTED = re.compile(r"`([^`\n]{4,80})`")
_SIGNS = frozenset("_./0123456789")
_SIGN = re.compile(r"[_./-]+")
_LONG_NUMBER = 6
_LONGEST = 100
"""In characters; what is longer is data, and would take the room of all the names behind it."""
_MOST_CHARS = 200_000
"""Of one text; what stands beyond is not looked at."""


def mentions_in(gone: Iterable[Message], left: Iterable[Message], most: int) -> list[str]:
    """The names that are in the ``gone`` messages, and in none that is ``left``; the most telling first, and so many.

    A name is a word that looks like an identifier (a path, a dotted or snake or camel case name, a number of some
    length), that the model itself has used in the arguments of a call, or that was set in backquotes by who spoke of
    it. Those that the model has used most often come first, then those that were most spoken of, then those returned
    most often for their length: room is short. One that is a piece of a name before it is left out.
    """
    in_sight: set[str] = set()
    for message in left:
        in_sight.update(_words_of(message), _words_used(message))
    used: Counter[str] = Counter()
    spoken: Counter[str] = Counter()
    returned: Counter[str] = Counter()
    last: dict[str, int] = {}
    quoted: set[str] = set()
    for number, message in enumerate(gone):
        own = _words_used(message)
        used.update(own)
        quoted.update(_words_quoted(message))
        counts = spoken if message.role != "tool" else returned
        words = _words_of(message) | own
        counts.update(words)
        last.update(dict.fromkeys(words, number))
    names = [
        word
        for word in last
        if word not in in_sight
        and len(word) <= _LONGEST
        and (word in used or word in quoted or _is_name(word))
        and (word in spoken or _is_telling(word))
    ]
    names.sort(key=lambda word: (-used[word], -spoken[word], -returned[word] / len(word), -last[word], word))
    return _without_pieces(names, most)


def _without_pieces(names: Iterable[str], most: int) -> list[str]:
    """The first names that are not the beginning, the end or a word of one before them."""
    found: list[str] = []
    pieces: set[str] = set()
    for name in names:
        if len(found) >= most:
            break
        if name not in pieces:
            found.append(name)
            pieces.update(_SIGN.split(name))
            for sign in _SIGN.finditer(name):
                pieces.update((name[: sign.start()], name[sign.end() :]))
    return found


def _is_name(word: str) -> bool:
    return any(sign in word for sign in _SIGNS) or word[1:] != word[1:].lower()


def _is_telling(word: str) -> bool:
    """Whether it says anything by itself; short numbers (of lines, counts, sizes) do not."""
    word = word.lstrip("~./-")
    return not word[0].isdigit() or len(word) >= _LONG_NUMBER


def _words_of(message: Message) -> set[str]:
    """The words in what was said and returned."""
    found: set[str] = set()
    for part in message.parts:
        if isinstance(part, Text | ToolResult):
            found.update(_WORD.findall(part.text[:_MOST_CHARS]))
    return found


def _words_quoted(message: Message) -> set[str]:
    """The words in backquotes in what was said."""
    texts = (part.text[:_MOST_CHARS] for part in message.parts if isinstance(part, Text))
    return {word for text in texts for quoted in _QUOTED.findall(text) for word in _WORD.findall(quoted)}


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
