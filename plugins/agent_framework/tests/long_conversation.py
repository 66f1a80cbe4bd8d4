"""One long conversation of an agent, with and without layers: what is sent, at cache prices, beside Agent Framework's
own compaction. ``python -m tests.long_conversation`` prints the table of the README.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

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
from chatstack.testing.long_conversation import LIMIT, ROUNDS, TURNS, Sent, calls_of, measured, question, report, table
from chatstack_agent_framework import StackMiddleware
from tests.scripted import TheirClient


def look(number: int) -> str:
    """Look up a report."""
    return report(number)


def answers() -> list[Any]:
    found: list[Any] = []
    for turn in range(TURNS):
        for numbers in calls_of(turn):
            found.append([Content.from_function_call(f"c{n}", "look", arguments=f'{{"number": {n}}}') for n in numbers])
        found.append(f"Turn {turn} is done.")
    return found


def pieces_of(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [
        (message.role, "".join(f"{c.type}{c.call_id}{c.name}{c.arguments}{c.text}{c.result}" for c in message.contents))
        for message in messages
    ]


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


async def conversation(name: str, **options: Any) -> Sent:
    client = TheirClient(answers(), function_invocation_configuration={"max_iterations": ROUNDS + 1})
    agent = Agent(client=client, tools=[look], **options)
    session = agent.create_session()
    for turn in range(TURNS):
        await agent.run(question(turn), session=session)
    return measured(name, [(pieces_of(messages), is_invalid(messages)) for messages in client.asked])


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


if __name__ == "__main__":
    sys.stdout.write(table(asyncio.run(main())) + "\n")
