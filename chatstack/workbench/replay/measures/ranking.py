"""The worth of a list of names, without a model: how high it ranks the name that a recorded call took from it.

For each value of a call that stands only in a list, all names of the list are ranked for the argument that the value
went into: first those of the form that this argument had before, then those whose label shares most words with the
call's surroundings (its other arguments, the text beside it, the latest user message). Told is the mean reciprocal
rank: with the labels as they are, and with the same labels in another order, which take as many tokens. What labels are
worth is the difference; of a list without labels both are equal.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from chatstack.context.strategies.name_lists import Names, without_lists
from chatstack.values.messages import Message
from chatstack.values.parts import ToolCall
from chatstack.values.requests import ChatRequest
from chatstack.workbench.replay.measures.values import decoded, text_of, values_of

_WORD = re.compile(r"[a-z0-9]{3,}")
_SHUFFLES = 20


class Ranking(msgspec.Struct):
    """Sums over the values that stand only in lists: how many, and their reciprocal ranks."""

    values: int = 0
    by_label: float = 0.0
    shuffled: float = 0.0

    @property
    def mean_by_label(self) -> float | None:
        """Mean reciprocal rank with the labels as they are, 0 to 1; None if there was no value."""
        return self.by_label / self.values if self.values else None

    @property
    def mean_shuffled(self) -> float | None:
        """Mean reciprocal rank with shuffled labels, 0 to 1; None if there was no value."""
        return self.shuffled / self.values if self.values else None


class Ranker:
    """Ranks the names in the lists of one conversation's requests."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages
        self._random = random.Random(0)  # shuffles are the same in every run

    def weigh(self, position: int, sent: ChatRequest, into: Ranking, rows: Sequence[Names] | None = None) -> None:
        """Rank the values of the calls in the message at that position which stand only in lists of the request.

        ``rows`` take the place of those lists, to see what other labels would be worth.
        """
        bare = [without_lists(message) for message in sent.messages]
        listed = [row for _, found in bare for row in found]
        if not listed:
            return
        texts = [text_of(message) for message, _ in bare]
        names = {name for row in listed for name in row.names}
        for call in self._messages[position].calls:
            forms = self._forms_before(position, call.name)
            for value in values_of(call):
                if value in names and not any(value in text for text in texts):
                    around = _words(f"{call.arguments} {self._around(position)}".replace(value, " "))
                    self._rank(value, rows or listed, around, forms.get(_slot_of(call, value), set()), into)

    def _rank(self, value: str, rows: Sequence[Names], around: set[str], forms: set[str], into: Ranking) -> None:
        if not any(value in row.names for row in rows):
            return
        labels = [row.label for row in rows]
        into.values += 1
        into.by_label += 1 / _rank_of(value, rows, labels, around, forms)
        shuffled = 0.0
        for _ in range(_SHUFFLES):
            self._random.shuffle(labels)
            shuffled += 1 / _rank_of(value, rows, labels, around, forms)
        into.shuffled += shuffled / _SHUFFLES

    def _around(self, position: int) -> str:
        """Return the text beside the calls, and the latest user message."""
        users = (message for message in reversed(self._messages[:position]) if message.role == "user")
        latest = next(users, None)
        return f"{self._messages[position].text} {latest.text if latest else ''}"

    def _forms_before(self, position: int, tool: str) -> Mapping[str, set[str]]:
        """Return the forms of the values in each argument of the tool, in the calls before."""
        forms: dict[str, set[str]] = {}
        for message in self._messages[:position]:
            for call in message.calls:
                if call.name == tool:
                    for value in values_of(call):
                        forms.setdefault(_slot_of(call, value), set()).add(_form_of(value))
        return forms


def _rank_of(value: str, rows: Sequence[Names], labels: Sequence[str], around: set[str], forms: set[str]) -> float:
    """Return the rank of a value, from 1; among equals, the mean of their ranks."""
    best: dict[str, tuple[bool, float]] = {}
    for row, label in zip(rows, labels, strict=True):
        words = _words(label)
        overlap = len(words & around) / len(words) if words else 0.0
        for name in row.names:
            score = (_form_of(name) in forms, overlap)
            best[name] = max(score, best.get(name, score))
    own = best[value]
    higher = sum(score > own for score in best.values())
    equal = sum(score == own for score in best.values())
    return higher + (equal + 1) / 2


def _slot_of(call: ToolCall, value: str) -> str:
    """Return the name of the argument that holds the value; "" if it is deeper, or one of a command's words."""
    arguments = decoded(call.arguments)
    if not isinstance(arguments, dict):
        return ""
    fields = cast("dict[str, object]", arguments)
    return next((name for name, each in fields.items() if each == value), "")


def _form_of(value: str) -> str:
    """Return the form of a value: letters, digits and signs, each run as one."""
    return re.sub(r"[A-Za-z]+", "a", re.sub(r"[0-9]+", "9", value))


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
