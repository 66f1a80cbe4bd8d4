# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core[openai,otel]"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What stays of 1,000 conversations that go on for ten minutes: ``uv run tests/benchmarks/soak.py [--minutes 60]``.

They go through one stack (tools, shaper, clearer, summarizer, guard, tracer) over HTTP, to a server in a process of its
own that fails one request in twenty: refusals, overflows, streams that are cut, stall, or turn to noise. A conversation
that has had its turns ends, and a new one takes its place; a turn that fails is tried again. After the warm-up resident
memory, live objects, file descriptors, tasks and threads are flat, and the memory of decisions within its bound, or the
exit code is 1: a line is fitted to the samples, and what it adds from its beginning to its end is compared with what
there is. Every tenth second or so belongs to the bare SDK, which asks the same server for the same, with its own loop
over the tools: throughput is the requests that were answered well, for each second.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import ctypes
import gc
import json
import logging
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import openai
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from soak_server import WORDS  # beside this file

from chatstack import (
    ChatStack,
    ChatStackError,
    ContextMemory,
    ContextWindowGuard,
    FunctionInvoker,
    Message,
    Summarizer,
    Telemetry,
    ToolResultClearer,
    ToolResultShaper,
)
from chatstack.providers.openai import OpenAIChatClient
from chatstack.stack.recipe import BuiltClient

STALL_SECONDS = 2.0
MEGABYTES = 24
"""The bound of the memory of decisions: small enough to be reached in the warm-up."""
TURNS = 6
"""Turns of a conversation; the first ones have fewer, so that not all end at a time."""
WARM_UP = 0.5
MOST_GROWTH = 0.05
Counts: TypeAlias = "collections.Counter[str]"


@dataclass
class Sample:
    """What there is at one moment; ``resident`` without what the allocator keeps for later."""

    seconds: float
    resident: int
    objects: int
    descriptors: int
    tasks: int
    threads: int
    held: int


@dataclass
class Outcome:
    """What the run has found."""

    minutes: float
    conversations: int
    begun: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    bare_seconds: float = 0.0
    bare_cpu_seconds: float = 0.0
    requests: int = 0
    bare_requests: int = 0
    spans: int = 0
    ended: Counts = field(default_factory=collections.Counter)
    bare_ended: Counts = field(default_factory=collections.Counter)
    samples: list[Sample] = field(default_factory=list[Sample])

    def measured(self) -> list[Sample]:
        """Return the samples after the warm-up."""
        return self.samples[int(len(self.samples) * WARM_UP) :]

    def growth(self, name: str) -> float:
        """Return what a fitted line adds over the measured samples, as a share of their mean."""
        chosen = self.measured()
        times, values = [each.seconds for each in chosen], [float(getattr(each, name)) for each in chosen]
        slope = statistics.linear_regression(times, values).slope
        return slope * (times[-1] - times[0]) / (statistics.fmean(values) or 1)

    def problems(self) -> list[str]:
        """Say what is not flat."""
        told: list[str] = []
        for name in ("resident", "objects"):
            if self.growth(name) > MOST_GROWTH:
                told.append(f"{name} grew by {self.growth(name):.1%} after the warm-up")
        chosen = self.measured()
        half = len(chosen) // 2
        for name in ("descriptors", "tasks", "threads"):
            first, last = (max(getattr(each, name) for each in part) for part in (chosen[:half], chosen[half:]))
            if last > first * 1.1 + 2:
                told.append(f"{name}: at most {first} in the first half after the warm-up, {last} in the second")
        most = max(each.held for each in self.samples)
        if most > MEGABYTES * 1_000_000:
            told.append(f"the memory of decisions held {most:,} bytes, of {MEGABYTES} megabytes")
        return told


class Counting(SpanExporter):
    """Counts spans, and keeps none."""

    def __init__(self) -> None:
        self.spans = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += len(spans)
        return SpanExportResult.SUCCESS


class Talk:
    """One conversation: its messages, in our form or in that of the SDK, and how many turns it has had."""

    def __init__(self, number: int) -> None:
        self.begin(number)
        self.turns = number % TURNS

    def begin(self, number: int) -> None:
        """Become a new conversation."""
        self.random = random.Random(number)
        self.id = f"talk-{number}"
        self.turns = 0
        self.messages: list[Any] = []

    def question(self) -> str:
        """Return what the user says next."""
        return " ".join(self.random.choices(WORDS, k=30))


def look(number: int) -> str:
    """Return rows of a made table."""
    words = random.Random(number)
    return "\n".join(" ".join(words.choices(WORDS, k=12)) for _ in range(40))


def stack_over(url: str, memory: ContextMemory) -> ChatStack:
    """Return the stack under test."""
    settings: dict[str, Any] = {"base_url": url, "api_key": "none", "max_retries": 0, "stall_seconds": STALL_SECONDS}

    async def look_up(number: int) -> str:
        """Look something up."""
        return look(number)

    return (
        ChatStack(OpenAIChatClient("soak", timeout_seconds=30, **settings), memory=memory)
        .use(FunctionInvoker, tools=[look_up])
        .use(ToolResultShaper, max_bytes=2_000)
        .use(ToolResultClearer, trigger={"tokens": 1_500}, keep={"messages": 3})
        .use(
            Summarizer,
            max_tokens=2_000,
            keep_recent_turns=2,
            summary_client=OpenAIChatClient("summary", timeout_seconds=30, **settings),
        )
        .use(ContextWindowGuard, max_context_tokens=3_000, prune_on_overflow=True)
    )


async def a_turn(client: BuiltClient, talk: Talk, outcome: Outcome) -> None:
    """Have one turn through the stack."""
    asked = [*talk.messages, Message.user(talk.question())]
    stream = talk.random.random() < 0.5
    try:
        if stream:
            async with client.get_streaming_response(asked, conversation_id=talk.id, timeout_seconds=60) as answer:
                async for _ in answer:
                    pass
                response = await answer.response()
        else:
            response = await client.get_response(asked, conversation_id=talk.id, timeout_seconds=60)
    except ChatStackError as error:
        outcome.ended[type(error).__name__] += 1
        return
    outcome.ended["answered"] += 1
    outcome.requests += response.rounds
    talk.messages = [*asked, *response.messages]
    talk.turns += 1


TOOL = {
    "type": "function",
    "function": {"name": "look_up", "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}}},
}


async def a_bare_turn(client: openai.AsyncOpenAI, talk: Talk, outcome: Outcome) -> None:
    """Have one turn with the bare SDK, which keeps to the last messages, as nothing else bounds them."""
    asked = [*talk.messages, {"role": "user", "content": talk.question()}]
    try:
        while True:
            stream: Any = await client.chat.completions.create(
                model="soak", messages=asked, tools=[TOOL], stream=True, stream_options={"include_usage": True}
            )  # type: ignore[call-overload]
            text, call, ended = "", None, False
            async with stream:
                async for chunk in stream:
                    for choice in chunk.choices:
                        text += choice.delta.content or ""
                        call = choice.delta.tool_calls[0] if choice.delta.tool_calls else call
                        ended |= choice.finish_reason is not None
            if not ended:
                raise EOFError
            outcome.bare_requests += 1
            if call is None:
                break
            calls = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": "look_up", "arguments": call.function.arguments},
                }
            ]
            asked.append({"role": "assistant", "content": None, "tool_calls": calls})
            found = look(json.loads(call.function.arguments)["number"])
            asked.append({"role": "tool", "tool_call_id": call.id, "content": found[:2_000]})
    except (openai.OpenAIError, EOFError, ValueError) as error:
        outcome.bare_ended[type(error).__name__] += 1
        return
    outcome.bare_ended["answered"] += 1
    talk.messages = [*asked, {"role": "assistant", "content": text}]
    talk.turns += 1


async def for_seconds(
    seconds: float, waiting: collections.deque[Talk], turn: Callable[[Talk], Any], width: int, begun: Callable[[], int]
) -> tuple[float, float]:
    """Let so many workers go round over the conversations; return the seconds that it took, and those of CPU time."""
    started, cpu = time.perf_counter(), time.process_time()

    async def work() -> None:
        while time.perf_counter() - started < seconds:
            talk = waiting.popleft()
            if talk.turns >= TURNS:
                talk.begin(begun())
            await turn(talk)
            waiting.append(talk)

    async with asyncio.TaskGroup() as group:
        for _ in range(width):
            group.create_task(work())
    return time.perf_counter() - started, time.process_time() - cpu


def sample(started: float, memory: ContextMemory) -> Sample:
    """Return what there is now."""
    gc.collect()
    with suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Sample(
        time.perf_counter() - started,
        resident,
        len(gc.get_objects()),
        len(os.listdir("/proc/self/fd")),
        len(asyncio.all_tasks()),
        threading.active_count(),
        memory.held_bytes,
    )


@asynccontextmanager
async def server() -> AsyncGenerator[str]:
    """Start the server; yield its address."""
    command = [sys.executable, str(Path(__file__).with_name("soak_server.py"))]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(await process.stdout.readline())}/v1"
    finally:
        process.terminate()
        await process.wait()


async def soak(minutes: float, conversations: int, width: int) -> Outcome:
    """Run, and return what was found."""
    outcome, memory, exporter = Outcome(minutes, conversations), ContextMemory(max_megabytes=MEGABYTES), Counting()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(BatchSpanProcessor(exporter))
    telemetry = Telemetry(tracer_provider=tracers)

    def begun() -> int:
        outcome.begun += 1
        return outcome.begun

    async with server() as url:
        talks = collections.deque(Talk(begun()) for _ in range(conversations))
        bare_talks = collections.deque(Talk(-number) for number in range(1, width + 1))
        stack, started = stack_over(url, memory), time.perf_counter()
        bare = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=STALL_SECONDS)
        period = min(25.0, minutes * 60 / 20)
        async with bare, stack.open({Telemetry: telemetry}.get) as client:
            while time.perf_counter() - started < minutes * 60:
                ours = lambda talk: a_turn(client, talk, outcome)  # noqa: E731
                seconds, cpu = await for_seconds(period * 0.8, talks, ours, width, begun)
                outcome.seconds, outcome.cpu_seconds = outcome.seconds + seconds, outcome.cpu_seconds + cpu
                await asyncio.sleep(0.1)  # what the SDK closes in tasks of its own
                outcome.samples.append(sample(started, memory))
                theirs = lambda talk: a_bare_turn(bare, talk, outcome)  # noqa: E731
                seconds, cpu = await for_seconds(period * 0.2, bare_talks, theirs, width, lambda: -1)
                outcome.bare_seconds += seconds
                outcome.bare_cpu_seconds += cpu
    tracers.shutdown()
    outcome.spans = exporter.spans
    return outcome


def report(outcome: Outcome) -> str:
    """Return the figures as text."""
    first, last = outcome.measured()[0], outcome.measured()[-1]
    failed = {name: count for name, count in outcome.ended.most_common() if name != "answered"}
    ours = (outcome.requests / outcome.seconds, outcome.cpu_seconds / outcome.requests * 1_000)
    bare = (outcome.bare_requests / outcome.bare_seconds, outcome.bare_cpu_seconds / outcome.bare_requests * 1_000)
    rows = [
        f"{outcome.minutes:g} minutes, {outcome.begun:,} conversations ({outcome.conversations:,} at a time), "
        f"{outcome.ended.total():,} turns, {outcome.spans:,} spans",
        f"the stack:    {outcome.requests:,} requests answered, {ours[0]:.0f} a second, {ours[1]:.1f} ms of CPU each",
        f"the bare SDK: {outcome.bare_requests:,} requests answered, {bare[0]:.0f} a second, "
        f"{bare[1]:.1f} ms of CPU each",
        f"ratio of throughput {ours[0] / bare[0]:.2f}, of CPU time {ours[1] / bare[1]:.2f}",
        f"turns that failed: {sum(failed.values()):,} ({', '.join(f'{name} {n:,}' for name, n in failed.items())})",
    ]
    for name in ("resident", "objects", "descriptors", "tasks", "threads", "held"):
        before, after = getattr(first, name), getattr(last, name)
        rows.append(
            f"{name:12} {before:>14,} after the warm-up {after:>14,} at the end, fitted {outcome.growth(name):+.2%}"
        )
    return "\n".join(rows + [f"NOT FLAT: {each}" for each in outcome.problems()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long it runs (default: 10; 60 for an hour)")
    parser.add_argument("--conversations", type=int, default=1_000)
    parser.add_argument("--width", type=int, default=32, help="turns at a time (default: 32)")
    parser.add_argument("--json", type=Path, help="write all samples there, too")
    asked = parser.parse_args()
    logging.getLogger("chatstack").addHandler(logging.NullHandler())  # warnings are many here, and counted elsewhere
    outcome = asyncio.run(soak(asked.minutes, asked.conversations, asked.width))
    print(report(outcome))
    if asked.json is not None:
        asked.json.write_text(json.dumps([asdict(each) for each in outcome.samples]))
    return 1 if outcome.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
