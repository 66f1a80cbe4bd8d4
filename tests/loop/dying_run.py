"""A program that runs a loop over a folder and a journal, and kills itself at a given point of iteration 7, once.

``python -m tests.loop.dying_run FOLDER POINT [idempotent]`` prints what the run came to as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from chatstack import ChatRequest, ChatStream, ChatUpdate, Message, Usage, tool
from chatstack.client.fronts import ChatFronts
from chatstack.loop.context import IterativeContext
from chatstack.loop.folder import FolderWorkspace
from chatstack.loop.iterative import IterativeLoop
from chatstack.stores.sqlite_journal import SQLiteJournal
from tests.loop.runs import call

LAST, FATAL = 8, 7
POINTS = (
    "prompt",
    "first model call",
    "before the first tool",
    "in a tool",
    "between two tools",
    "second model call",
    "end of the iteration",
    "between iterations",
)


def line(folder: Path, name: str, text: str) -> None:
    with (folder / name).open("a") as log:
        log.write(f"{text}\n")


class Killer:
    """Kills the process, as nothing can prevent it, the first time that it comes to the point."""

    def __init__(self, folder: Path, point: str) -> None:
        self.folder = folder
        self.point = point

    def at(self, point: str, iteration: int) -> None:
        killed = self.folder / "killed"
        if point == self.point and iteration == FATAL and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Model(ChatFronts):
    """Has each iteration note two lines, and says how it went. A call is 100 tokens."""

    def __init__(self, killer: Killer) -> None:
        self.killer = killer

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await ChatStream.primed(self._answer(request))

    async def _answer(self, request: ChatRequest) -> AsyncGenerator[ChatUpdate, None]:
        iteration = int(request.messages[0].text.split()[1])
        results = [str(result.output) for message in request.messages for result in message.results]
        line(self.killer.folder, "asked", f"{iteration} {len(results)}")
        if results:
            message = Message.assistant("; ".join(results))
            yield ChatUpdate(text=message.text)
        else:
            calls = [call("note", f"c{which}", text=f"{iteration}{which}") for which in "ab"]
            message = Message("assistant", tuple(calls))
            for each in calls:
                yield ChatUpdate(part=each)
        self.killer.at("second model call" if results else "first model call", iteration)
        yield ChatUpdate(message_done=message, usage=Usage(90, 10), finish_reason="stop")


async def main(folder: Path, point: str, *, idempotent: bool, seconds: float = 0.0) -> dict[str, Any]:
    killer = Killer(folder, point)
    workspace = FolderWorkspace(folder / "workspace")
    journal = SQLiteJournal(folder / "runs.db")

    @tool(idempotent=idempotent)
    async def note(text: str) -> str:
        """Notes a line."""
        line(folder, "ran", text)
        await asyncio.sleep(seconds)
        if text.endswith("b"):
            killer.at("in a tool", int(text[:-1]))
        workspace.write(f"{text}.md", text)
        context.state["notes"] = [*context.state.get("notes", []), text]
        return f"noted {text}"

    def prompt(context: IterativeContext) -> str:
        context.state["prompts"] = context.state.get("prompts", 0) + 1
        killer.at("prompt", context.iteration)
        return f"iteration {context.iteration} {workspace.list()}"

    def called(call: Any, context: IterativeContext) -> None:
        killer.at("between two tools" if call.id == "cb" else "before the first tool", context.iteration)

    context = IterativeContext(workspace=workspace, run_id="r1")
    loop = IterativeLoop(
        Model(killer),
        "Note.",
        prompt,
        [note],
        is_complete=lambda context: context.iteration == LAST,
        max_concurrency=1,
        max_tokens=10_000,
        journal=journal,
        on_tool_call=called,
        on_iteration_start=lambda context: killer.at("between iterations", context.iteration),
        on_iteration_end=lambda record, context: killer.at("end of the iteration", context.iteration),
    )
    result = await loop.run(context)
    await journal.aclose()
    return {
        "reason": result.reason,
        "error": f"{type(result.error).__name__}: {result.error}" if result.error else "",
        "tokens": result.usage.total_tokens,
        "iterations": [record.iteration for record in result.iterations],
        "texts": [record.text for record in result.iterations],
        "outputs": [[each.output for each in record.tool_calls] for record in result.iterations],
        "state": context.state,
        "files": workspace.list(),
    }


if __name__ == "__main__":
    where, when, *rest = sys.argv[1:]
    (Path(where) / f"ready-{os.getpid()}").touch()
    while (Path(where) / "wait").exists():
        time.sleep(0.005)
    pause = float(rest[1]) if len(rest) > 1 else 0.0
    print(json.dumps(asyncio.run(main(Path(where), when, idempotent=rest[:1] == ["idempotent"], seconds=pause))))
