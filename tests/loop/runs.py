"""Loops over a scripted model, and tools that say what they did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, TypedDict, Unpack

from chatstack import ChatClient, ChatOptions, Message, Resolver, Telemetry, ToolCall, tool
from chatstack.loop.context import IterativeContext
from chatstack.loop.iterative import IterativeLoop
from chatstack.loop.journal import Entry, Journal
from chatstack.loop.results import IterationRecord, IterativeResult
from chatstack.loop.settings import Completion, LoopMode, Prompt
from chatstack.loop.workspace import MemoryWorkspace, Workspace
from chatstack.testing import Answer, ScriptedClient
from chatstack.tokens.prices import Price
from chatstack.tools.execution import Approval
from chatstack.tools.parameters import Injected
from chatstack.tools.tool import Tool


def call(name: str, id: str = "c", /, **arguments: object) -> ToolCall:
    return ToolCall(id, name, json.dumps(arguments))


@tool
def note(workspace: Injected[MemoryWorkspace], text: str) -> str:
    """Writes a line into the notes."""
    before = workspace.read("notes.md") if workspace.exists("notes.md") else ""
    workspace.write("notes.md", f"{before}{text}\n")
    return f"noted {text}"


@tool
async def look(what: str) -> str:
    """Looks something up."""
    return f"saw {what}"


class InMemory:
    """A journal that outlives its loop."""

    def __init__(self) -> None:
        self.written: list[Entry] = []

    async def entries(self, run_id: str) -> Sequence[Entry]:
        return tuple(self.written)

    async def append(self, run_id: str, number: int, entry: Entry) -> None:
        assert number == len(self.written)
        self.written.append(entry)


def numbered(context: IterativeContext) -> str:
    return f"iteration {context.iteration}"


class Options(TypedDict, total=False):
    """What a loop may be told besides."""

    is_complete: Completion | None
    mode: LoopMode
    max_iterations: int
    max_tool_rounds: int
    max_total_tool_calls: int | None
    max_stalled_iterations: int
    max_tokens: int | None
    max_cost: float | Decimal | None
    price: Price | None
    pressure: float
    max_concurrency: int | None
    tool_timeout_seconds: float | None
    include_error_details: bool
    approve: Approval | None
    propagate: tuple[type[Exception], ...]
    tool_filter: Callable[[str, IterativeContext], bool] | None
    on_iteration_start: Callable[[IterativeContext], object] | None
    on_iteration_end: Callable[[IterationRecord, IterativeContext], object] | None
    on_tool_call: Callable[[ToolCall, IterativeContext], object] | None
    options: ChatOptions
    journal: Journal | None
    name: str
    resolve: Resolver | None
    telemetry: Telemetry


def looped(
    client: ChatClient | Sequence[Answer],
    prompt: Prompt = numbered,
    tools: Sequence[Tool[..., Any] | Callable[..., object]] = (note, look),
    **options: Unpack[Options],
) -> IterativeLoop:
    """A loop over that client, or over one that plays these answers."""
    asked = ScriptedClient(client) if isinstance(client, Sequence) else client
    return IterativeLoop(asked, "Do it.", prompt, tools, **options)


def fresh(
    *, workspace: Workspace | None = None, run_id: str | None = None, state: dict[str, Any] | None = None
) -> IterativeContext:
    return IterativeContext(
        workspace=workspace or MemoryWorkspace(), run_id=run_id, state={} if state is None else state
    )


def run(loop: IterativeLoop, context: IterativeContext | None = None) -> IterativeResult:
    async def bounded() -> IterativeResult:
        async with asyncio.timeout(300):
            return await loop.run(context if context is not None else fresh())

    return asyncio.run(bounded())


def asked(loop: IterativeLoop) -> list[list[str]]:
    """What was sent, request by request: each message as its text, its calls, or its results."""
    client = loop.client
    assert isinstance(client, ScriptedClient)
    return [[shown(message) for message in request.messages] for request in client.requests]


def shown(message: Message) -> str:
    if message.calls:
        return " ".join(f"{each.name}({each.arguments})" for each in message.calls)
    if message.results:
        return " ".join(str(each.output) for each in message.results)
    return message.text


def outputs(result: IterativeResult) -> list[list[str]]:
    """What the tools of each iteration gave."""
    return [[each.output for each in record.tool_calls] for record in result.iterations]
