"""The texts of a conversation, the values in them, and the texts that a request holds."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Set
from operator import attrgetter
from typing import NamedTuple

from chatstack.context.strategies.name_lists import Names, without_lists
from chatstack.values.messages import Message
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.following import Following
from chatstack.workbench.replay.measures.values import BETWEEN, text_of

_bare = attrgetter("bare")


class SearchedTexts:
    """Texts in one piece, so that those which hold a value are found without a step for each that does not."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = list(texts)
        self._starts: list[int] = []
        start = 0
        for text in self._texts:
            self._starts.append(start)
            start += len(text) + len(BETWEEN)
        self._starts.append(start)
        self._all = "".join(f"{text}{BETWEEN}" for text in self._texts)

    def holding(self, value: str, start: int, end: int) -> Iterator[int]:
        """Yield the numbers, from ``start`` to below ``end``, of the texts that hold a value."""
        if BETWEEN in value:  # it could be found across two texts
            yield from (number for number in range(start, end) if value in self._texts[number])
            return
        while start < end and (at := self._all.find(value, self._starts[start], self._starts[end])) >= 0:
            number = bisect_right(self._starts, at) - 1
            yield number
            start = number + 1


class EditedText(NamedTuple):
    """The text of a message that a layer wrote: the whole, that without its lists of names, and their rows."""

    whole: str
    bare: str
    rows: tuple[Names, ...]

    @classmethod
    def of(cls, message: Message) -> EditedText:
        """Return the text of a message."""
        bare, rows = without_lists(message)
        whole = text_of(message)
        return cls(whole, text_of(bare) if rows else whole, rows)


class HeldTexts:
    """The texts of a request, followed from one request of a conversation to the next.

    ``known`` gives the number of each recorded message, ``edited`` keeps the texts of all others.
    """

    def __init__(self, known: dict[Message, int], edited: dict[Message, EditedText]) -> None:
        self._known = known
        self._edited = edited
        self._following = Following(self._take, self._drop)
        self._counts = Counter[int]()
        self._numbers: set[int] = set()
        self._others = Counter[EditedText]()
        self._listing: dict[EditedText, None] = {}
        self._all_bare: str | None = None

    def follow(self, request: ChatRequest) -> None:
        """Go on to that request."""
        self._following.follow(request.messages)

    @property
    def numbers(self) -> Set[int]:
        """The numbers of the recorded texts in the request."""
        return self._numbers

    @property
    def listing(self) -> Iterable[EditedText]:
        """The other texts in the request that have lists of names."""
        return self._listing

    def says(self, value: str) -> bool:
        """Return True if another text than the recorded ones holds the value outside its lists of names."""
        if BETWEEN in value:
            return any(value in text.bare for text in self._others)
        if self._all_bare is None:
            self._all_bare = BETWEEN.join(map(_bare, self._others))
        return value in self._all_bare

    def _take(self, message: Message) -> None:
        number = self._known.get(message)
        if number is not None:
            self._counts[number] += 1
            self._numbers.add(number)
            return
        text = self._edited.get(message)
        if text is None:
            text = self._edited[message] = EditedText.of(message)
        self._others[text] += 1
        if self._others[text] == 1:
            self._all_bare = None
            if text.rows:
                self._listing[text] = None

    def _drop(self, message: Message) -> None:
        number = self._known.get(message)
        if number is not None:
            self._counts[number] -= 1
            if not self._counts[number]:
                self._numbers.remove(number)
            return
        text = self._edited[message]
        self._others[text] -= 1
        if not self._others[text]:
            del self._others[text]
            self._listing.pop(text, None)
            self._all_bare = None


def held_below(holders: Set[int], end: int, held: Set[int]) -> bool:
    """Return True if one of the numbers below ``end`` is held."""
    if holders.isdisjoint(held):
        return False
    fewer, more = sorted((holders, held), key=len)
    return any(number < end and number in more for number in fewer)
