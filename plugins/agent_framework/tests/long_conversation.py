"""One long conversation of an agent, with and without layers: what is sent, at cache prices, beside Agent Framework's
own compaction. ``python -m tests.long_conversation`` prints the table of the README.

The conversation is the same each time: 12 turns of 8 rounds, whose tools answer with 200 to 6,000 characters of words.
The model's answers are fixed, so only what is sent differs. A token is four characters. Of a request, what the one
before it begins with is read from the cache at a tenth of the price.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from agent_framework import (
    Agent,
    CharacterEstimatorTokenizer,
    Content,
    ContextWindowCompactionStrategy,
    Message,
    SlidingWindowStrategy,
    TokenBudgetComposedStrategy,
    ToolResultCompactionStrategy,
)

from chatstack import ChatStack, ContextWindowGuard, ToolResultClearer
from chatstack_agent_framework import StackMiddleware
from tests.scripted import TheirClient

LIMIT = 30_000
TURNS, ROUNDS = 12, 8
WORDS = "river stone cloud letter market engine window garden silver number paper winter signal harbor method copper"


class Sent(NamedTuple):
    """What came of a conversation."""

    name: str
    tokens: int
    cost: float
    broken: int
    invalid: int
    largest: int
    without_task: int


def text_of(seed: int) -> str:
    chosen = random.Random(seed)
    words = WORDS.split()
    size = chosen.randint(200, 6_000)
    found = f"report {seed}:"
    while len(found) < size:
        found += f" {chosen.choice(words)}{chosen.randint(0, 99)}"
    return found


def look(number: int) -> str:
    """Look up a report."""
    return text_of(number)


def answers() -> list[Any]:
    found: list[Any] = []
    for turn in range(TURNS):
        for number in range(turn * ROUNDS, (turn + 1) * ROUNDS):
            numbers = (number, 1_000 + number) if number % 4 == 0 else (number,)
            found.append([Content.from_function_call(f"c{n}", "look", arguments=f'{{"number": {n}}}') for n in numbers])
        found.append(f"Turn {turn} is done.")
    return found


def pieces_of(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [
        (message.role, "".join(f"{c.type}{c.call_id}{c.name}{c.arguments}{c.text}{c.result}" for c in message.contents))
        for message in messages
    ]


def tokens_of(pieces: Sequence[tuple[str, str]]) -> int:
    return sum(len(text) // 4 + 4 for _, text in pieces)


def is_invalid(messages: Sequence[Message]) -> bool:
    """Return True for a request that providers refuse: a result without its call, a call without its result, or no
    message of the user's."""
    open_calls: set[str] = set()
    for message in messages:
        calls = {str(c.call_id) for c in message.contents if c.type == "function_call"}
        results = {str(c.call_id) for c in message.contents if c.type == "function_result"}
        if results - open_calls or (open_calls and not results):
            return True
        open_calls = (open_calls - results) | calls
    return bool(open_calls) or not any(message.role == "user" for message in messages)


def measured(name: str, asked: Sequence[Sequence[Message]]) -> Sent:
    total = broken = invalid = largest = without_task = 0
    cost, before = 0.0, list[tuple[str, str]]()
    for messages in asked:
        pieces = pieces_of(messages)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, pieces, strict=False)))
        size, cached = tokens_of(pieces), tokens_of(pieces[:same])
        total += size
        cost += size - 0.9 * cached
        broken += same < len(before)
        invalid += is_invalid(messages)
        largest = max(largest, size)
        without_task += not any("the first task" in text for role, text in pieces if role == "user")
        before = pieces
    return Sent(name, total, cost, broken, invalid, largest, without_task)


async def conversation(name: str, **options: Any) -> Sent:
    client = TheirClient(answers(), function_invocation_configuration={"max_iterations": ROUNDS + 1})
    agent = Agent(client=client, tools=[look], **options)
    session = agent.create_session()
    for turn in range(TURNS):
        await agent.run(f"Turn {turn}: do {'the first task' if turn == 0 else 'what comes next'}.", session=session)
    return measured(name, client.asked)


def layers() -> StackMiddleware:
    return StackMiddleware(
        ChatStack()
        .use(ToolResultClearer, trigger={"tokens": LIMIT * 8 // 10}, keep={"messages": 3})
        .use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
    )


def variants() -> dict[str, dict[str, Any]]:
    tokenizer = CharacterEstimatorTokenizer()
    strategies = [
        ToolResultCompactionStrategy(keep_last_tool_call_groups=1),
        SlidingWindowStrategy(keep_last_groups=20),
    ]
    return {
        "nothing": {},
        "chatstack": {"middleware": [layers()]},
        "their `ContextWindowCompactionStrategy`, as their harness sets it": {
            "compaction_strategy": ContextWindowCompactionStrategy(
                max_context_window_tokens=LIMIT + 2_000, max_output_tokens=2_000, tokenizer=tokenizer
            ),
        },
        "their `TokenBudgetComposedStrategy`, as in their samples": {
            "compaction_strategy": TokenBudgetComposedStrategy(
                token_budget=LIMIT, tokenizer=tokenizer, strategies=strategies
            ),
        },
    }


async def main() -> list[Sent]:
    return [await conversation(name, **options) for name, options in variants().items()]


def table(found: Sequence[Sent]) -> str:
    rows = ["| | tokens sent | cost | broken prefixes | invalid | largest | without the task |", "|---" * 7 + "|"]
    for each in found:
        cells = [each.name, f"{each.tokens:,}", f"{each.cost:,.0f}", each.broken, each.invalid]
        rows.append(f"| {' | '.join(map(str, [*cells, f'{each.largest:,}', each.without_task]))} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(table(asyncio.run(main())) + "\n")
