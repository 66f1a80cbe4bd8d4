# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""What a stack holds of many conversations, beside their own size: ``uv run tests/benchmarks/memory.py``.

Conversations of 50 messages in rounds of tools go through one stack with one memory, each to its end, once by a caller
that keeps its messages, and once by one that sends fresh objects and keeps nothing. The size of a conversation is that
of its messages as they were read, before anybody has hashed, counted or edited them. *Beside* it is all that is
allocated while the calls are made, and still held afterwards, by whatever the stack shares: memory, calibration,
windows, spending, attempts, telemetry, a live view. Each row is made in a process of its own, so that its resident set
belongs to it; bytes are ``tracemalloc``'s, in another one, as that slows the calls down.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import gc
import json
import random
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from results import Run, add_options, positive  # beside this file

import chatstack
from chatstack.values.responses import ChatUpdate
from chatstack.workbench.live.conversations import Conversations

CONVERSATIONS = 2_000
MESSAGES = 50
SAMPLES = 16
LIMIT = 8_000
WORDS = ("file", "module", "import", "class", "def", "return", "value", "error", "warning", "test", "build", "path")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[chatstack.Message]).decode


class Sample(NamedTuple):
    """What is held after so many conversations; ``held`` is what the memory says."""

    conversations: int
    held: int
    traced: int
    resident: int


class Outcome(NamedTuple):
    """What one process has found."""

    own: int
    """Bytes of a conversation alone."""
    kept: int
    """Bytes of it that the memory keeps as its only holder: all, or none."""
    edits: int
    samples: list[Sample]
    forgotten: Sample
    objects: dict[str, float]
    lines: list[tuple[str, float]]

    @property
    def beside(self) -> float:
        """Bytes that each conversation adds, before any is let go of; what is held once for all does not count."""
        first, second = self.samples[:2]
        return (second.traced - first.traced) / (second.conversations - first.conversations) - self.kept

    def slope(self, of: Callable[[Sample], int]) -> float:
        """Bytes by which each conversation of the second half adds."""
        half, last = self.samples[len(self.samples) // 2 - 1], self.samples[-1]
        return (of(last) - of(half)) / (last.conversations - half.conversations)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=1)
    parser.add_argument("--conversations", type=positive, default=CONVERSATIONS)
    parser.add_argument("--megabytes", type=positive, default=64, help="bound of the memory (64)")
    parser.add_argument("--recipe", choices=RECIPES, help="only this one")
    parser.add_argument("--fresh", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=("traced", "resident"), help=argparse.SUPPRESS)
    parser.add_argument("--lines", type=int, default=0, help="the largest so many lines of code by bytes")
    given = parser.parse_args()
    if given.one is not None:
        made = Measured(given.recipe, fresh=given.fresh, traces=given.one == "traced", megabytes=given.megabytes)
        print(json.dumps(asyncio.run(made.outcome(given.conversations, given.lines))))
        return
    run = Run("memory", rounds=given.rounds, json=given.json)
    print(
        "| recipe | caller | own size | beside it | ratio | held / traced | bytes a conversation, second half, traced "
        "and resident | resident | after forget, of the most |\n|---|---|---|---|---|---|---|---|---|"
    )
    for recipe in RECIPES if given.recipe is None else [given.recipe]:
        for fresh in (False, True):
            traced = in_another_process(given, recipe, "traced", fresh=fresh)
            resident = in_another_process(given, recipe, "resident", fresh=fresh)
            print(row(recipe, fresh, traced, resident), flush=True)
            run.exact(f"{recipe}, {'fresh' if fresh else 'same'}: bytes beside a conversation", round(traced.beside))
            for line, size in traced.lines:
                print(f"    {size:8,.0f}  {line}")
            for name, number in traced.objects.items() if given.lines else ():
                print(f"    {number:8.1f}  {name}")
    run.write()


def in_another_process(given: argparse.Namespace, recipe: str, what: str, *, fresh: bool) -> Outcome:
    options = ["--conversations", str(given.conversations), "--megabytes", str(given.megabytes), "--recipe", recipe]
    options += ["--one", what, "--lines", str(given.lines), *(["--fresh"] if fresh else [])]
    done = subprocess.run([sys.executable, __file__, *options], check=True, capture_output=True, text=True)
    return msgspec.convert(json.loads(done.stdout), Outcome)


def row(recipe: str, fresh: bool, traced: Outcome, resident: Outcome) -> str:
    last = traced.samples[-1]
    most = max(each.resident for each in resident.samples)
    return (
        f"| {recipe}{' (edits)' if traced.edits else ''} | {'keeps nothing' if fresh else 'keeps its messages'} "
        f"| {traced.own:,} | {traced.beside:,.0f} | {traced.beside / traced.own:.3f} "
        f"| {last.held / max(1, last.traced):.2f} | {traced.slope(lambda each: each.traced):,.0f}, "
        f"{resident.slope(lambda each: each.resident):,.0f} | {most / 1e6:,.0f} MB "
        f"| {traced.forgotten.traced / last.traced:.3f}, {resident.forgotten.resident / most:.2f} |"
    )


# conversations


def conversation(number: int) -> list[chatstack.Message]:
    """Return 50 messages: a question, and rounds of one call and its result; a user speaks now and then."""
    rng = random.Random(number)
    messages = [chatstack.Message.user(f"task {number}: " + text(rng, 300))]
    while len(messages) < MESSAGES - 1:
        if len(messages) % 10 == 0:
            messages.append(chatstack.Message.assistant(text(rng, 300)))
            messages.append(chatstack.Message.user(text(rng, 200)))
        else:
            call = chatstack.ToolCall(f"call_{number}_{len(messages)}", "read_file", f'{{"path": "{text(rng, 40)}"}}')
            messages.append(chatstack.Message.assistant(text(rng, 120), call))
            messages.append(chatstack.Message.tool(call.id, text(rng, 2_400), name=call.name))
    return [*messages, chatstack.Message.assistant(text(rng, 300))]


def text(rng: random.Random, length: int) -> str:
    words: list[str] = []
    while length > 0:
        words.append(f"{rng.choice(WORDS)}{rng.randrange(100)}")
        length -= len(words[-1]) + 1
    return " ".join(words)


# stacks


class Model(chatstack.ChatFronts):
    """Answers with the next message of the conversation, and reports a plausible size."""

    def __init__(self) -> None:
        self.next = chatstack.Message.assistant("fine")
        self.counter = chatstack.CharCounter()

    async def send(self, request: chatstack.ChatRequest, /) -> chatstack.ChatStream:
        return await chatstack.ChatStream.primed(self.play(sum(map(size_of, request.messages))))

    async def play(self, size: int) -> AsyncGenerator[ChatUpdate, None]:
        usage = chatstack.Usage(size // 4 + 40, 20)
        yield ChatUpdate(text="f")
        yield ChatUpdate(message_done=self.next, usage=usage, finish_reason="stop")


class Writer(Model):
    """Writes summaries of some size."""

    async def send(self, request: chatstack.ChatRequest, /) -> chatstack.ChatStream:
        self.next = chatstack.Message.assistant(text(random.Random(len(request.messages)), 800))
        return await super().send(request)


def size_of(message: chatstack.Message) -> int:
    return sum(len(part.text) for part in message.parts if isinstance(part, chatstack.Text | chatstack.ToolResult))


def limits(stack: chatstack.ChatStack, limit: int) -> chatstack.ChatStack:
    return stack.use(
        chatstack.ToolResultClearer, trigger={"tokens": limit // 2}, keep={"messages": 3}, clear_tool_inputs=True
    ).use(chatstack.ContextWindowGuard, max_context_tokens=limit, prune_on_overflow=True)


RECIPES: dict[str, Callable[[chatstack.ChatStack], chatstack.ChatStack]] = {
    "nothing to edit": lambda stack: limits(stack, 10**8),
    "guard": lambda stack: stack.use(chatstack.ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True),
    "clearer and guard": lambda stack: limits(stack, LIMIT),
    "summarizer": lambda stack: stack.use(
        chatstack.Summarizer, max_tokens=LIMIT, keep_recent_turns=1, max_summary_tokens=600, summary_client=Writer()
    ),
    "clearer, summarizer, guard": lambda stack: (
        stack.use(chatstack.ToolResultClearer, trigger={"tokens": LIMIT // 2}, keep={"messages": 3})
        .use(
            chatstack.Summarizer,
            max_tokens=LIMIT // 2,
            keep_recent_turns=1,
            max_summary_tokens=600,
            summary_client=Writer(),
        )
        .use(chatstack.ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
    ),
}


class Measured:
    """One stack, and what it holds."""

    def __init__(self, recipe: str, *, fresh: bool, traces: bool, megabytes: int) -> None:
        self.fresh = fresh
        self.traces = traces
        self.edits = 0
        self.model = Model()
        self.memory = chatstack.ContextMemory(max_megabytes=megabytes)
        self.view = Conversations()
        stack = chatstack.ChatStack(self.model, memory=self.memory).use(
            chatstack.ProgressReporter, on_progress=self.told
        )
        stack = stack.use(chatstack.Budget, max_tokens=10**9, per="conversation")
        self.client = RECIPES[recipe](stack).build()
        self.kept: list[list[chatstack.Message]] = []
        self.nothing = 0

    def told(self, event: Any) -> None:
        self.edits += event.kind == "edit"
        self.view.take(event)

    async def outcome(self, conversations: int, lines: int) -> Outcome:
        await self.through(range(-20, 0))
        self.memory.forget()
        first, own = conversations // SAMPLES, 0
        if not self.fresh:
            self.kept = [_decode(_encode(conversation(number))) for number in range(conversations)]
        gc.collect()
        before = collections.Counter(type(each).__name__ for each in gc.get_objects())
        if self.traces:
            tracemalloc.start()
            kept = [_decode(_encode(conversation(number))) for number in range(50)]
            own = traced() // 50
            del kept
            self.nothing = traced()
        samples: list[Sample] = []
        objects: dict[str, float] = {}
        largest: list[tuple[str, float]] = []
        edits = self.edits
        for number in range(SAMPLES):
            await self.through(range(number * first, (number + 1) * first))
            samples.append(self.sample((number + 1) * first))
            if not number:
                after = collections.Counter(type(each).__name__ for each in gc.get_objects())
                objects = {name: each / first for name, each in (after - before).most_common(20)}
                largest = largest_lines(lines, first) if self.traces else []
        edits = self.edits - edits
        self.memory.forget()
        return Outcome(own, own if self.fresh else 0, edits, samples, self.sample(conversations), objects, largest)

    async def through(self, numbers: range) -> None:
        for number in numbers:
            whole = self.kept[number] if self.kept and number >= 0 else conversation(number)
            for at, answer in enumerate(whole):
                if answer.role == "assistant":
                    *messages, self.model.next = _decode(_encode(whole[: at + 1])) if self.fresh else whole[: at + 1]
                    await self.client.get_response(messages, conversation_id=f"c{number}")
        self.model.next = chatstack.Message.assistant("fine")

    def sample(self, conversations: int) -> Sample:
        gc.collect()
        now = traced() - self.nothing if self.traces else 0
        return Sample(conversations, self.memory.held_bytes, now, resident())


def traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def resident() -> int:
    fields = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4_096


def largest_lines(most: int, conversations: int) -> list[tuple[str, float]]:
    if not most:
        return []
    lines: list[tuple[str, float]] = []
    for each in tracemalloc.take_snapshot().statistics("lineno")[:most]:
        frame = each.traceback[0]
        where = "/".join(Path(frame.filename).parts[-2:])
        title = f"{where}:{frame.lineno} x{each.count / conversations:.1f}"
        lines.append((title, each.size / conversations))
    return lines


if __name__ == "__main__":
    main()
