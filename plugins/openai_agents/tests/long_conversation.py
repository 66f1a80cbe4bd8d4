"""One long conversation of an agent, with and without layers: what is sent, at cache prices, beside what the Agents SDK
has for it. ``python -m tests.long_conversation`` prints the table of the README.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any, cast

from agents import Agent, RunConfig, Runner, SessionSettings, SQLiteSession, function_tool, set_tracing_disabled
from agents.extensions import ToolOutputTrimmer
from agents.testing import ScriptedModel, assistant_message, function_call

from chatstack import ChatStack, ContextWindowGuard, ToolResultClearer
from chatstack.testing.long_conversation import LIMIT, TURNS, Sent, calls_of, measured, question, report, table
from chatstack_openai_agents import AgentsModelClient, StackModel


@function_tool
def look(number: int) -> str:
    """Look up a report."""
    return report(number)


def answers() -> list[Any]:
    found: list[Any] = []
    for turn in range(TURNS):
        for numbers in calls_of(turn):
            found.append([function_call("look", {"number": n}, call_id=f"c{n}") for n in numbers])
        found.append([assistant_message(f"Turn {turn} is done.")])
    return found


def pieces_of(items: Sequence[Any]) -> list[tuple[str, str]]:
    return [(item.get("role", ""), str(item)) for item in items]


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


async def conversation(name: str, *, layers: bool = False, limit: int | None = None, **config: Any) -> Sent:
    model = ScriptedModel(answers())
    agent = Agent(name="planner", model=layered(model) if layers else model, tools=[look])
    session = SQLiteSession(name, session_settings=SessionSettings(limit=limit))
    for turn in range(TURNS):
        asked = question(turn)
        await Runner.run(agent, asked, session=session, run_config=RunConfig(tracing_disabled=True, **config))
    session.close()
    asked = [items_of(call.input) for call in model.calls]
    return measured(name, [(pieces_of(items), is_invalid(items)) for items in asked])


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


if __name__ == "__main__":
    sys.stdout.write(table(asyncio.run(main())) + "\n")
