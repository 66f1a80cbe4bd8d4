"""The same recorded conversations through ``create_agent``: bare, with a stack in the middleware, with LangChain's own.

    uv run python -m tests.compare conversations.jsonl.gz [--first 40] [--ceiling 16000]

A file holds one JSON object a line, with ``messages`` in the form of OpenAI's chat completions. The agent is real, its
model and its tools give back what was recorded, and the model reports as usage what was measured. Every request that
reaches the model is measured: its tokens, its cost with a prompt cache (a token read costs 0.1, one written 1.25 of an
uncached one), edits (calls whose request no longer begins with the whole one before), and faults (calls without
results, results without calls, no user message).
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from langchain.agents import create_agent
from langchain.agents.middleware import ClearToolUsesEdit, ContextEditingMiddleware, SummarizationMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_messages
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata
from langchain_core.tools import InjectedToolCallId
from langgraph.checkpoint.memory import InMemorySaver

from chatstack import ChatRequest, ChatStack, ClearThenDrop, ContextWindowGuard, ToolResultShaper
from chatstack.workbench.replay.measures.costs import Spending
from chatstack.workbench.replay.measures.measuring import Gauge, Measured, WireCounter
from chatstack.workbench.replay.summaries import SummaryCost, stand_in_summary
from chatstack_langchain import LangChainClient, StackMiddleware
from chatstack_langgraph import from_langchain
from tests.models import ScriptedModel

COUNTER = WireCounter.best()
SUMMARY_TOKENS = 500


class Figures:
    """What was sent to one agent's model, over all conversations."""

    def __init__(self) -> None:
        self.spending = Spending()
        self.calls = self.tokens = self.largest = self.faults = self.over = 0

    def add(self, measured: Measured, ceiling: int) -> int:
        """Add a request, and return the tokens of it that come from the cache."""
        cached = self.spending.add([measured]).cached
        self.calls += 1
        self.tokens += measured.tokens
        self.largest = max(self.largest, measured.tokens)
        self.faults += bool(measured.fault)
        self.over += measured.tokens > ceiling
        return cached


class Played(ScriptedModel):
    """Plays a recorded conversation; what was measured of a request is its usage."""

    figures: Any
    ceiling: int
    gauge: Any = None

    def _next(self, messages: list[BaseMessage], kwargs: dict[str, Any]) -> AIMessage:
        answer = super()._next(messages, kwargs)
        self.gauge = self.gauge or Gauge(COUNTER)
        request = ChatRequest(tuple(from_langchain(messages, keep_rest=False)))
        measured = self.gauge.measure(request, needs_user=True)
        size, cached = measured.tokens, self.figures.add(measured, self.ceiling)
        answer.usage_metadata = UsageMetadata(
            input_tokens=size,
            output_tokens=100,
            total_tokens=size + 100,
            input_token_details=InputTokenDetails(cache_read=cached),
        )
        return answer


class Writer(ScriptedModel):
    """Writes summaries of a fixed size, and keeps what they cost."""

    costs: list[SummaryCost] = []  # noqa: RUF012 - a field of pydantic's, which copies it

    def _next(self, messages: list[BaseMessage], kwargs: dict[str, Any]) -> AIMessage:
        text = stand_in_summary(SUMMARY_TOKENS)
        size = sum(map(COUNTER.count_message, from_langchain(messages, keep_rest=False)))
        self.costs.append(SummaryCost(size, COUNTER.count_text(text)))
        return AIMessage(text)


Middleware = Callable[[Writer, int], list[Any]]


def ours(writer: Writer, ceiling: int) -> list[Any]:
    stack = (
        ChatStack(LangChainClient(writer))
        .use(ToolResultShaper, max_bytes=4_000)
        .use(ClearThenDrop(ceiling))
        .use(ContextWindowGuard, max_context_tokens=ceiling, prune_on_overflow=True)
    )
    return [StackMiddleware(stack)]


def clearing(writer: Writer, ceiling: int) -> list[Any]:
    return [ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=ceiling)])]


def summarizing(writer: Writer, ceiling: int) -> list[Any]:
    return [SummarizationMiddleware(writer, trigger=("tokens", ceiling))]


RECIPES: dict[str, Middleware] = {
    "bare": lambda writer, ceiling: [],
    "StackMiddleware, the recommended stack": ours,
    "ContextEditingMiddleware": clearing,
    "SummarizationMiddleware": summarizing,
}


def turns_of(messages: list[dict[str, Any]]) -> Iterator[tuple[str, list[AIMessage]]]:
    """Yield each user message with the answers to it."""
    said, answers = "", list[AIMessage]()
    for message in messages:
        if message["role"] == "user":
            if said:
                yield said, answers
            said, answers = str(message["content"]), []
        elif message["role"] == "assistant":
            (answer,) = convert_to_messages([message])
            answers.append(answer)  # type: ignore[arg-type]
    yield said, answers


async def play(messages: list[dict[str, Any]], middleware: Middleware, ceiling: int, figures: Figures) -> None:
    """Play one conversation through an agent."""
    results = {each["tool_call_id"]: str(each["content"]) for each in messages if each["role"] == "tool"}

    def bash(call_id: Annotated[str, InjectedToolCallId], command: str = "") -> str:
        """Run a command."""
        return results.get(call_id, "")

    writer = Writer(answers=["-"])
    system = next((str(each["content"]) for each in messages if each["role"] == "system"), None)
    figures.spending.begin(None)
    model = Played(answers=[], figures=figures, ceiling=ceiling)
    layers = middleware(writer, ceiling)
    agent = create_agent(model, [bash], system_prompt=system, middleware=layers, checkpointer=InMemorySaver())
    for said, answers in turns_of(messages):
        model.answers.extend(answers)
        if not answers or answers[-1].tool_calls:
            model.answers.append(AIMessage("done"))
        thread: Any = {"configurable": {"thread_id": "t"}, "recursion_limit": 10_000}
        await agent.ainvoke({"messages": [HumanMessage(said)]}, thread)
    for cost in writer.costs:
        figures.spending.add_summary(cost)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--first", type=int, default=40)
    parser.add_argument("--ceiling", type=int, default=16_000)
    asked = parser.parse_args()
    with gzip.open(asked.file, "rt") if asked.file.suffix == ".gz" else asked.file.open() as lines:
        conversations = [json.loads(line)["messages"] for line, _ in zip(lines, range(asked.first), strict=False)]
    print(f"{len(conversations)} conversations, ceiling {asked.ceiling:,}, counted by {COUNTER.name}")
    print("| | calls | tokens sent | largest | over the ceiling | cost | edits | faults |")
    print("|---|---|---|---|---|---|---|---|")
    base = 0
    for name, middleware in RECIPES.items():
        figures = Figures()
        for messages in conversations:
            asyncio.run(play(messages, middleware, asked.ceiling, figures))
        base = base or figures.spending.cost
        told = [f"{n:,}" for n in (figures.calls, figures.tokens, figures.largest, figures.over)]
        told += [f"{figures.spending.cost / base:.3f}", str(figures.spending.prefix_breaks), str(figures.faults)]
        print(f"| {name} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
