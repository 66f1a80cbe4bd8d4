"""Grounding: the share of the values in recorded tool calls that were still in the request.

Of the values in the arguments of a recorded call, those count that occur word for word in the full context: the text of
all messages before the call (contents, arguments of calls as the JSON text and as the values in it) and the
instructions. Grounded are those that still occur in the request; a message that a layer edited counts by its new text.
Far ones are those that occur in the full context only outside the system messages, the instructions, the first and the
latest user message, and the last three units.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

import msgspec

from chatstack.context.units import units_of
from chatstack.values.messages import Message
from chatstack.values.parts import File, ProviderItem, Reasoning, Text, ToolCall, ToolResult
from chatstack.values.requests import ChatRequest

SHORTEST_TEXT = 4
"""Minimum length, in characters."""
SHORTEST_NUMBER = 3
"""Minimum length, in digits."""
NEAR_UNITS = 3
MOST_VALUES = 1_000
"""Maximum number of values looked at in one call."""

_BETWEEN = "\0"
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
    arguments = _decoded(call.arguments)
    words, rest = _commands_apart(arguments) if _SHELL.search(call.name.lower()) else ([], arguments)
    found = dict.fromkeys(words)
    for leaf in _leaves(rest):
        if isinstance(leaf, Number):
            if sum(character.isdigit() for character in leaf) >= SHORTEST_NUMBER:
                found[leaf] = None
        elif len(leaf) >= SHORTEST_TEXT:
            found[leaf] = None
    return tuple(found)[:MOST_VALUES]


def text_of(message: Message) -> str:
    """Return all texts of a message, one after the other."""
    return _BETWEEN.join(_texts(message))


class Wanted(msgspec.Struct, frozen=True):
    """A value that a recorded call took from its full context; ``holders`` numbers the texts that hold it."""

    value: str
    holders: frozenset[int]
    is_far: bool


class Grounding(msgspec.Struct):
    """Counts of the values that were looked for and found, and of the far ones among them."""

    values: int = 0
    found: int = 0
    far_values: int = 0
    far_found: int = 0

    @property
    def share(self) -> float | None:
        """The share that was found, 0 to 1; None if nothing was looked for."""
        return self.found / self.values if self.values else None

    @property
    def far_share(self) -> float | None:
        """The share of far values that was found, 0 to 1; None if none was looked for."""
        return self.far_found / self.far_values if self.far_values else None

    def merge(self, other: Grounding) -> None:
        """Add the counts of other calls."""
        self.values += other.values
        self.found += other.found
        self.far_values += other.far_values
        self.far_found += other.far_found


class Evidence:
    """An index of one conversation: which of its texts hold which values.

    A text is searched once for each value, however many calls and policies ask, and a message that a policy sends
    unchanged is not searched again. Only texts that a layer wrote are searched anew.
    """

    def __init__(self, messages: Sequence[Message], instructions: str = "") -> None:
        self._messages = messages
        self._instructions = instructions
        self._numbers: dict[Message, int] = {}
        self._at = [self._numbers.setdefault(message, len(self._numbers)) for message in messages]
        self._texts = [text_of(message) for message in self._numbers]
        self._known: dict[str, tuple[int, set[int]]] = {}
        self._wanted: dict[int, tuple[Wanted, ...]] = {}
        self._edited: dict[Message, str] = {}

    def weigh(self, position: int, sent: ChatRequest | None, into: Grounding) -> list[str]:
        """Count the values that the recorded message at that position needs and ``sent`` holds; return the rest.

        ``sent`` is None for a refused call, which holds no value.
        """
        wanted = self._wanted_at(position)
        lost: list[str] = []
        if not wanted:
            return lost
        numbers, others = (set[int](), ()) if sent is None else self._held(sent)
        for each in wanted:
            is_found = not each.holders.isdisjoint(numbers) or any(each.value in text for text in others)
            into.values += 1
            into.found += is_found
            into.far_values += each.is_far
            into.far_found += each.is_far and is_found
            if not is_found:
                lost.append(each.value)
        return lost

    def _held(self, sent: ChatRequest) -> tuple[set[int], Iterable[str]]:
        """Return the numbers of the conversation's texts in the request, and all other texts in it."""
        numbers: set[int] = set()
        others: dict[str, None] = {sent.options.instructions: None}
        for message in sent.messages:
            number = self._numbers.get(message)
            if number is not None:
                numbers.add(number)
                continue
            if message not in self._edited:
                self._edited[message] = text_of(message)
            others[self._edited[message]] = None
        return numbers, others

    def _wanted_at(self, position: int) -> tuple[Wanted, ...]:
        if position not in self._wanted:
            self._wanted[position] = tuple(self._find(position))
        return self._wanted[position]

    def _find(self, position: int) -> Iterator[Wanted]:
        calls = self._messages[position].calls
        values = [value for call in calls for value in values_of(call)]
        if not values:
            return
        near = self._near(position)
        end = max(self._at[:position], default=-1) + 1
        for value in values:
            holders = self._holders(value, end)
            stands_in_instructions = value in self._instructions
            if holders or stands_in_instructions:
                yield Wanted(value, holders, not stands_in_instructions and holders.isdisjoint(near))

    def _holders(self, value: str, end: int) -> frozenset[int]:
        """Return the numbers below ``end`` of the texts that hold a value.

        Texts are numbered by their first occurrence, so those before a call are below its ``end``.
        """
        looked, found = self._known.get(value, (0, set[int]()))
        if looked < end:
            found.update(number for number in range(looked, end) if value in self._texts[number])
            self._known[value] = (end, found)
        return frozenset(number for number in found if number < end)

    def _near(self, position: int) -> set[int]:
        """Return the numbers of the texts that any policy is expected to keep."""
        before = self._messages[:position]
        users = [at for at, message in enumerate(before) if message.role == "user"]
        near = {at for at, message in enumerate(before) if message.role == "system"}
        near.update(users[:1], users[-1:])
        for unit in units_of(before)[-NEAR_UNITS:]:
            near.update(unit.positions)
        return {self._at[at] for at in near}


def _commands_apart(arguments: object) -> tuple[list[str], object]:
    """Split a shell's arguments into the words of its commands and the other arguments."""
    if not isinstance(arguments, dict):
        return [], arguments
    fields = cast("dict[str, object]", arguments)
    commands = (text for name in _COMMANDS for text in _leaves(fields.get(name)))
    words = [word for text in commands for word in _WORD.findall(text)]
    return words, [value for name, value in fields.items() if name not in _COMMANDS]


def _texts(message: Message) -> Iterator[str]:
    for part in message.parts:
        if isinstance(part, ToolCall):
            yield part.arguments
            if "\\" in part.arguments:  # without escapes, the JSON text contains its strings as they are
                yield from _leaves(_decoded(part.arguments))
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


def _decoded(arguments: str) -> object:
    """Return the JSON value of a text; None if there is none, or it is nested too deeply."""
    try:
        return json.loads(arguments, parse_int=Number, parse_float=Number)
    except (ValueError, RecursionError):
        return None


def _leaves(value: object) -> Iterator[str]:
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
