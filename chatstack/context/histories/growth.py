"""Growth: what contexts that are beginnings of one another have in common, so that it is worked out once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence, Sized
from functools import cached_property
from typing import cast

from msgspec.structs import force_setattr

from chatstack.context.edits.context import Context
from chatstack.context.edits.pairing import Paired, Places, places_of
from chatstack.context.histories.recognised import Recognised
from chatstack.values.messages import Message
from chatstack.values.parts import Part


class Reading:
    """Findings about the messages of a request as they came, true for each longer request of its history.

    ``gone`` is what a strategy has worked out of those that its edits left out or replaced, ``said`` are the words in
    parts that it has asked for.
    """

    def __init__(self) -> None:
        self.gone: Sized | None = None
        self.said: dict[Part, frozenset[str]] = {}
        self._answers: list[int] = []
        self._looked_at = 0

    def answers(self, messages: Sequence[Message]) -> list[int]:
        """Return the positions of the model's answers in the messages of a request."""
        known, looked_at = self._answers, self._looked_at
        known += [
            at for at in range(looked_at, len(messages)) if messages[at].role == "assistant" and not messages[at].mark
        ]
        self._looked_at = max(looked_at, len(messages))
        return known[: bisect_left(known, len(messages))]


class Growth:
    """The messages of the longest of several contexts, each the beginning of the next.

    ``kept`` is what a strategy has worked out of them for the next contexts. It has to stay true when messages are
    replaced by the strategy's own edits, none of which moves a message, a call or a result. ``reading`` is what was
    read of the messages as they came, whatever edits do. ``find_pairs`` tells what their calls and results are to each
    other, where somebody knows; no such edit changes it. ``edits`` counts the edits on the way.
    """

    def __init__(
        self,
        find_messages: Callable[[], tuple[Message, ...]],
        kept: object = None,
        reading: Reading | None = None,
        find_pairs: Callable[[], Paired] | None = None,
        edits: int = 0,
    ) -> None:
        self._find_messages = find_messages
        self._find_pairs = find_pairs
        self.kept = kept
        self.reading = reading or Reading()
        self.edits = edits
        self._summed = (0, 0, 0)

    @classmethod
    def of(cls, context: Context) -> Growth:
        """Return the growth that a context belongs to; one of its own if it belongs to none."""
        return cast("Growth | None", context.__dict__.get("_growth")) or cls(lambda: context.messages)

    @staticmethod
    def is_known(context: Context) -> bool:
        """Return True if a context belongs to a growth."""
        return "_growth" in context.__dict__

    @cached_property
    def messages(self) -> tuple[Message, ...]:
        """The messages; put together when a strategy asks for them."""
        return self._find_messages()

    @cached_property
    def _paired(self) -> Paired:
        return places_of(self.messages)[0].paired() if self._find_pairs is None else self._find_pairs()

    @property
    def places(self) -> Places:
        """The places of the answers in the messages, in order."""
        return self._paired[0]

    @property
    def unanswered(self) -> list[int]:
        """The positions of calls that no result answers."""
        return self._paired[1]

    def includes(self, context: Context) -> Context:
        """Return the context, after noting on it that its messages are the first ones of these."""
        force_setattr(context, "_growth", self)
        return context

    def tokens_between(self, context: Context, first: int, end: int) -> int:
        """Return the size of a context's messages from ``first`` to before ``end``, going on from that of the last one:
        these are asked about again and again, as they grow."""
        known, summed, tokens = self._summed
        if known != first or summed > end:
            summed, tokens = first, 0
        tokens += sum(map(context.size_of, context.messages[summed:end]))
        self._summed = (first, max(first, end), tokens)
        return tokens

    def edited(self, find_messages: Callable[[], tuple[Message, ...]], *, in_place: bool) -> Growth:
        """Return the growth after an edit, ``in_place`` if it moved no message; it takes over what stays true."""
        kept, self.kept = self.kept, None
        if not in_place:
            return Growth(find_messages, reading=self.reading, edits=self.edits + 1)
        return Growth(find_messages, kept, self.reading, self._find_pairs, self.edits + 1)


def pairs_of(seen: Recognised) -> Callable[[], Paired] | None:
    """Return what tells the pairs of a request that holds its history in one piece, edited in place at most: they were
    found when its messages came. None if they were not, as for an edited form."""
    history, positions = seen.history, seen.positions
    if history.root is not history or not isinstance(positions, range):
        return None

    def found() -> Paired:
        (places, open_calls), head = history.paired(), positions.start
        end = bisect_left(places, (seen.length,))
        if end < len(places) or max(open_calls, default=-1) >= seen.length:  # it has grown since
            answered_since = [places[number][2] for number in range(end, len(places))]
            open_calls = [at for at in (*open_calls, *answered_since) if at < seen.length]
            places = places.first(end)
        if head:  # system messages
            places = places.behind(head)
            open_calls = [at + head for at in open_calls]
        return places, open_calls

    return found
