"""What type checkers know of ``.use()``: a layer's own options, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.type_checkers import CHECKERS, lines_with_errors

SOURCE = """
from __future__ import annotations
from collections.abc import AsyncIterator
from dataclasses import KW_ONLY, dataclass
from decimal import Decimal
from chatstack import FROM_CONTAINER, Budget, CharCounter, ChatClient, ChatFronts, ChatRequest, ChatStack, ChatStream
from chatstack import ClearThenDrop, ContextWindow, ContextWindowGuard, Fallback, FunctionInvoker, OldestFirst
from chatstack import BudgetExceeded, ChatUpdate, ProgressReporter, Summarizer, Telemetry, Tool, ToolResultClearer
from chatstack import named, tool
from chatstack.testing import ScriptedClient

class Forecasts:
    pass

@dataclass(frozen=True)
class Weather(ChatFronts):
    inner: ChatClient
    _: KW_ONLY
    place: str
    days: int = 1
    forecasts: Forecasts = FROM_CONTAINER

    async def send(self, request: ChatRequest, /) -> ChatStream:
        return await self.inner.send(request)

def weather(inner: ChatClient, *, place: str) -> ChatClient:
    return Weather(inner, place=place)

@tool
def look(place: str) -> str:
    return place

@tool(idempotent=True)
async def count(place: str, days: int = 1) -> list[int]:
    return [days]

tools: list[Tool[..., object]] = [look, count]

async def updates() -> AsyncIterator[ChatUpdate]:
    yield ChatUpdate(text="x")

async def answer() -> ChatStream:
    return await ChatStream.primed(updates())

stack = ChatStack(ScriptedClient(["x"]))
stack.use(ContextWindowGuard, max_context_tokens=8_000, prune_on_overflow=True, counter=CharCounter())
stack.use(ContextWindowGuard, max_context_tokens="auto").use(ProgressReporter).use(FunctionInvoker, tools=[])
stack.use(FunctionInvoker, tools=tools).use(named("more", FunctionInvoker), tools=[look, len])
stack.use(ToolResultClearer, trigger={"fraction": 0.5}, keep={"messages": 2}).use(Summarizer, max_tokens=4)
stack.use(Budget, max_tokens=4).use(Fallback, clients=[ScriptedClient(["x"])]).use(ContextWindow(max_tokens=5))
stack.use(ContextWindow, max_tokens=100).use(ClearThenDrop, max_tokens=100).use(ClearThenDrop(9), counter=CharCounter())
stack.use(named("x", ContextWindowGuard), max_context_tokens=8_000).use(named("y", ClearThenDrop), max_tokens=3)
stack.use(named("z", ClearThenDrop(3)), counter=CharCounter()).use(OldestFirst, max_tokens=5, target_tokens=2)
stack.use(ContextWindow(max_tokens=5), summary_client=ScriptedClient(["x"]), counter=CharCounter())
stack.build({Telemetry: Telemetry()}.get)
stack.build({Telemetry: Telemetry()}.__getitem__)
stack.use(Weather, place="Oslo").use(weather, place="Rome").use(lambda inner: Weather(inner, place="Bonn"))
stack.use(ContextWindowGuard, max_context_token=8_000)  # refused
stack.use(ContextWindowGuard, max_context_tokens="8000")  # refused
stack.use(ContextWindowGuard)  # refused
stack.use(ToolResultClearer, trigger=3)  # refused
stack.use(ClearThenDrop, max_token=3)  # refused
stack.use(ClearThenDrop(100), count=3)  # refused
stack.use(ContextWindow(max_tokens=5), max_tokens=3)  # refused
stack.use(named("x", ContextWindowGuard), max_context_token=8_000)  # refused
stack.use(Weather)  # refused
stack.use(Weather, place="Oslo", day=3)  # refused
stack.use(weather, places="Rome")  # refused
BudgetExceeded("spent", cost=Decimal(1))
BudgetExceeded("spent", cost="1 dollar")  # refused
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", CHECKERS)
def test_what_is_misspelt_missing_or_of_another_type_is_refused(checker: str, tmp_path: Path) -> None:
    refused = {at for at, line in enumerate(SOURCE.splitlines(), 1) if "# refused" in line}
    assert lines_with_errors(checker, SOURCE, tmp_path, mode="standard") == refused
