"""Mentions: the words in messages that are no longer sent, for a model that may have to recall them; names first."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias, cast

from chatstack.context.edits.context import Context
from chatstack.context.histories.growth import Growth
from chatstack.values.messages import Message
from chatstack.values.parts import Text, ToolCall, ToolResult

_WORD = re.compile(r"(?:(?<![A-Za-z0-9_./-])(?:--|\.{0,2}/|~/))?[A-Za-z0-9_][A-Za-z0-9_./-]{2,}[A-Za-z0-9_]")
"""A word of four or more characters; paths, versions, options and dotted names are one word."""
_QUOTED = re.compile(r"`([^`\n]{4,80})`")
_SIGN = re.compile(r"[_./-]+")
_NAME = re.compile(r"[_./0-9]|(?<=.)[A-Z]")
"""A sign by which a word looks like an identifier."""
_TELLING = re.compile(r"[~./-]*+(?:[^0-9]|.{6})")
"""Words that are meaningful by themselves; short numbers (of lines, counts, sizes) are not."""
_LONGEST = 100
"""Maximum length of a listed word in characters; a longer one is data, and would take the room of names."""
_MOST_CHARS = 200_000
"""Maximum number of characters of one text that are searched."""
_FEW = 8
"""Divisor: with more than an eighth of the words new, all are put in order anew."""

_STALE = 2
"""With as many ranks for each word in the order, most are of an earlier state: they go."""

_Rank: TypeAlias = tuple[bool, int, int, float, int, str]
"""The order of a word in the list, with the word. True: it is no name."""


class Gone:
    """The words in messages that are no longer sent. More may be added; no message comes back.

    Words are kept in order: a list costs what is new since the last one, and what it holds, not all that is gone.
    """

    def __init__(self) -> None:
        self.read: set[int] = set()
        """The positions of the messages."""
        self._used: Counter[str] = Counter()
        self._spoken: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._quoted: set[str] = set()
        self._furthest = -1
        self._changed: set[str] = set()
        """The words whose rank may have changed since the last list."""
        self._ranks: dict[str, _Rank] = {}
        self._in_order: list[_Rank] = []
        """A heap of the ranks; those that are not in ``_ranks`` any more are skipped."""

    def __len__(self) -> int:
        """Return the number of different words that are gone."""
        return len(self._last)

    def add(self, messages: Sequence[Message], positions: Iterable[int]) -> None:
        """Add those of the messages that stand at these positions, in order, and were not added before."""
        for at in positions:
            if at in self.read:
                continue
            message, is_later = messages[at], at > self._furthest
            own = _short(_words_used(message))
            self._used.update(own)
            quoted = _short(_words_quoted(message))
            self._quoted |= quoted
            words = _short(_words_of(message)) | own
            self._changed |= words | (quoted & self._last.keys())
            (self._spoken if message.role != "tool" else self._returned).update(words)
            if not is_later:
                words = {word for word in words if self._last.get(word, -1) < at}
            self._last.update(dict.fromkeys(words, at))
            self._furthest = at if is_later else self._furthest
            self.read.add(at)

    def mentions(self, left: Iterable[Message], most: int) -> list[str]:
        """Return at most ``most`` words that are in these messages but in none of ``left``, most telling first: names,
        then other words.

        Both are ordered by how often the model used them, then by how often messages mention them, then by how often
        results contain them, relative to their length, as room is short. A word that is a piece of an earlier one is
        left out, and so are numbers that tell nothing (of lines, counts, sizes).
        """
        in_sight: set[str] = set()
        for message in left:
            in_sight.update(_words_of(message), _words_used(message))
        self._rank_changed()
        looked_at: list[_Rank] = []
        words = (word for word in self._taken_in_order(looked_at) if word not in in_sight)
        found = _without_pieces(words, most)
        for rank in looked_at:
            heappush(self._in_order, rank)
        return found

    def last_position(self, word: str) -> int:
        """Return the position of the last message that holds a word."""
        return self._last[word]

    def is_told(self, word: str) -> bool:
        """Return True if the model has used a word, or a message that is no result has mentioned it."""
        return word in self._used or word in self._spoken

    def is_name(self, word: str) -> bool:
        """Return True if a word looks like an identifier (a path, a dotted, snake or camel case name, a number), the
        model used it in the arguments of a call, or it stands in backquotes in a message."""
        return word in self._used or word in self._quoted or _NAME.search(word) is not None

    def _taken_in_order(self, taken: list[_Rank]) -> Iterator[str]:
        while self._in_order:
            rank = heappop(self._in_order)
            if self._ranks[rank[-1]] is rank:
                taken.append(rank)
                yield rank[-1]

    def _rank_changed(self) -> None:
        """Rank the words that have changed."""
        used, spoken, returned, last = self._used, self._spoken, self._returned, self._last
        changed = {
            word: (
                not self.is_name(word),
                -used.get(word, 0),
                -spoken.get(word, 0),
                -returned.get(word, 0) / len(word),
                -last[word],
                word,
            )
            for word in self._changed
            if word in spoken or _TELLING.match(word)
        }
        self._changed.clear()
        self._ranks.update(changed)
        if len(changed) < len(self._in_order) // _FEW and len(self._in_order) < _STALE * len(self._ranks):
            for rank in changed.values():
                heappush(self._in_order, rank)
        else:
            self._in_order = list(self._ranks.values())
            heapify(self._in_order)


def words_gone(context: Context, gone: Sequence[int]) -> Gone:
    """Return the words in these messages of the request; those of earlier requests of a history are read already."""
    reading = Growth.of(context).reading
    words = reading.gone
    if not isinstance(words, Gone) or not words.read.issubset(gone):
        words = reading.gone = Gone()
    words.add(context.request.messages, gone)
    return words


def words_said(context: Context, message: Message) -> Iterator[frozenset[str]]:
    """Yield the words in each text and each call's arguments of a message, read once for a history."""
    said = Growth.of(context).reading.said
    for part in message.parts:
        if isinstance(part, Text | ToolCall):
            found = said.get(part)
            if found is None:
                texts = (part.text,) if isinstance(part, Text) else _texts_in(part.arguments)
                said[part] = found = frozenset(_words_in(texts))
            yield found


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


def _short(words: set[str]) -> set[str]:
    """Return the words that may be listed."""
    return {word for word in words if len(word) <= _LONGEST}


def _words_in(texts: Iterable[str]) -> set[str]:
    return {word for text in texts for word in _WORD.findall(text[:_MOST_CHARS])}


def _words_of(message: Message) -> set[str]:
    """Return the words in the texts and tool results of a message."""
    return _words_in(part.text for part in message.parts if isinstance(part, Text | ToolResult))


def _words_quoted(message: Message) -> set[str]:
    """Return the words in backquotes in the texts of a message."""
    texts = (part.text[:_MOST_CHARS] for part in message.parts if isinstance(part, Text))
    return _words_in(quoted for text in texts for quoted in _QUOTED.findall(text))


def _words_used(message: Message) -> set[str]:
    """Return the words in the arguments of its calls, in the decoded values: in JSON, an escaped line break would stick
    to them."""
    return _words_in(text for call in message.calls for text in _texts_in(call.arguments))


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
