"""A worker as a process of its own.

Its model and its tools write a line to LOG before they do anything, so that tests can count what was paid and run.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import time
import warnings
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from chatstack import (
    ChatClient,
    ChatStack,
    FunctionInvoker,
    IterativeContext,
    IterativeLoop,
    MemoryWorkspace,
    Message,
    ProgressReporter,
    ToolCall,
    tool,
)
from chatstack.client.fronts import ChatFronts
from chatstack.client.protocol import ProviderInfo
from chatstack.client.stream import ChatStream
from chatstack.testing import ScriptedClient
from chatstack.values.requests import ChatRequest
from chatstack.values.responses import ChatUpdate
from chatstack_dbos import DurableLoop, DurableRuns, DurableTurn, RunWorker

QUICK = {"poll_seconds": 0.2, "heartbeat_seconds": 0.3, "dead_after_seconds": 2.0}
ITERATIONS = 5


@dataclass
class Log:
    """A file that all workers append to, a line at a time."""

    path: Path

    def write(self, kind: str, run: str, iteration: int, about: str = "") -> None:
        line = json.dumps([time.time(), os.getpid(), kind, run, iteration, about]) + "\n"
        with self.path.open("a") as file:  # opened anew: one write, at the end of the file
            file.write(line)

    def lines(self, kind: str | None = None) -> list[list[Any]]:
        if not self.path.exists():
            return []
        lines = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in lines if kind in (None, line[2])]


class Model(ChatFronts):
    """Asks for two tools in each iteration; each answer has a name of its own."""

    def __init__(self, log: Log, seconds: float) -> None:
        self.log = log
        self.seconds = seconds
        self.info = ProviderInfo(name="model", model="model")

    async def send(self, request: ChatRequest, /) -> ChatStream:
        run, iteration = request.messages[-1].text.split(" #")
        answer = uuid4().hex
        self.log.write("asked", run, int(iteration), answer)
        await asyncio.sleep(self.seconds)
        arguments = json.dumps({"run": run, "iteration": int(iteration)})
        message = Message.assistant(
            answer, ToolCall("1", "send_letter", arguments), ToolCall("2", "look_up", arguments)
        )
        return await ScriptedClient([message]).send(request)


class TurnModel(Model):
    """Asks for two tools in each of its rounds, and then answers."""

    rounds = ITERATIONS

    async def send(self, request: ChatRequest, /) -> ChatStream:
        run = str(request.conversation_id)
        round = sum(each.role == "assistant" for each in request.messages)
        if round < self.rounds:
            return await super().send(request.but(messages=(Message.user(f"{run} #{round}"),)))
        self.log.write("asked", run, round, "done")
        return await ScriptedClient(["done"]).send(request)


def make_loop(log: Log, seconds: float = 0.05, *, iterations: int = ITERATIONS, release: int = 1) -> IterativeLoop:
    """A loop of that many iterations. A later release has another prompt, and another tool."""

    @tool
    async def send_letter(run: str, iteration: int) -> str:
        """Send a letter; twice would be wrong."""
        log.write("sent", run, iteration)
        await asyncio.sleep(seconds)
        return f"sent {iteration}"

    @tool(idempotent=True)
    async def look_up(run: str, iteration: int) -> str:
        """Look something up."""
        log.write("looked", run, iteration)
        await asyncio.sleep(seconds)
        return f"found {iteration}"

    @tool
    def added_later() -> str:
        """Do what only the new release does."""
        return "new"

    def prompt(context: IterativeContext) -> str:
        log.write(f"prompted by release {release}", str(context.run_id), context.iteration)
        return f"{context.run_id} #{context.iteration}"

    return IterativeLoop(
        Model(log, seconds),
        "You write letters.",
        prompt,
        [send_letter, look_up, *([added_later] if release > 1 else [])],
        mode="single_call",
        max_iterations=iterations,
        max_stalled_iterations=1_000,
        name="letters",
    )


class Deadly(ChatFronts):
    """Kills the process that asks it."""

    info = ProviderInfo(name="deadly", model="deadly")

    async def send(self, request: ChatRequest, /) -> ChatStream:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Writer(ChatFronts):
    """Writes ten words, one each ``seconds``; with capitals if it is asked to stream."""

    def __init__(self, log: Log, seconds: float) -> None:
        self.log = log
        self.seconds = seconds
        self.info = ProviderInfo(name="writer", model="writer")

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._words(request))

    async def _words(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        words = [f"{'Word' if request.stream else 'word'}{number} " for number in range(10)]
        for number, word in enumerate(words):
            self.log.write("wrote", str(request.conversation_id), number)
            yield ChatUpdate(text=word)
            await asyncio.sleep(self.seconds)
        yield ChatUpdate(message_done=Message.assistant("".join(words)), finish_reason="stop")


def make_context(run_id: str, given: object) -> IterativeContext:
    return IterativeContext(workspace=MemoryWorkspace(), run_id=run_id)


def make_turn(log: Log, seconds: float, rounds: int = ITERATIONS) -> ChatClient:
    """A client whose tool loop asks for a letter in each round, as the loop does."""
    tools, model = make_loop(log, seconds).all_tools, TurnModel(log, seconds)
    model.rounds = rounds
    return (
        ChatStack(model)
        .use(ProgressReporter)
        .use(FunctionInvoker, tools=list(tools), max_tool_calls_per_turn=2 * rounds)
        .build()
    )


async def work(database: str, log: Log, settings: dict[str, Any]) -> None:
    """Work until a SIGTERM."""
    runs = DurableRuns(database, application=settings.pop("application", "chatstack"))
    seconds = settings.pop("seconds", 0.05)
    iterations = settings.pop("iterations", ITERATIONS)
    loop = make_loop(log, seconds, iterations=iterations, release=settings.pop("release", 1))
    writer, poison = Writer(log, seconds), make_loop(log, seconds)
    story = IterativeLoop(writer, "You tell stories.", lambda context: "Tell one.")
    answer = ChatStack(writer).use(FunctionInvoker).build()
    serves = {
        "letters": DurableLoop(loop, make_context),
        "turns": DurableTurn(make_turn(log, seconds, iterations)),
        "poison": DurableLoop(dataclasses.replace(poison, client=Deadly()), make_context),
        "stories": DurableLoop(story, make_context, streams_text=True),
        "answers": DurableTurn(answer, streams_text=True),
    }
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with RunWorker(runs, serves, **(QUICK | settings)):
        log.write("up", "", 0)
        await ended.wait()
    log.write("down", "", 0)
    await runs.aclose()


def main(database: str, log: Log, errors: str, settings: dict[str, Any]) -> None:
    """Work in this process; what it says goes to a file."""
    warnings.simplefilter("error")
    with open(errors, "ab") as file:
        os.dup2(file.fileno(), 2)
    asyncio.run(work(database, log, settings))
