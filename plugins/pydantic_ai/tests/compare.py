"""The same recorded conversations through an ``Agent``: bare, with a stack before the model, with their own compaction.

    uv run --with pydantic-ai-harness python -m tests.compare conversations.jsonl.gz [--first 40] [--ceiling 16000]

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
from typing import Any

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from chatstack import ChatRequest, ChatStack, ClearThenDrop, ContextWindowGuard, Message, ToolResultShaper
from chatstack.workbench.replay.measures.costs import Spending
from chatstack.workbench.replay.measures.measuring import Gauge, Measured, WireCounter
from chatstack.workbench.replay.summaries import SummaryCost, stand_in_summary
from chatstack_pydantic_ai import PydanticAIClient, StackedModel
from chatstack_pydantic_ai.messages import Converted

COUNTER = WireCounter.best()
SUMMARY_TOKENS = 500


class Figures:
    """What was sent to one agent's model, over all conversations."""

    def __init__(self, ceiling: int) -> None:
        self.ceiling = ceiling
        self.spending = Spending()
        self.calls = self.tokens = self.largest = self.faults = self.over = 0

    def add(self, measured: Measured) -> int:
        """Add a request, and return the tokens of it that come from the cache."""
        cached = self.spending.add([measured]).cached
        self.calls += 1
        self.tokens += measured.tokens
        self.largest = max(self.largest, measured.tokens)
        self.faults += bool(measured.fault)
        self.over += measured.tokens > self.ceiling
        return cached


class Played:
    """The model of one conversation, and the writer of its summaries."""

    def __init__(self, figures: Figures) -> None:
        self.answers: list[ModelResponse] = []
        self.model = FunctionModel(self._answer, model_name="recorded")
        self.writer = FunctionModel(self._summary, model_name="writer")
        self._figures = figures
        self._gauge = Gauge(COUNTER)
        self._asked = 0
        figures.spending.begin(None)

    def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        head = (Message.system(info.instructions),) if info.instructions else ()
        measured = self._gauge.measure(ChatRequest((*head, *Converted(messages).messages)), needs_user=True)
        cached = self._figures.add(measured)
        answer = self.answers[min(self._asked, len(self.answers) - 1)]
        self._asked += 1
        usage = RequestUsage(input_tokens=measured.tokens, cache_read_tokens=cached, output_tokens=100)
        return ModelResponse(answer.parts, usage=usage)

    def _summary(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        text = stand_in_summary(SUMMARY_TOKENS)
        size = sum(map(COUNTER.count_message, Converted(messages).messages))
        self._figures.spending.add_summary(SummaryCost(size, COUNTER.count_text(text)))
        return ModelResponse([TextPart(text)])


Recipe = Callable[[Played, int], tuple[Model, list[Any]]]


def ours(played: Played, ceiling: int) -> tuple[Model, list[Any]]:
    stack = (
        ChatStack(PydanticAIClient(played.writer))
        .use(ToolResultShaper, max_bytes=4_000)
        .use(ClearThenDrop(ceiling))
        .use(ContextWindowGuard, max_context_tokens=ceiling, prune_on_overflow=True)
    )
    return StackedModel(played.model, stack), []


def clearing(played: Played, ceiling: int) -> tuple[Model, list[Any]]:
    from pydantic_ai_harness import ClearToolResults

    return played.model, [ClearToolResults(max_tokens=ceiling, keep_pairs=3)]


def tiered(played: Played, ceiling: int) -> tuple[Model, list[Any]]:
    from pydantic_ai_harness import ClearToolResults, SummarizingCompaction, TieredCompaction

    summarizing = SummarizingCompaction(model=played.writer, max_messages=1, keep_messages=20)
    tiers = [ClearToolResults(max_tokens=1, keep_pairs=3), summarizing]
    return played.model, [TieredCompaction(tiers=tiers, target_tokens=ceiling)]


RECIPES: dict[str, Recipe] = {
    "bare": lambda played, ceiling: (played.model, []),
    "StackedModel, the recommended stack": ours,
    "ClearToolResults of Pydantic AI Harness": clearing,
    "TieredCompaction of Pydantic AI Harness": tiered,
}


def turns_of(messages: list[dict[str, Any]]) -> Iterator[tuple[str, list[ModelResponse]]]:
    """Yield each user message with the answers to it."""
    said, answers = "", list[ModelResponse]()
    for message in messages:
        if message["role"] == "user":
            if said:
                yield said, answers
            said, answers = str(message["content"]), []
        elif message["role"] == "assistant":
            calls = [
                ToolCallPart(call["function"]["name"], call["function"]["arguments"], call["id"])
                for call in message.get("tool_calls") or ()
            ]
            answers.append(ModelResponse([TextPart(str(message["content"] or "")), *calls]))
    yield said, answers


async def play(messages: list[dict[str, Any]], recipe: Recipe, figures: Figures) -> None:
    """Play one conversation through an agent."""
    results = {each["tool_call_id"]: str(each["content"]) for each in messages if each["role"] == "tool"}
    played = Played(figures)
    model, capabilities = recipe(played, figures.ceiling)
    system = next((str(each["content"]) for each in messages if each["role"] == "system"), None)
    agent = Agent(model, instructions=system, capabilities=capabilities)

    @agent.tool
    def bash(context: RunContext[None], command: str = "") -> str:
        return results.get(context.tool_call_id or "", "")

    history: list[ModelMessage] = []
    for said, answers in turns_of(messages):
        played.answers.extend(answers)
        if not answers or answers[-1].tool_calls:
            played.answers.append(ModelResponse([TextPart("done")]))
        unlimited = UsageLimits(request_limit=None)
        history = (await agent.run(said, message_history=history, usage_limits=unlimited)).all_messages()


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
    for name, recipe in RECIPES.items():
        figures = Figures(asked.ceiling)
        for messages in conversations:
            asyncio.run(play(messages, recipe, figures))
        base = base or figures.spending.cost
        told = [f"{n:,}" for n in (figures.calls, figures.tokens, figures.largest, figures.over)]
        told += [f"{figures.spending.cost / base:.3f}", str(figures.spending.prefix_breaks), str(figures.faults)]
        print(f"| {name} | {' | '.join(told)} |", flush=True)


if __name__ == "__main__":
    main()
