"""One long conversation with tools, the same each time, and what of it was sent: for the figures of plugins.

12 turns of 8 rounds, whose tools answer with 200 to 6,000 characters of words. A token is four characters. What a
request has in common with the beginning of the one before it is read from the cache, at a tenth of the price.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias

LIMIT: Final = 30_000
TURNS: Final = 12
ROUNDS: Final = 8
_WORDS = "river stone cloud letter market engine window garden silver number paper winter signal harbor method copper"

Piece: TypeAlias = tuple[str, str]
"""The role and the text of a message, or of an item."""


class Sent(NamedTuple):
    """Totals over the requests of a conversation. ``cost`` is in tokens of input; the others count requests."""

    name: str
    tokens: int
    cost: float
    broken: int
    invalid: int
    largest: int
    without_task: int


def report(number: int) -> str:
    """Return what the tool answers, for the number that it is asked about."""
    chosen = random.Random(number)
    words = _WORDS.split()
    size = chosen.randint(200, 6_000)
    found = f"report {number}:"
    while len(found) < size:
        found += f" {chosen.choice(words)}{chosen.randint(0, 99)}"
    return found


def calls_of(turn: int) -> Iterator[tuple[int, ...]]:
    """Yield the numbers that each round of a turn asks about: one, or two at once."""
    for number in range(turn * ROUNDS, (turn + 1) * ROUNDS):
        yield (number, 1_000 + number) if number % 4 == 0 else (number,)


def question(turn: int) -> str:
    """Return the user's message. That of turn 0 is the task."""
    return f"Turn {turn}: do {'the first task' if turn == 0 else 'what comes next'}."


def measured(name: str, requests: Sequence[tuple[Sequence[Piece], bool]]) -> Sent:
    """Return the totals. Of each request come its pieces, and whether an API would refuse it."""
    total = broken = invalid = largest = without_task = 0
    cost, before = 0.0, list[Piece]()
    for pieces, is_invalid in requests:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, pieces, strict=False)))
        size, cached = _tokens_of(pieces), _tokens_of(pieces[:same])
        total += size
        cost += size - 0.9 * cached
        broken += same < len(before)
        invalid += is_invalid
        largest = max(largest, size)
        without_task += not any("the first task" in text for role, text in pieces if role == "user")
        before = list(pieces)
    return Sent(name, total, cost, broken, invalid, largest, without_task)


def _tokens_of(pieces: Sequence[Piece]) -> int:
    return sum(len(text) // 4 + 4 for _, text in pieces)


def table(found: Sequence[Sent]) -> str:
    """Return the table of a README."""
    rows = ["| | tokens sent | cost | broken prefixes | invalid | largest | without the task |", "|---" * 7 + "|"]
    for each in found:
        cells = [each.name, f"{each.tokens:,}", f"{each.cost:,.0f}", each.broken, each.invalid]
        rows.append(f"| {' | '.join(map(str, [*cells, f'{each.largest:,}', each.without_task]))} |")
    return "\n".join(rows)
