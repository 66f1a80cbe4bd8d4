"""Recordings for these tests, and figures without what a clock says."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator

from chatstack import ChatClient, ChatStack
from chatstack.workbench.replay.measures.measuring import WireCounter
from chatstack.workbench.replay.outcomes import Outcome
from chatstack.workbench.replay.policies import Policy, policies_for
from chatstack.workbench.replay.reading.recordings import BrokenLine, Recording
from chatstack.workbench.replay.setup import Setup


def setup_of(*policies: Policy, stories: int = 0) -> Setup:
    return Setup(policies, window=1_500, counter=WireCounter.best(), stories=stories)


COMPARED = setup_of(*policies_for([], ["nothing", "guard", "recommended"]), stories=3)


def talk(number: int, turns: int) -> Recording:
    """A conversation with calls, that is a batch by itself."""
    messages: list[object] = [{"role": "system", "content": f"Be brief, {number}."}]
    for turn in range(turns):
        call = {"name": "look", "arguments": f'{{"at": "finding {turn - 3}"}}'}
        messages += [
            {"role": "user", "content": f"question {turn}"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}],
            },
            {"role": "tool", "tool_call_id": f"call_{turn}", "content": f"finding {turn} of {number} " * 80},
            {"role": "assistant", "content": f"answer {turn}"},
        ]
    messages += [{"role": "user", "content": "and?"}] * (400 - len(messages))
    return Recording({"messages": messages}, "chat", f"talk-{number}", "gpt-4o", "talks.jsonl", number)


def items(count: int = 12) -> Iterator[Recording | BrokenLine]:
    """Batches, and among them what cannot be read."""
    for number in range(count):
        yield talk(number, 6 + number % 5)
        if number % 4 == 0:
            yield BrokenLine("talks.jsonl", 100 + number, "not valid JSON")
            yield Recording({"messages": [{"role": "nobody"}]}, "chat", "x", "", "talks.jsonl", 200 + number)


def large(count: int) -> Iterator[Recording]:
    """Conversations of 20,000 bytes."""
    for number in range(count):
        text = f"{number} ".ljust(20_000, "x")
        messages: list[object] = [{"role": "user", "content": text}, *[{"role": "user", "content": "q"}] * 40]
        messages.append({"role": "assistant", "content": "a"})
        yield Recording({"messages": messages}, "chat", f"{number}", "gpt-4o", "talks.jsonl", number)


def figures_of(outcome: Outcome) -> list[object]:
    """Everything that is told, without CPU time."""
    everything = [outcome.everything, *outcome.figures]
    return [
        *(dataclasses.replace(each, cpu_seconds=0.0) for each in everything),
        outcome.conversations,
        outcome.broken,
        outcome.stories,
        outcome.prices,
        outcome.unpriced,
    ]


def deadly(ceiling: int, model: ChatClient) -> ChatStack:
    """A policy that no worker survives."""
    if os.environ.get("DASK_WORKER_NAME") or "distributed.worker" in __import__("sys").modules:
        here = int(os.environ.get("REPLAYED_BY", "0"))
        if here != os.getpid():
            os.kill(os.getpid(), signal.SIGKILL)
    return ChatStack(model)
