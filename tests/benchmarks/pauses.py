# /// script
# requires-python = ">=3.11"
# dependencies = ["chatstack-core"]
#
# [tool.uv.sources]
# chatstack-core = { path = "../..", editable = true }
# ///
"""How long one conversation keeps all others waiting: ``uv run tests/benchmarks/pauses.py``.

An event loop serves 50 short conversations through one stack, while a long one of the same stack is edited: as one that
nobody has seen yet (*unknown*), and on the call that reaches the limit (*live*). A row gives the longest piece of work
that held the loop, in milliseconds of CPU time of its thread, and what the whole edited call took in all threads: the
median of the rounds, and the largest. Work in other threads holds nobody for longer than the interpreter's switch
interval, 5 ms. What the fake model takes is in it; no SDK is.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import platform
import statistics
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

from results import Run  # beside this file

import chatstack
from chatstack import BuiltClient, ChatFronts, ChatRequest, ChatStack, ChatStream, ChatUpdate, Message, ToolCall, Usage

ROUNDS = 3
OTHERS = 50
LENGTHS = (1_500, 5_000)
LIMIT = 100_000


class FakeModel(ChatFronts):
    """Answers "fine" after a millisecond."""

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._play())

    async def _play(self) -> AsyncGenerator[ChatUpdate]:
        await asyncio.sleep(0.001)
        yield ChatUpdate(message_done=Message.assistant("fine"), usage=Usage(0, 1), finish_reason="stop")


STACKS: dict[str, Callable[[], BuiltClient]] = {
    "ToolResultClearer": lambda: (
        ChatStack(FakeModel()).use(chatstack.ToolResultClearer, trigger={"tokens": LIMIT}).build()
    ),
    "ContextWindowGuard": lambda: (
        ChatStack(FakeModel())
        .use(chatstack.ContextWindowGuard, max_context_tokens=LIMIT, prune_on_overflow=True)
        .build()
    ),
    "ClearThenDrop": lambda: ChatStack(FakeModel()).use(chatstack.ClearThenDrop(LIMIT)).build(),
}


def main() -> None:
    run = Run.from_command_line("pauses", __doc__, rounds=ROUNDS)
    logging.disable(logging.CRITICAL)
    load = os.getloadavg()[0]
    rows = [row for length in LENGTHS for name in STACKS for row in asyncio.run(measured(run, name, length))]
    print(
        f"\nCPython {platform.python_version()}, {os.cpu_count()} cores, load {load:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after; {run.rounds} rounds, CPU time\n"
    )
    print("| edited | longest piece on the loop | largest | the whole call |\n|---|---|---|---|")
    print("\n".join(rows))
    run.write()


async def measured(run: Run, name: str, length: int) -> list[str]:
    """Edit a conversation of that length in both ways, and return the rows of the table."""
    messages = conversation(length)
    pieces: dict[str, list[float]] = {"unknown": [], "live": []}
    whole: dict[str, list[float]] = {"unknown": [], "live": []}
    for _ in range(run.rounds):
        for title in pieces:
            client = STACKS[name]()
            calls = [messages] if title == "unknown" else [messages[:end] for end in range(3, length, 2)]
            async with others(client):
                found = [await held(client, call) for call in calls]
            pieces[title].append(max(piece for piece, _ in found))
            whole[title].append(max(seconds for _, seconds in found))
    rows: list[str] = []
    for title, values in pieces.items():
        told = f"{name}, {length:,} messages, {title}"
        run.seconds(told, values)
        rows.append(
            f"| {told} | {statistics.median(values) * 1e3:.1f} ms | {max(values) * 1e3:.1f} ms | "
            f"{statistics.median(whole[title]) * 1e3:.0f} ms |"
        )
    return rows


async def held(client: BuiltClient, messages: list[Message]) -> tuple[float, float]:
    """Return the longest piece on the loop while a call is answered, and what the process took meanwhile."""
    pieces: list[float] = []

    async def tick() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            pieces.append(now - last)
            last = now

    ticking = asyncio.ensure_future(tick())
    await asyncio.sleep(0)
    started = time.process_time()
    await client.get_response(messages)
    seconds = time.process_time() - started
    await asyncio.sleep(0)
    ticking.cancel()
    with suppress(asyncio.CancelledError):
        await ticking
    return max(pieces), seconds


@asynccontextmanager
async def others(client: BuiltClient) -> AsyncIterator[None]:
    """Let other conversations go on in this block, through the same stack."""

    async def talk(number: int) -> None:
        history = [Message.user(f"I am number {number}.")]
        while True:
            history += (await client.get_response(history)).messages
            history = [*history[-6:], Message.user("Go on.")]
            await asyncio.sleep(0.05)

    talking = [asyncio.ensure_future(talk(number)) for number in range(OTHERS)]
    await asyncio.sleep(0.1)
    gc.collect()
    gc.disable()  # a collection may take longer than any piece of work, and comes when it likes
    try:
        yield
    finally:
        gc.enable()
        for each in talking:
            each.cancel()
        await asyncio.gather(*talking, return_exceptions=True)


def conversation(length: int) -> list[Message]:
    """Make tool rounds of a coding agent, about a kilobyte for each result."""
    messages = [Message.user("Find out why the build fails.")]
    for number in range(length // 2):
        call = ToolCall(f"call_{number}", "read_file", f'{{"path": "src/module_{number}.py"}}')
        lines = (f"def function_{number}_{line}(argument): return argument + {number * line}" for line in range(14))
        messages += [Message.assistant("I look at it.", call), Message.tool(call.id, "\n".join(lines), name=call.name)]
    return messages[:length]


if __name__ == "__main__":
    main()
