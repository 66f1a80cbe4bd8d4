"""Mentions: the names in messages that are no longer sent, for a model that may have to recall them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import cast

from chatstack.values.messages import Message
from chatstack.values.parts import Text, ToolCall, ToolResult

_WORD = re.compile(r"(?:(?<![A-Za-z0-9_./-])(?:--|\.{0,2}/|~/))?[A-Za-z0-9_][A-Za-z0-9_./-]{2,}[A-Za-z0-9_]")
"""A word of four or more characters; paths, versions, options and dotted names are one word."""
_QUOTED = re.compile(r"`([^`\n]{4,80})`")
_SIGNS = frozenset("_./0123456789")
_SIGN = re.compile(r"[_./-]+")
_LONG_NUMBER = 6
_LONGEST = 100
"""Maximum length of a name in characters; a longer word is data, and would take the room of other names."""
_MOST_CHARS = 200_000
"""Maximum number of characters of one text that are searched."""


def mentions_in(gone: Iterable[Message], left: Iterable[Message], most: int) -> list[str]:
    """Return at most ``most`` names that are in the ``gone`` messages but in none of ``left``, most telling first.

    A name is a word that looks like an identifier (a path, a dotted, snake or camel case name, a long number), that the
    model used in the arguments of a call, or that stands in backquotes in a message. They are ordered by how often the
    model used them, then by how often messages mention them, then by how often results contain them, relative to their
    length, as room is short. A name that is a piece of an earlier one is left out.
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
    """Return the first names that are not the beginning, the end or a word of one before them."""
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
    """Return True if a word is meaningful by itself; short numbers (of lines, counts, sizes) are not."""
    word = word.lstrip("~./-")
    return not word[0].isdigit() or len(word) >= _LONG_NUMBER


def _words_of(message: Message) -> set[str]:
    """Return the words in the texts and tool results of a message."""
    found: set[str] = set()
    for part in message.parts:
        if isinstance(part, Text | ToolResult):
            found.update(_WORD.findall(part.text[:_MOST_CHARS]))
    return found


def _words_quoted(message: Message) -> set[str]:
    """Return the words in backquotes in the texts of a message."""
    texts = (part.text[:_MOST_CHARS] for part in message.parts if isinstance(part, Text))
    return {word for text in texts for quoted in _QUOTED.findall(text) for word in _WORD.findall(quoted)}


def _words_used(message: Message) -> set[str]:
    """Return the words in the arguments of its calls, in the decoded values: in JSON, an escaped line break would stick
    to them."""
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
