"""One long conversation of an agent, with and without layers: what is sent, at cache prices, beside what the Agents SDK
has for it. ``python -m tests.long_conversation`` prints the table of the README.

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
from typing import Any, NamedTuple, cast

from agents import Agent, RunConfig, Runner, SessionSettings, SQLiteSession, function_tool, set_tracing_disabled
from agents.extensions import ToolOutputTrimmer
from agents.testing import ScriptedModel, assistant_message, function_call

from chatstack import ChatStack, ContextWindowGuard, ToolResultClearer
from chatstack_openai_agents import AgentsModelClient, StackModel

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


@function_tool
def look(number: int) -> str:
    """Look up a report."""
    return text_of(number)


def answers() -> list[Any]:
    found: list[Any] = []
    for turn in range(TURNS):
        for number in range(turn * ROUNDS, (turn + 1) * ROUNDS):
            numbers = (number, 1_000 + number) if number % 4 == 0 else (number,)
            found.append([function_call("look", {"number": n}, call_id=f"c{n}") for n in numbers])
        found.append([assistant_message(f"Turn {turn} is done.")])
    return found


def pieces_of(items: Sequence[Any]) -> list[tuple[str, str]]:
    return [(item.get("role", ""), str(item)) for item in items]


def tokens_of(pieces: Sequence[tuple[str, str]]) -> int:
    return sum(len(text) // 4 + 4 for _, text in pieces)


def is_invalid(items: Sequence[Any]) -> bool:
    """Return True for a request that the API refuses: a result without its call before it, a call without its result,
    or no message of the user's."""
    open_calls: set[str] = set()
    for item in items:
        if item.get("type") == "function_call":
            open_calls.add(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in open_calls:
                return True
            open_calls.remove(item["call_id"])
    return bool(open_calls) or not any(item.get("role") == "user" for item in items)


def measured(name: str, asked: Sequence[Sequence[Any]]) -> Sent:
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


async def conversation(name: str, *, layers: bool = False, limit: int | None = None, **config: Any) -> Sent:
    model = ScriptedModel(answers())
    agent = Agent(name="planner", model=layered(model) if layers else model, tools=[look])
    session = SQLiteSession(name, session_settings=SessionSettings(limit=limit))
    for turn in range(TURNS):
        asked = f"Turn {turn}: do {'the first task' if turn == 0 else 'what comes next'}."
        await Runner.run(agent, asked, session=session, run_config=RunConfig(tracing_disabled=True, **config))
    session.close()
    return measured(name, [items_of(call.input) for call in model.calls])


def items_of(given: Any) -> Sequence[Any]:
    return [{"role": "user", "content": given}] if isinstance(given, str) else cast("list[Any]", given)


def layered(model: ScriptedModel) -> StackModel:
    stack = (
        ChatStack(AgentsModelClient(model))
        .use(ToolResultClearer, trigger={"tokens": LIMIT * 8 // 10}, keep={"messages": 3})
        .use(ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
    )
    return StackModel(stack.build())


async def main() -> list[Sent]:
    set_tracing_disabled(True)
    return [
        await conversation("nothing"),
        await conversation("chatstack", layers=True),
        await conversation("their `ToolOutputTrimmer`, with its defaults", call_model_input_filter=ToolOutputTrimmer()),
        await conversation("their session's limit, of 40 items", limit=40),
    ]


def table(found: Sequence[Sent]) -> str:
    rows = ["| | tokens sent | cost | broken prefixes | invalid | largest | without the task |", "|---" * 7 + "|"]
    for each in found:
        cells = [each.name, f"{each.tokens:,}", f"{each.cost:,.0f}", each.broken, each.invalid]
        rows.append(f"| {' | '.join(map(str, [*cells, f'{each.largest:,}', each.without_task]))} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(table(asyncio.run(main())) + "\n")
