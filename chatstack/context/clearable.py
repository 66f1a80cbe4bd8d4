"""Tool results that may be cleared, and where they stand."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import NamedTuple

from chatstack.context.context import Context
from chatstack.context.pairing import Place, answered_at, places_of
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall, ToolResult


class Clearable(NamedTuple):
    """A result and its call that may be cleared, one of them or both, and what that saves in tokens, as counted."""

    place: Place
    result: ToolResult | Message | None
    """The result without its content; its message, where that holds nothing else. None if it stays."""
    call: ToolCall | None
    """The call without its arguments; None if it stays."""
    saves: int
    since: int
    """The position of the message by which it was among the newest no more."""

    @property
    def first_position(self) -> int:
        """The first message that it changes."""
        return self.place[0] if self.call is None else self.place[2]


class Results:
    """The results in messages, in order, without those of tools that a strategy excludes: their places.

    The first ``settled`` ones are never cleared any more, in this context or a longer one. ``known`` is what may be
    cleared of others, with the messages of the result and of the call."""

    __slots__ = ("_answers", "_calls", "known", "places", "settled", "strategy")

    def __init__(self, strategy: object, exclude_tools: Collection[str], messages: Sequence[Message]) -> None:
        pairs, places = places_of(messages)
        self._answers = [place[0] for place in places]
        self._calls = sorted([*[place[2] for place in places], *[position for position, _, _ in pairs.open_calls()]])
        self.places = places
        if exclude_tools:
            answered = [answered_at(messages, place) for place in places]
            names = [each.result.name or each.call.name for each in answered]
            self.places = [place for place, name in zip(places, names, strict=True) if name not in exclude_tools]
        self.strategy = strategy
        self.settled = 0
        self.known: dict[Place, tuple[Message, Message, Clearable]] = {}

    def clearable(self, place: Place, messages: Sequence[Message]) -> Clearable | None:
        """Return what is known to be clearable in that place, unless it has been edited since."""
        known = self.known.get(place)
        is_still = known is not None and known[0] is messages[place[0]] and known[1] is messages[place[2]]
        return known[2] if known is not None and is_still else None

    def has_open_calls(self, length: int) -> bool:
        """Return True if a call among that many messages has no result among them."""
        return bisect_left(self._calls, length) != bisect_left(self._answers, length)


def of_open_units(context: Context, results: Results) -> frozenset[int]:
    """The positions of messages in units with a call that waits."""
    if not results.has_open_calls(len(context.messages)):
        return frozenset()
    return frozenset(position for unit in context.units if unit.is_open for position in unit.positions)
