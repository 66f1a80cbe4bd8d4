"""Units: groups of messages that an edit may not split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chatstack.context.edits.pairing import places_of
from chatstack.values.messages import Message
from chatstack.values.parts import Reasoning, Text, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class Unit:
    """A plain message, or an assistant message with all its tool calls and all their results, wherever they stand;
    likewise for provider items that name one another.

    ``positions`` are those of its messages, ascending. An open one has a call that still waits for its result.
    """

    positions: tuple[int, ...]
    is_open: bool = False


def is_users(message: Message) -> bool:
    """Return True if the user speaks in a message: a user message of tool results only, as one wire format has them,
    does not count."""
    return message.role == "user" and not (message.parts and all(type(part) is ToolResult for part in message.parts))


def items_in(message: Message) -> int:
    """Count the items of a message: one for each call and each result in it, and one if it says anything else.

    Source: VideoSDK's context window (items are messages, tool calls and tool results).
    """
    asked = said = 0
    for part in message.parts:
        kind = type(part)
        if kind is ToolCall or kind is ToolResult:
            asked += 1
        elif kind is not Reasoning and not (isinstance(part, Text) and not part.text):
            said = 1
    return asked + said or 1


def units_of(messages: Sequence[Message]) -> tuple[Unit, ...]:
    """Group messages into units, in the order of their first messages.

    A tool message that answers the calls of two assistant messages joins them into one unit.
    """
    pairs, places = places_of(messages)
    home = list(range(len(messages)))
    for answer, _, call, _, _ in places:
        _join(home, answer, call)
    if pairs.items is not None:
        for answer, call in pairs.items.joined:
            _join(home, answer, call)
    members: dict[int, list[int]] = {}
    for position, above in enumerate(home):
        if above == position:
            members[position] = [position]  # the first of its unit
        else:
            members[_home(home, position)].append(position)
    waiting = [position for position, _, _ in pairs.open_calls()]
    if pairs.items is not None:
        waiting.extend(pairs.items.waiting.values())
    open_homes = {_home(home, position) for position in waiting}
    return tuple(Unit(tuple(positions), first in open_homes) for first, positions in members.items())


def _join(home: list[int], position: int, other: int) -> None:
    """Make one unit of those that two positions belong to."""
    position, other = _home(home, position), _home(home, other)
    home[position] = home[other] = min(position, other)


def _home(home: list[int], position: int) -> int:
    """Return the first position of the unit that a position belongs to."""
    while home[position] != position:
        home[position] = home[home[position]]
        position = home[position]
    return position
